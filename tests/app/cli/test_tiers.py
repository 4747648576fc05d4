"""`tiercel tiers` on a tiny model that streams: the map as text, as objects, and again and again."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path

import pytest

from app.cli import tiers
from app.cli.exit_codes import INTERRUPTED
from app.tiers.report import TierReport, TierWatch
from engine import ContextError, EngineSnapshot
from tests.engine.budgets import budget_for
from tests.tiny_gguf import CHATML, write_tiny_model

CONTEXT = 64


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiers") / "tiny.gguf"
    return write_tiny_model(path, layers=6, chat_template=CHATML)


def run(tiny: Path, *arguments: str, share: float = 0.4) -> int:
    parser = argparse.ArgumentParser()
    tiers.add_arguments(parser)
    budget = str(budget_for(tiny, CONTEXT, share))
    fixed = ["-m", str(tiny), "-p", "hello", "-n", "8", "-c", str(CONTEXT), "--ram-budget", budget]
    return tiers.run(parser.parse_args([*fixed, *arguments]))


def test_text_shows_the_map_bars_and_events(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiny) == 0
    out = capsys.readouterr().out
    for words in ("R RAM", "N NVMe", "0  a", "head", "NVMe->RAM", "cores", "limit:"):
        assert words in out
    assert "blocks are in memory" in out


def test_json_is_one_object_whose_blocks_are_those_of_the_file(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert len([block for block in result["blocks"] if block["layer"] is not None]) == 12
    assert {block["tier"] for block in result["blocks"]} == {"ram", "nvme"}
    by_tier = {each["tier"]: each for each in result["tiers"]}
    assert by_tier["ram"]["used_bytes"] <= by_tier["ram"]["total_bytes"]
    assert 0 < result["hit_rate"] < 1
    assert result["links"][0]["nvme_read_bytes"] > 0


def test_blocks_that_are_left_out_are_marked_and_nothing_of_them_is_read(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny, "--json") == 0
    before = json.loads(capsys.readouterr().out)
    assert (before["skipped_blocks"], before["skipped_bytes"]) == (0, 0)
    assert run(tiny, "--json", "--skip", "blk.2,blk.4.ffn") == 0
    result = json.loads(capsys.readouterr().out)
    skipped = [block["name"] for block in result["blocks"] if block["skipped"]]
    assert skipped == ["blk.2 attention", "blk.2 feed_forward", "blk.4 feed_forward"]
    left_out = sum(block["bytes"] for block in result["blocks"] if block["skipped"])
    assert (result["skipped_blocks"], result["skipped_bytes"]) == (3, left_out)
    assert result["pass_bytes"] == before["pass_bytes"] - left_out


def test_the_text_says_how_much_is_left_out(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiny, "--skip", "blk.2") == 0
    assert "· skipped 2 of 12, " in capsys.readouterr().out


def test_watching_prints_objects_one_in_a_line(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiny, "--json", "--watch") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(json.loads(line)["blocks"] for line in lines)


def test_all_in_memory_streams_nothing(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiny, "--json", share=1) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["hit_rate"], result["pass_read_bytes"]) == (1.0, 0)


def test_a_model_that_does_not_fit_is_an_error_and_prints_nothing(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    tiers.add_arguments(parser)
    with pytest.raises(ContextError):
        tiers.run(parser.parse_args(["-m", str(tiny), "-c", str(CONTEXT), "--ram-budget", "1000", "--watch"]))
    assert capsys.readouterr().out == ""


def test_on_a_terminal_the_map_is_drawn_in_place(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(tiers, "_REDRAW_S", 0.0)
    monkeypatch.setattr(tiers, "_LOOK_S", 0.001)
    assert run(tiny, "--watch") == 0
    shown = screen.getvalue()
    assert "\x1b[J" in shown
    assert shown.count("R RAM") == shown.count("\x1b[J") + 1


def test_ctrl_c_ends_the_reply_and_prints_what_was_there(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([KeyboardInterrupt])
    feed = TierWatch.feed

    def feed_or_interrupt(watch: TierWatch, snapshot: EngineSnapshot) -> TierReport:
        if snapshot.model is not None and (error := next(looks, None)):
            raise error
        return feed(watch, snapshot)

    monkeypatch.setattr(TierWatch, "feed", feed_or_interrupt)
    monkeypatch.setattr(tiers, "_LOOK_S", 0.0001)
    assert run(tiny, "--json") == INTERRUPTED
    assert json.loads(capsys.readouterr().out)["blocks"]
