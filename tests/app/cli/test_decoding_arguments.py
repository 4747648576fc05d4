"""What is left out and who drafts, as typed: what goes together, and what each word becomes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from app.cli.decoding_arguments import (
    add_decoding_arguments,
    decoding_options,
    draft_model,
    with_decoding,
)
from app.cli.exit_codes import UsageError
from app.models.options import Chosen
from engine import DecodingOptions, DraftKind, parse_skip
from tests.fakes import FakeEngine, Script
from tests.tiny_gguf import write_tiny_model


def arguments(*said: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_decoding_arguments(parser)
    return parser.parse_args(said)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ([], {}),
        (["--skip", "kl=0.05"], {"skip": parse_skip("kl=0.05")}),
        (["--skip=blk.3-5,blk.7.ffn"], {"skip": parse_skip("blk.3-5,blk.7.ffn")}),
        (["--skip", "off"], {"skip": None}),
        (["--skip-threshold", "0.9"], {"skip": parse_skip("cos=0.9")}),
        (["--skip-threshold"], {"skip": parse_skip("cos=0.98")}),
        (["--skip-threshold", "0"], {"skip": None}),
        (["--draft", "ngram", "--draft-k", "4"], {"draft": DraftKind.NGRAM, "draft_k": 4}),
        (["--self-spec"], {"draft": DraftKind.SELF}),
        (["--draft", "resident"], {"draft": DraftKind.RESIDENT}),
        (["--early-exit"], {"draft": DraftKind.EXIT, "exit_layer": None}),
        (["--early-exit", "12"], {"draft": DraftKind.EXIT, "exit_layer": 12}),
        (["--draft", "off"], {"draft": DraftKind.OFF}),
        (["--skip=cos=0.98", "--self-spec"], {"skip": parse_skip("cos=0.98"), "draft": DraftKind.SELF}),
    ],
)
def test_what_is_typed_is_what_is_meant(said: list[str], meant: dict[str, Any]) -> None:
    assert decoding_options(arguments(*said)) == DecodingOptions(**meant)
    assert with_decoding(Chosen(), arguments(*said)).decoding == meant


def test_a_model_that_drafts_is_looked_up_and_drafts(home: Path) -> None:
    small = home / "small.gguf"
    small.touch()
    for said in (["--draft-model", str(small)], ["--draft", "model", "--draft-model", str(small)]):
        args = arguments(*said)
        assert decoding_options(args).draft is DraftKind.MODEL
        assert draft_model(args) == small
        assert with_decoding(Chosen(), args) == Chosen(decoding={"draft": DraftKind.MODEL}, draft_model=small)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["--draft", "model"], "--draft model needs a model that drafts: --draft-model MODEL"),
        (["--draft-k", "4"], "--draft-k needs somebody who drafts"),
        (["--draft", "ngram", "--draft-model", "x"], "goes with --draft model, not with ngram"),
        (["--self-spec", "--draft-model", "x"], "goes with --draft model, not with self"),
    ],
)
def test_what_does_not_go_together_is_told(said: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        decoding_options(arguments(*said))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["--skip", "much"], "'much' says nothing that can be skipped: give off, cos=0.98"),
        (["--skip", "kl=lots"], "'lots' is no threshold for kl"),
        (["--skip-threshold", "1.5"], "'1.5' is no threshold: give a number from 0 to 1"),
        (["--skip-threshold", "nan"], "'nan' is no threshold"),
        (["--skip", "kl=0.1", "--skip-threshold", "0.9"], "not allowed with"),
        (["--draft", "me"], "'me' must be off or ngram or model"),
        (["--draft-k", "24", "--self-spec"], "'24' is not a whole number from 1 to 23"),
        (["--draft-k", "0", "--self-spec"], "'0' is not a whole number from 1 to 23"),
        (["--early-exit", "0"], "'0' is not a whole number of at least 1"),
        (["--self-spec", "--draft", "ngram"], "not allowed with"),
        (["--draft-model", "nowhere"], "no model called 'nowhere'"),
    ],
)
def test_nonsense_is_told_in_one_line(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    said: list[str],
    why: str,
) -> None:
    monkeypatch.setattr("app.cli.run.piped_text", lambda: "")
    write_tiny_model(home / "m.gguf")
    for command in (["run", "-p", "x"], ["chat"], []):
        assert main([*command, "-m", str(home / "m.gguf"), *said]) != 0
        shown = capsys.readouterr()
        assert why in shown.err
        assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_a_chat_takes_them_for_every_reply(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_tiny_model(home / "m.gguf")
    chosen: list[Chosen | None] = []
    monkeypatch.setattr("app.plain.run_plain", lambda _engine, _model, said: chosen.append(said) or 0)
    monkeypatch.setattr("engine.Engine", lambda: FakeEngine(Script()))
    monkeypatch.setattr("app.cli.run.Engine", lambda: FakeEngine(Script()))
    said = ["-m", str(path), "--draft", "ngram", "--skip=kl=0.05"]
    for command in (["chat", "--plain"], ["chat", "--chat"], ["run", "--chat"]):
        assert main([*command, *said]) == 0
    meant = {"draft": DraftKind.NGRAM, "skip": parse_skip("kl=0.05")}
    assert chosen == [Chosen(decoding=meant)] * 3
    assert capsys.readouterr().err.count("line by line") == 0


@pytest.mark.parametrize("said", [["-p", "x"], ["--temperature", "0"], ["-n", "0"], ["--json"], ["--raw"]])
def test_what_is_for_one_answer_is_refused_with_a_chat(
    home: Path, capsys: pytest.CaptureFixture[str], said: list[str]
) -> None:
    path = write_tiny_model(home / "m.gguf")
    assert main(["run", "--chat", "-m", str(path), *said]) == 2
    assert "is for one answer, not for --chat" in capsys.readouterr().err
