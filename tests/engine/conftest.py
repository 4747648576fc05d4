"""Tiny models for the engine's own tests, and an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import Engine, EngineState
from engine.backends.numpy_backend import NumpyBackend
from engine.config import Precision
from engine.gguf import open_gguf
from engine.model import Transformer
from engine.model_config import read_model_config
from engine.session import Session
from engine.weights import ModelWeights
from kernels.quant_types import QuantType
from tests.kernels.cuda.conftest import device
from tests.tiny_gguf import CHATML, write_tiny_model

__all__ = ["device"]

OpenModel = Callable[[Path], Transformer]


def open_numpy(path: Path, precision: Precision = Precision.FLOAT) -> Transformer:
    """The model of a file, on the NumPy backend."""
    gguf = open_gguf(path)
    config = read_model_config(gguf)
    return Transformer(config, NumpyBackend(ModelWeights(gguf, config), config, precision))


@pytest.fixture(scope="session", params=["llama", "gemma3"])
def tiny_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    """One tiny model of each architecture; gemma3's window of 16 is shorter than the tests' prompts."""
    path = tmp_path_factory.mktemp("tiny") / f"{request.param}.gguf"
    layers = 6 if request.param == "gemma3" else 2  # the sixth sees everything
    return open_numpy(write_tiny_model(path, architecture=request.param, layers=layers))


@pytest.fixture
def session(tiny_model: Transformer) -> Session:
    """An empty cache of 96 positions."""
    return Session(tiny_model.backend.new_kv(96))


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("chat") / "chat.gguf", chat_template=CHATML)


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("base") / "base.gguf", architecture="gemma3")


@pytest.fixture(scope="session")
def deep_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many blocks, to be streamed."""
    pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")
    return write_tiny_model(
        tmp_path_factory.mktemp("deep") / "deep.gguf",
        chat_template=CHATML,
        quant_type=QuantType.Q4_K,
        layers=6,
        vocab_size=2000,
    )


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.close()
    assert engine.snapshot.state is EngineState.CLOSED


@pytest.fixture(scope="module")
def small_buffers() -> Iterator[None]:
    """Buffers of the link that a tiny block does not fit: it crosses in several copies, and budgets bind."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("cuda_plan", "cuda_model"):
            patch.setattr(f"engine.backends.{module}.BUFFER_BYTES", 16 << 10)
        yield
