from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from app.cli import models
from app.models import FoundModel, Origin

FOUND = [FoundModel("a", Path("/m/a.gguf"), 98_362_432, Origin.OWN)]


def _run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    models.add_arguments(parser)
    return models.run(parser.parse_args(words))


def test_the_table_names_size_and_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "discover", lambda: FOUND)
    assert _run() == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["a", "0.10", "GB", "tiercel", "/m/a.gguf"]


def test_json_is_a_list_of_objects(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "discover", lambda: FOUND)
    assert _run("--json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "a", "path": "/m/a.gguf", "bytes": 98_362_432, "origin": "tiercel"}
    ]


def test_an_empty_machine_is_told_the_next_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "discover", list)
    assert _run() == 0
    assert "tiercel pull smollm2" in capsys.readouterr().err


def test_file_names_cannot_send_escape_sequences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = FoundModel("\x1b]0;x\x07", Path("/m/\x1b[2J.gguf"), 1, Origin.FOLDER)
    monkeypatch.setattr(models, "discover", lambda: [evil])
    _run()
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())
