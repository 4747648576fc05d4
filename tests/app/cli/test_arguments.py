"""What the shared arguments become as options of the engine."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from app import locations
from app.__main__ import main
from app.cli.arguments import add_model_arguments, load_options
from app.cli.exit_codes import exit_code
from engine import BudgetError, ContextError, LoadOptions, parse_budget


def parsed(home: Path, *arguments: str) -> LoadOptions:
    (home / "m.gguf").touch()
    parser = argparse.ArgumentParser()
    add_model_arguments(parser)
    return load_options(parser.parse_args(["-m", str(home / "m.gguf"), *arguments]))


def test_a_budget_is_passed_on_and_is_nothing_by_default(home: Path) -> None:
    assert parsed(home).ram_budget is None
    assert parsed(home, "--ram-budget", "7.5GiB").ram_budget == parse_budget("7.5GiB")
    assert parsed(home, "--ram-budget=50%").ram_budget == parse_budget("50%")


def test_a_budget_that_is_none_is_told_what_is_accepted(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "m.gguf").touch()
    assert main(["bench", "-m", str(home / "m.gguf"), "--ram-budget", "lots"]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "'lots' is no size above 0: give bytes, a size such as 8G" in shown


def test_rates_are_kept_below_the_home(home: Path) -> None:
    assert parsed(home).rates_file == home / "tiercel" / "cache" / "rates.json"


def test_an_account_without_a_home_can_still_name_a_model(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIERCEL_HOME")
    monkeypatch.setattr(
        locations.platformdirs, "user_cache_dir", lambda *arguments, **options: "~/.cache/tiercel"
    )
    assert parsed(home).rates_file is None


def test_weights_that_do_not_fit_have_the_code_of_a_context_that_does_not() -> None:
    assert exit_code(BudgetError("too little")) == exit_code(ContextError("too long")) == 4
