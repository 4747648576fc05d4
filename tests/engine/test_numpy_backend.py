"""The model on NumPy: how ids are fed does not matter, windows and cancelling do what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.config import Precision
from engine.errors import CancelledError
from engine.measuring.evaluate import compare_with_reference
from engine.measuring.reference_file import read_reference
from engine.model import Transformer
from kernels.quant_types import QuantType
from tests.engine.conftest import open_numpy
from tests.tiny_gguf import write_tiny_model

IDS = [int(i) for i in np.random.default_rng(3).integers(3, 320, 60)]


def hidden_in_chunks(model: Transformer, ids: list[int], chunk: int) -> np.ndarray:
    kv, token = model.backend.new_kv(len(ids)), CancelToken()
    parts = [model.hidden(ids[i : i + chunk], i, kv, token) for i in range(0, len(ids), chunk)]
    return np.concatenate(parts)


@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_chunks_give_the_hidden_states_of_one_piece(tiny_model: Transformer, chunk: int) -> None:
    whole = hidden_in_chunks(tiny_model, IDS, len(IDS))
    np.testing.assert_allclose(hidden_in_chunks(tiny_model, IDS, chunk), whole, rtol=1e-3, atol=1e-3)


def test_going_back_to_an_earlier_position_forgets_what_came_after(tiny_model: Transformer) -> None:
    kv, token = tiny_model.backend.new_kv(60), CancelToken()
    tiny_model.hidden(IDS, 0, kv, token)
    again = tiny_model.hidden(IDS[40:50], 40, kv, token)
    expected = hidden_in_chunks(tiny_model, IDS[:50], 40)[40:]
    np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-4)


def test_a_windowed_layer_does_not_see_past_its_window(tmp_path: Path) -> None:
    # Two layers of a window of 16 reach 30 positions back and no further.
    model = open_numpy(write_tiny_model(tmp_path / "m.gguf", architecture="gemma3", layers=2))
    changed = [IDS[0] + 1, *IDS[1:]]
    before, after = (hidden_in_chunks(model, ids, 60) for ids in (IDS, changed))
    assert np.any(before[30] != after[30])
    np.testing.assert_array_equal(before[31:], after[31:])


def test_a_cancelled_token_stops_before_the_next_layer(tiny_model: Transformer) -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(CancelledError):
        tiny_model.hidden(IDS, 0, tiny_model.backend.new_kv(60), token)


def test_fast_precision_halves_the_cache_and_stays_close(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf")
    exact, fast = open_numpy(path), open_numpy(path, Precision.FAST)
    assert fast.backend.new_kv(10).n_bytes * 2 == exact.backend.new_kv(10).n_bytes
    np.testing.assert_allclose(
        hidden_in_chunks(fast, IDS, 60), hidden_in_chunks(exact, IDS, 60), rtol=0.05, atol=0.05
    )


@pytest.mark.parametrize("quant_type", QuantType, ids=lambda quant_type: quant_type.name)
def test_every_quant_type_gives_finite_logits(tmp_path: Path, quant_type: QuantType) -> None:
    model = open_numpy(write_tiny_model(tmp_path / "m.gguf", quant_type=quant_type, layers=1))
    assert np.all(np.isfinite(model.logits(hidden_in_chunks(model, IDS[:4], 4), CancelToken())))


@pytest.mark.model
@pytest.mark.parametrize(
    ("fixture", "reference"),
    [("smollm2_path", "smollm2_135m_q4_1"), ("gemma3_path", "gemma3_270m_q4_k_m")],
)
def test_real_models_meet_the_reference_logits(
    request: pytest.FixtureRequest, shared_data: Path, fixture: str, reference: str
) -> None:
    model = open_numpy(request.getfixturevalue(fixture))
    expected = read_reference(shared_data / "golden" / f"{reference}.licence_en.npz")
    kv = model.backend.new_kv(len(expected.token_ids))
    result = compare_with_reference(model, expected, kv, CancelToken(), chunk=96)
    assert result.kl_mean <= 0.0001
    assert result.top1 >= 0.99
