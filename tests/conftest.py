"""Fixtures that find the shared data and real models, or skip and say why."""

from __future__ import annotations

import gc
import os
from pathlib import Path

# Before NumPy is there: its threads wait by spinning, which several processes of tests on few cores pay for.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Before Textual is: a scroll that takes frames ends when the machine has time for it, not when a test looks.
os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")

import pytest
from hypothesis import settings

from kernels.cuda.devices import NoDevice

# Every run draws other examples; HYPOTHESIS_PROFILE=default takes four times as many at once.
settings.register_profile("short", max_examples=25)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))


def pytest_collection_finish() -> None:
    """Thousands of collected tests are not looked at again by each full collection of garbage."""
    gc.collect()
    gc.freeze()


REPO = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates that were measured on this machine are not found, and none are left behind."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def no_gpu_unasked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models go to a GPU only in tests that are marked `gpu`: all others give the same on every machine."""
    if request.node.get_closest_marker("gpu") is None:
        hidden = NoDevice("tests hide it", has_driver=False)
        monkeypatch.setattr("engine.backends.gpus.devices", lambda: hidden)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of reference logits, vocabularies and templates."""
    path = Path(os.environ.get("TIERCEL_SHARED", REPO.parent / "shared")) / "data"
    if not path.is_dir():
        pytest.skip(f"no shared data at {path}: set TIERCEL_SHARED to its parent folder")
    return path


def _model(name: str) -> Path:
    path = Path(os.environ.get("TIERCEL_MODELS", REPO / ".cache" / "models")) / name
    if not path.is_file():
        pytest.skip(f"no {name} in {path.parent}: run `make test-models`, or set TIERCEL_MODELS")
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The starter model, SmolLM2-135M-Instruct Q4_1."""
    return _model("smollm2.gguf")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma-3-270M Q4_K_M, a base model for tests."""
    return _model("gemma3-270m.gguf")
