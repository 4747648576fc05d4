"""A home of its own for every test that starts the application or opens a store."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that stands for the person's home and all of Tiercel's places."""
    for name in ("TIERCEL_MODELS", "TIERCEL_MODEL_FOLDERS", "OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TIERCEL_HOME", str(tmp_path / "tiercel"))
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    return tmp_path
