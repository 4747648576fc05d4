"""`tiercel calibrate`: the promised keys, tables that fit a terminal, one line for what cannot be done."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from app.__main__ import main
from tests.tiny_gguf import write_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("calibrate") / "tiny.gguf", layers=3))


def documented(capsys: pytest.CaptureFixture[str]) -> set[str]:
    with pytest.raises(SystemExit):
        main(["calibrate", "--help"])
    return set(re.findall(r"[a-z0-9_]+", capsys.readouterr().out))


def test_json_has_the_promised_keys_and_every_block(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "-m", tiny, "--device", "cpu", "--tokens", "256", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n_blocks"] == 6 and found["tokens"] == 256
    assert len(found["cosines"]) == 3
    assert [effect["skipped"] for effect in found["alone"][:6]] == [[block] for block in range(6)]
    for effect in found["grown"]:
        assert effect["perplexity_low"] <= effect["perplexity_change"] <= effect["perplexity_high"]
        assert effect["tok_s"] > 0
    words = documented(capsys)
    assert found.keys() | found["alone"][0].keys() <= words
    assert all(effect.keys() <= words for effect in found["grown"])


def test_the_tables_fit_a_terminal_and_name_what_was_measured_on(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("All that I have written so far, in words of mine. " * 40, "utf-8")
    assert main(["calibrate", "-m", tiny, "--device", "cpu", "--file", str(text)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tiny, 6 blocks of 3 layers"
    assert lines[1].startswith("on notes.txt: 512 tokens, perplexity ")
    assert max(map(len, lines)) <= 80
    assert any(re.match(r" +1 blk\.[0-2]\.(attn|ffn) ", line) for line in lines)


def test_a_text_that_is_too_short_is_refused_in_one_line(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "note.txt"
    text.write_text("Too short.", "utf-8")
    assert main(["calibrate", "-m", tiny, "--device", "cpu", "-f", str(text)]) != 0
    out, err = capsys.readouterr()
    assert not out
    assert re.fullmatch(r"tiercel: note\.txt has \d+ tokens: give one with at least 288, .*\n", err)
