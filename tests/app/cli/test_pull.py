from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from app.cli import pull
from app.models import starter
from app.models.starter import Pulled


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
