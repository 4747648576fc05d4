"""The model on the C kernels against the same model on NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.config import Precision
from engine.errors import CancelledError
from kernels.quant_types import QuantType
from tests.engine.conftest import open_numpy
from tests.tiny_gguf import write_tiny_model

cpu = pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")
from tests.engine.tiers.opened import IDS, all_logits, opened  # noqa: E402  needs the kernels


def close(one: np.ndarray, other: np.ndarray, tolerance: float) -> bool:
    """Within a share of the largest logit."""
    return bool(np.max(np.abs(one - other)) < tolerance * np.max(np.abs(other)))


@pytest.mark.parametrize("instruction_set", cpu.instruction_sets())
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_logits_are_those_of_numpy(tmp_path: Path, architecture: str, instruction_set: str) -> None:
    path = write_tiny_model(
        tmp_path / "m.gguf", architecture=architecture, layers=7, quant_type=QuantType.Q4_K
    )
    expected = all_logits(open_numpy(path, Precision.FLOAT))
    for precision, tolerance in ((Precision.FLOAT, 1e-4), (Precision.FAST, 0.1)):
        with opened(path, precision=precision, instruction_set=instruction_set) as model:
            assert close(all_logits(model), expected, tolerance), precision


@pytest.mark.parametrize("quant_type", QuantType, ids=lambda quant_type: quant_type.name)
def test_every_quant_type_is_computed_as_by_numpy(tmp_path: Path, quant_type: QuantType) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", quant_type=quant_type)
    expected = all_logits(open_numpy(path, Precision.FLOAT))
    with opened(path, precision=Precision.FLOAT) as model:
        assert close(all_logits(model), expected, 1e-4)


def test_a_cancelled_token_stops_the_pass(tmp_path: Path) -> None:
    with opened(write_tiny_model(tmp_path / "m.gguf")) as model:
        token = CancelToken()
        token.cancel()
        with pytest.raises(CancelledError):
            model.hidden(IDS, 0, model.backend.new_kv(64), token)


def test_a_block_without_its_matrices_is_refused(tmp_path: Path) -> None:
    with opened(write_tiny_model(tmp_path / "m.gguf")) as model:
        model.backend._blocks._model.place(1, cpu.LAYER_TENSORS.index("ffn_up"), None)
        with pytest.raises(ValueError, match="nowhere"):
            model.hidden(IDS, 0, model.backend.new_kv(64), CancelToken())
