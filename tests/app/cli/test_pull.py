from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from app.cli import pull
from app.models import starter
from app.models.pulling import Pulled
from engine import ModelNotFoundError
from tests.app.models.hub_server import hub_server


def _parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    pull.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(("fetched", "words"), [(True, "saved as"), (False, "already there")])
def test_it_says_where_the_model_is(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fetched: bool,
    words: str,
) -> None:
    monkeypatch.setenv("TIERCEL_MODELS", str(tmp_path))
    monkeypatch.setattr(pull.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(pull, "pull", lambda model, folder, show: Pulled(folder / "smollm2.gguf", fetched))
    assert pull.run(_parse("smollm2")) == 0
    out = capsys.readouterr().out
    assert words in out and str(tmp_path / "smollm2.gguf") in out


def test_the_help_names_every_starter_and_an_example() -> None:
    parser = argparse.ArgumentParser()
    pull.add_arguments(parser)
    text = parser.format_help()
    assert all(model.name in text for model in starter.STARTERS)
    assert "tiercel pull smollm2" in text


def test_a_file_of_the_hub_is_fetched_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("TIERCEL_MODELS", str(tmp_path))
    monkeypatch.setattr(pull.signal, "signal", lambda number, handler: None)
    with hub_server() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.files["owner/repo/m.gguf"] = b"GGUF" * 100
        assert pull.run(_parse("hf:owner/repo/m.gguf")) == 0
    target = tmp_path / "owner" / "repo" / "m.gguf"
    assert target.read_bytes() == b"GGUF" * 100
    assert capsys.readouterr().out == f"m.gguf: saved as {target}\n"
    assert pull.run(_parse("hf:owner/repo/m.gguf")) == 0
    assert "already there" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["hf:owner/repo", "https://example.org/m.gguf"])
def test_what_names_no_file_of_the_hub_says_what_would(text: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"hf:owner/repository/file\.gguf"):
        pull.run(_parse(text))
