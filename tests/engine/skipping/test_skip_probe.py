"""What is measured on a GPU, or its emulator, is what NumPy computes for the same text."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cancel import CancelToken
from engine.config import Precision
from engine.measuring.evaluate import Window
from engine.model import Transformer
from engine.skipping.skip_probe import SkipProbe
from kernels.cuda.device import Device
from kernels.quant_types import QuantType
from tests.engine.conftest import open_numpy
from tests.engine.cuda_models import opened_on
from tests.tiny_gguf import write_tiny_model

WINDOW = Window([5, 9, 17, 33, 64, 40, 12, 7, 99, 30, 31, 8, 77, 15, 4, 3, 60, 21, 19, 11], 5)
WINDOWS = [WINDOW, WINDOW._replace(ids=[*WINDOW.ids[::-1]])]
SKIP = frozenset({1, 2})


def probe(model: Transformer, chunk: int) -> SkipProbe:
    kv = model.backend.new_kv(64)
    return SkipProbe(model, WINDOWS, kv, CancelToken(), chunk=chunk, on_pass=lambda size: None)


def test_a_gpu_measures_what_numpy_does(device: Device, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", quant_type=QuantType.Q8_0)
    expected = probe(open_numpy(path, Precision.FLOAT), 64)
    with opened_on(device, path, precision=Precision.FLOAT) as model:
        ours = probe(model, 16)
        effect, cosines = ours.effect(SKIP), ours.cosines()
    assert ours.perplexity.perplexity == pytest.approx(expected.perplexity.perplexity, rel=1e-3)
    assert cosines == pytest.approx(expected.cosines(), abs=1e-3)
    of_numpy = expected.effect(SKIP)
    assert effect.kl == pytest.approx(of_numpy.kl, rel=1e-2)
    assert effect.perplexity_change == pytest.approx(of_numpy.perplexity_change, rel=1e-2)


@pytest.mark.parametrize("chunk", [7, 20])
def test_chunks_do_not_change_what_is_measured(tiny_model: Transformer, chunk: int) -> None:
    whole, parts = probe(tiny_model, 64), probe(tiny_model, chunk)
    assert parts.cosines() == pytest.approx(whole.cosines(), abs=1e-5)
    assert parts.effect(SKIP).kl == pytest.approx(whole.effect(SKIP).kl, rel=1e-3)


def test_nothing_left_out_changes_nothing(tiny_model: Transformer) -> None:
    effect = probe(tiny_model, 64).effect(frozenset())
    assert effect.kl < 1e-9
    assert effect.top1 == 1.0
    assert abs(effect.perplexity_change) < 1e-9


def test_each_pass_tells_how_much_of_one_it_was(tiny_model: Transformer) -> None:
    sizes: list[float] = []
    kv = tiny_model.backend.new_kv(64)
    ours = SkipProbe(tiny_model, WINDOWS, kv, CancelToken(), chunk=64, on_pass=sizes.append)
    assert sizes == [1.0]
    ours.cosines()
    n_layers = tiny_model.config.n_layers
    assert sizes[1:] == [layer / n_layers for layer in range(n_layers + 1)]
