"""Models of which a GPU holds a part, emulated and on a GPU: the logits are those of the model that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.backends.cuda import CudaBackend
from engine.cancel import CancelToken
from engine.config import ExecutorChoice, Precision
from engine.events import Executor, Tier
from engine.model import Transformer
from engine.tiers.gpu_tiers import Budgets
from engine.tiers.wishes import parse_place
from kernels.cuda.device import Device
from kernels.quant_types import QuantType
from tests.engine.conftest import open_numpy
from tests.engine.cuda_models import opened_on
from tests.tiny_gguf import write_tiny_model

IDS = [int(i) for i in np.random.default_rng(3).integers(3, 320, 40)]
GO_ON = CancelToken()
FAST, FLOAT = 4e-2, 2e-5
"""Tolerances: shares of the largest logit. The processor rounds activations to 8 bits."""

Write = Callable[..., Path]
MODELS: dict[str, dict[str, object]] = {
    "llama": {"quant_type": QuantType.Q4_K, "layers": 4},
    "gemma3": {"architecture": "gemma3", "quant_type": QuantType.Q8_0, "layers": 7, "tied": True},
}
PLACES = {
    "feed-forward in memory": "blk.0-3.ffn=ram",
    "some of both in memory": "blk.1.ffn=ram,blk.2=ram",
    "some on disk": "blk.0.ffn=nvme,blk.2.ffn=ram,blk.3.ffn=nvme",
    "the head in memory": "head=ram,blk.1.ffn=ram",
}


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes a tiny model, each only once."""
    folder, written = tmp_path_factory.mktemp("mixed"), dict[str, Path]()

    def write(name: str) -> Path:
        if name not in written:
            written[name] = write_tiny_model(folder / f"{name}.gguf", **MODELS[name])  # type: ignore[arg-type]
        return written[name]

    return write


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Buffers of the link that a tiny block does not fit, so that it crosses in several copies."""
    for module in ("cuda_plan", "cuda_model"):
        monkeypatch.setattr(f"engine.backends.{module}.BUFFER_BYTES", 64 << 10)
    yield


def close(ours: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    return bool(np.max(np.abs(ours - expected)) < tolerance * np.max(np.abs(expected)))


def all_logits(model: Transformer, ids: list[int] = IDS) -> np.ndarray:
    """Of a prompt in two chunks, of steps of several sizes, and of edits in the middle of both: [T, V]."""
    kv = model.backend.new_kv(64)

    def run(first: int, last: int) -> np.ndarray:
        return model.logits(model.hidden(ids[first:last], first, kv, GO_ON), GO_ON)

    prompt = [run(0, 16), run(16, 26), run(26, 29)]
    steps = [run(position, position + 1) for position in range(29, 32)]
    edits = [run(12, 15), run(15, 16), run(16, 27), run(20, 21)]
    return np.concatenate([*prompt, *steps, *edits])


@pytest.mark.parametrize("precision", [Precision.FAST, Precision.FLOAT])
@pytest.mark.parametrize("executor", [ExecutorChoice.STREAM, ExecutorChoice.CPU])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_numpy(
    device: Device, write: Write, name: str, place: str, executor: ExecutorChoice, precision: Precision
) -> None:
    path, rules = write(name), parse_place(PLACES[place])
    expected = all_logits(open_numpy(path, precision=Precision.FLOAT))
    with opened_on(device, path, place=rules, executor=executor, precision=precision) as model:
        ours = all_logits(model)
        shown = model.backend.tiers.snapshot()
    assert close(ours, expected, FAST if precision is Precision.FAST else FLOAT)
    tiers = {block.tier for block in shown.blocks}
    assert {Tier.VRAM, Tier.RAM} <= tiers and (Tier.NVME in tiers) == ("nvme" in PLACES[place])
    assert shown.settled


def test_streamed_is_resident_bit_for_bit(device: Device, write: Write) -> None:
    path = write("llama")
    with opened_on(device, path) as model:
        expected = all_logits(model)
    rules = parse_place("blk.0-3.ffn=ram,blk.1.attn=ram")
    with opened_on(device, path, place=rules, executor=ExecutorChoice.STREAM, prefetch=2) as model:
        again = [all_logits(model) for _ in range(2)]
        places = model.backend.tiers.snapshot().blocks
    assert all(np.array_equal(each, expected) for each in again)
    assert sum(block.executor is Executor.STREAM for block in places) == 5


def test_a_pass_while_the_model_loads_is_that_of_later(device: Device, write: Write) -> None:
    path, rules = write("llama"), parse_place("blk.0-3.ffn=ram")
    with opened_on(device, path, place=rules, executor=ExecutorChoice.STREAM, settled=False) as model:
        assert not model.backend.tiers.settled
        first, later = all_logits(model), all_logits(model)
    assert np.array_equal(first, later)


def test_blocks_move_while_passes_run(device: Device, write: Write) -> None:
    path = write("llama")
    with opened_on(device, path) as model:
        expected = all_logits(model)
    stream = ExecutorChoice.STREAM
    with opened_on(device, path, executor=stream) as model:
        assert isinstance(model.backend, CudaBackend)
        tiers = model.backend.tiers
        assert tiers.whole
        for place in ("blk.0-3.ffn=ram", "blk.1.ffn=ram,blk.2.ffn=nvme,blk.3.attn=ram", "blk.0.ffn=nvme"):
            tiers.change(tiers.budgets, parse_place(place))
            assert np.array_equal(all_logits(model), expected)
            while tiers.pump(0.05):
                pass
            wanted = {rule.first for rule in parse_place(place)}
            assert {b.layer for b in tiers.snapshot().blocks if b.tier is not Tier.VRAM} >= wanted - {0, 3}
            assert np.array_equal(all_logits(model), expected)
        tiers.change(tiers.budgets, ())
        assert np.array_equal(all_logits(model), expected)
        while tiers.pump(0.05):
            pass
        assert tiers.whole
        assert np.array_equal(all_logits(model), expected)


def test_a_budget_that_is_too_small_changes_nothing(device: Device, write: Write) -> None:
    with opened_on(device, write("llama")) as model:
        tiers = model.backend.tiers
        before = tiers.snapshot().blocks
        with pytest.raises(Exception, match="GPU memory"):
            tiers.change(Budgets(vram=1 << 20, ram=tiers.budgets.ram))
        assert tiers.snapshot().blocks == before
