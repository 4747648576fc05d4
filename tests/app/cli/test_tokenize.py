"""`tiercel tokenize`: ids and readable pieces of exactly the text that was given."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.cli import tokenize
from engine import EngineError
from tests.tiny_gguf import write_tiny_vocabulary


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_vocabulary(tmp_path_factory.mktemp("cli") / "tiny.gguf")


def _run(vocabulary: Path, *arguments: str) -> None:
    parser = argparse.ArgumentParser()
    tokenize.add_arguments(parser)
    assert tokenize.run(parser.parse_args(["-m", str(vocabulary), *arguments])) == 0


def _json(capsys: pytest.CaptureFixture[str]) -> dict[str, list[object]]:
    answer: dict[str, list[object]] = json.loads(capsys.readouterr().out)
    assert list(answer) == ["ids", "pieces"]
    assert len(answer["ids"]) == len(answer["pieces"])
    return answer


def _type(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def test_text_from_the_option_is_cut_into_pieces(
    vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(vocabulary, "--json", "--text", "hello the world")
    assert _json(capsys)["pieces"] == ["hello", " the", " worl", "d"]


@pytest.mark.parametrize("text", ["", "\n", " a\r\n\r\n", "\t\ufeffx\0 \n"])
def test_standard_input_is_taken_byte_by_byte(
    text: str, vocabulary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _type(monkeypatch, text.encode("utf-8"))
    _run(vocabulary, "--json")
    pieces = _json(capsys)["pieces"]
    assert "".join(map(str, pieces)).replace("<0xEF><0xBB><0xBF>", "\ufeff") == text


def test_an_empty_text_is_not_standard_input(vocabulary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(vocabulary, "--json", "--text", "")
    assert _json(capsys) == {"ids": [], "pieces": []}


def test_parts_of_a_character_are_spelled_as_bytes(
    vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(vocabulary, "--json", "--text", "é")
    assert _json(capsys)["pieces"] == ["<0xC3>", "<0xA9>"]


def test_control_tokens_are_read_out_of_the_text_only_when_asked(
    vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(vocabulary, "--json", "--text", "<|im_end|>")
    assert 2 not in _json(capsys)["ids"]
    _run(vocabulary, "--json", "--special", "--text", "<|im_end|>")
    assert _json(capsys) == {"ids": [2], "pieces": ["<|im_end|>"]}


def test_bos_comes_first_only_when_asked(vocabulary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(vocabulary, "--json", "--bos", "--text", "a")
    assert _json(capsys)["pieces"] == ["<|im_start|>", "a"]


def test_the_list_for_people_has_a_line_for_each_token(
    vocabulary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(vocabulary, "--text", "\x1b\n")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == [r"'\x1b'", r"'\n'"]


def test_input_that_is_not_utf_8_is_refused_with_its_place(
    vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _type(monkeypatch, b"abc\xff\n")
    with pytest.raises(EngineError, match="not UTF-8 at byte 3"):
        _run(vocabulary)
