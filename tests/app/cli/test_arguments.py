"""What the shared arguments become as options of the engine."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from app import locations
from app.__main__ import main
from app.cli.arguments import add_model_arguments, chosen, load_options
from app.cli.exit_codes import exit_code
from app.models.options import Chosen
from engine import (
    BudgetError,
    ContextError,
    DeviceError,
    ExecutorChoice,
    KVType,
    LoadOptions,
    PlaceRule,
    parse_budget,
)


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


@pytest.mark.parametrize(
    ("said", "device"),
    [(None, None), ("auto", None), ("cpu", "cpu"), ("cuda", "cuda"), ("CUDA:1", "cuda:1")],
)
def test_a_device_is_passed_on_and_auto_is_nothing(home: Path, said: str | None, device: str | None) -> None:
    assert parsed(home, *(["--device", said] if said else [])).device == device


def test_video_memory_and_the_kind_of_keys_and_values_are_passed_on(home: Path) -> None:
    options = parsed(home, "--vram-budget", "20G", "--kv-type", "q8_0")
    assert (options.vram_budget, options.kv_type) == (parse_budget("20G"), KVType.Q8_0)
    assert (parsed(home).vram_budget, parsed(home).kv_type) == (None, KVType.F16)


def test_nothing_is_placed_by_hand_unless_it_was_said(home: Path) -> None:
    options = parsed(home)
    assert (options.gpu_layers, options.place, options.prefetch, options.link_limit) == (None, (), None, None)
    assert (options.executor, options.chunk) == (ExecutorChoice.AUTO, None)


PLACED = ("--gpu-layers=0", "--place=blk.0-9.attn=vram,head=ram", "--prefetch=3", "--link-limit=6.5G")


def test_a_placement_by_hand_is_passed_on_to_loading_and_to_the_application(home: Path) -> None:
    rules = (PlaceRule("blk", 0, 9, "attention", "vram"), PlaceRule("head", tier="ram"))
    options = parsed(home, *PLACED, "--executor", "hybrid")
    parser = argparse.ArgumentParser()
    add_model_arguments(parser)
    said = chosen(parser.parse_args(["-m", "x", *PLACED, "--executor", "hybrid"]))
    for each in (options, said):
        assert (each.gpu_layers, each.place, each.prefetch) == (0, rules, 3)
        assert (each.link_limit, each.executor) == (6.5e9, ExecutorChoice.HYBRID)


@pytest.mark.parametrize(("rate", "bytes_per_s"), [("800M/s", 8e8), ("25GB/s", 25e9), ("1GiB", 2.0**30)])
def test_a_rate_is_read_as_people_write_it(home: Path, rate: str, bytes_per_s: float) -> None:
    assert parsed(home, "--link-limit", rate).link_limit == bytes_per_s


def test_streaming_is_an_executor_and_does_not_go_with_another(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parsed(home, "--streaming").executor is ExecutorChoice.STREAM
    assert main(["run", "-m", str(home / "m.gguf"), "--streaming", "--executor", "cpu"]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "--executor: not allowed with argument --streaming" in shown


def test_the_application_gets_only_what_was_said() -> None:
    parser = argparse.ArgumentParser()
    add_model_arguments(parser)
    assert chosen(parser.parse_args(["-m", "x"])) == Chosen()
    said = chosen(parser.parse_args(["-m", "x", "--device", "auto", "--vram-budget", "50%"]))
    assert said == Chosen(device="auto", vram_budget=parse_budget("50%"))


@pytest.mark.parametrize("command", ["run", "chat", "bench", "perplexity", "tiers", "plan", ""])
@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--device", "gpu", "'gpu' is no device: it must be auto, cpu, cuda or cuda:N"),
        ("--device", "cuda:", "'cuda:' is no device"),
        ("--vram-budget", "lots", "'lots' is no size above 0"),
        ("--vram-budget", "150%", "'150%' is no share above 0% and up to 100%: give bytes, a size such as"),
        ("--vram-budget", "0%", "or a share of the free video memory such as 50%"),
        ("--ram-budget", "0%", "or a share of the available memory such as 50%"),
        ("--kv-type", "q4", "'q4' must be f16 or q8_0"),
        ("--gpu-layers", "-1", "'-1' is not a whole number of at least 0"),
        ("--place", "blk.0=disk", "'blk.0=disk'"),
        ("--executor", "gpu", "'gpu' must be auto or stream or cpu or hybrid"),
        ("--prefetch", "1", "'1' is not a whole number of at least 2"),
        ("--link-limit", "50%", "'50%' is no rate above 0: give bytes per second, such as 6.5G"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    capsys: pytest.CaptureFixture[str], command: str, option: str, value: str, said: str
) -> None:
    assert main([*([command] if command else []), option, value]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert said in shown


def test_rates_and_compiled_kernels_are_kept_below_the_home(home: Path) -> None:
    assert parsed(home).rates_file == home / "tiercel" / "cache" / "rates.json"
    assert parsed(home).cache_dir == home / "tiercel" / "cache"


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


def test_a_device_that_is_not_there_has_a_code_of_its_own_kind() -> None:
    assert exit_code(DeviceError("no cuda:3")) == 1
