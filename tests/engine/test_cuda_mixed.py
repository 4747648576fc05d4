"""Models of which a GPU holds a part, emulated and on a GPU: the logits are those of the model that fits."""

from __future__ import annotations

import functools
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import errors
from engine.backends.cuda import CudaBackend
from engine.cancel import CancelToken
from engine.config import ExecutorChoice, Precision
from engine.events import Executor, Tier
from engine.model import Transformer
from engine.tiers.gpu_tiers import GpuTiers
from engine.tiers.tier_plan import Budgets
from engine.tiers.wishes import parse_place, wanted_tiers
from kernels.cuda.device import Device
from kernels.errors import DeviceError
from kernels.quant_types import QuantType
from tests.engine.conftest import open_numpy
from tests.engine.cuda_models import Borrowed, opened_on
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
COMBINATIONS = (
    ("llama", ExecutorChoice.STREAM, Precision.FLOAT),
    ("llama", ExecutorChoice.CPU, Precision.FAST),
    ("gemma3", ExecutorChoice.STREAM, Precision.FAST),
    ("gemma3", ExecutorChoice.CPU, Precision.FLOAT),
)
"""With every place; any two of model, executor, precision and place come together."""


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes a tiny model, each only once."""
    folder, written = tmp_path_factory.mktemp("mixed"), dict[str, Path]()

    def write(name: str) -> Path:
        if name not in written:
            written[name] = write_tiny_model(folder / f"{name}.gguf", **MODELS[name])  # type: ignore[arg-type]
        return written[name]

    return write


@pytest.fixture(scope="module")
def on_numpy(write: Write) -> Callable[[str], np.ndarray]:
    """`all_logits` of a model, computed only once."""

    @functools.cache
    def logits(name: str) -> np.ndarray:
        return all_logits(open_numpy(write(name), precision=Precision.FLOAT))

    return logits


@pytest.fixture(scope="module")
def resident(device: Device, write: Write) -> np.ndarray:
    """`all_logits` of the first model where all of it is on the GPU."""
    with opened_on(device, write("llama")) as model:
        return all_logits(model)


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Buffers of the link that a tiny block does not fit, so that it crosses in several copies."""
    for module in ("cuda_plan", "cuda_model"):
        monkeypatch.setattr(f"engine.backends.{module}.BUFFER_BYTES", 64 << 10)
    yield


def close(ours: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    return bool(np.max(np.abs(ours - expected)) < tolerance * np.max(np.abs(expected)))


def tiers_of(model: Transformer) -> GpuTiers[Any]:
    tiers = model.backend.tiers
    assert isinstance(tiers, GpuTiers)
    return tiers


def prompt_logits(model: Transformer) -> np.ndarray:
    """The first rows of `all_logits`."""
    kv = model.backend.new_kv(64)
    return model.logits(model.hidden(IDS[:16], 0, kv, GO_ON), GO_ON)


def all_logits(model: Transformer, ids: list[int] = IDS) -> np.ndarray:
    """Of a prompt in two chunks, of steps of several sizes, and of edits in the middle of both: [T, V]."""
    kv = model.backend.new_kv(64)

    def run(first: int, last: int) -> np.ndarray:
        return model.logits(model.hidden(ids[first:last], first, kv, GO_ON), GO_ON)

    prompt = [run(0, 16), run(16, 26), run(26, 29)]
    steps = [run(position, position + 1) for position in range(29, 32)]
    edits = [run(12, 15), run(15, 16), run(16, 27), run(20, 21)]
    return np.concatenate([*prompt, *steps, *edits])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("name", "executor", "precision"), COMBINATIONS)
def test_logits_are_those_of_numpy(
    device: Device,
    write: Write,
    on_numpy: Callable[[str], np.ndarray],
    name: str,
    place: str,
    executor: ExecutorChoice,
    precision: Precision,
) -> None:
    rules = parse_place(PLACES[place])
    with opened_on(device, write(name), place=rules, executor=executor, precision=precision) as model:
        ours = all_logits(model)
        shown = tiers_of(model).snapshot()
    assert close(ours, on_numpy(name), FAST if precision is Precision.FAST else FLOAT)
    tiers = {block.tier for block in shown.blocks}
    assert {Tier.VRAM, Tier.RAM} <= tiers and (Tier.NVME in tiers) == ("nvme" in PLACES[place])
    assert shown.settled


def test_the_processor_computes_at_any_position(device: Device, write: Write) -> None:
    logits = []
    for rules in ((), parse_place("blk.0-3.ffn=ram"), parse_place("blk.2.ffn=nvme")):
        with opened_on(
            device,
            write("llama"),
            max_context=512,
            place=rules,
            executor=ExecutorChoice.CPU,
            precision=Precision.FLOAT,
        ) as model:
            kv = model.backend.new_kv(512)
            passes = [(0, 3), (300, 301), (301, 304), (504, 512)]
            logits.append([model.logits(model.hidden(IDS[: b - a], a, kv, GO_ON), GO_ON) for a, b in passes])
    for ours in logits[1:]:
        assert all(close(mine, whole, FLOAT) for mine, whole in zip(ours, logits[0], strict=True))


def test_streamed_is_resident_bit_for_bit(device: Device, write: Write, resident: np.ndarray) -> None:
    path = write("llama")
    rules = parse_place("blk.0-3.ffn=ram,blk.1.attn=ram")
    with opened_on(device, path, place=rules, executor=ExecutorChoice.STREAM, prefetch=2) as model:
        again = [all_logits(model) for _ in range(2)]
        places = tiers_of(model).snapshot().blocks
    assert all(np.array_equal(each, resident) for each in again)
    assert sum(block.executor is Executor.STREAM for block in places) == 5


@pytest.mark.parametrize("fails", [False, True])
def test_copies_are_put_on_the_way_while_the_processor_computes(
    device: Device, write: Write, on_numpy: Callable[[str], np.ndarray], fails: bool
) -> None:
    """The processor gets no further before a copy is under way, and no pass ends before it."""
    rules = parse_place("blk.0-3.ffn=ram")
    with opened_on(device, write("llama"), place=rules, executor=ExecutorChoice.HYBRID) as model:
        tiers = tiers_of(model)
        assert sorted(tiers.where.plan.executors().values()).count(Executor.STREAM) == 2
        assert close(all_logits(model), on_numpy("llama"), FAST)
        mixed: Any = model.backend._mixed  # type: ignore[attr-defined]
        link: Any = tiers._link
        compute, send, began = mixed._processor.run, link.send_block, threading.Event()
        calls: list[str] = []

        def run(*args: Any) -> None:
            if tiers.can_copy:
                assert began.wait(10)
                time.sleep(0.05)
            compute(*args)
            calls.append("computed")

        def send_block(*args: Any) -> None:
            calls.append("sent")
            began.set()
            if fails:
                raise DeviceError("no way")
            send(*args)

        mixed._processor.run, link.send_block = run, send_block
        kv = model.backend.new_kv(64)
        if fails:
            with pytest.raises(errors.DeviceError):
                model.logits(model.hidden(IDS[:1], 0, kv, GO_ON), GO_ON)
            assert calls[-2:] == ["sent", "computed"]
        else:
            model.logits(model.hidden(IDS[:1], 0, kv, GO_ON), GO_ON)
            assert (calls.count("sent"), calls.count("computed")) == (2, 2)


def test_a_gpu_that_another_thread_cannot_enter_is_an_error_of_the_engine(
    device: Device, write: Write, on_numpy: Callable[[str], np.ndarray]
) -> None:
    class Closed(Borrowed):
        open = False

        def enter(self) -> None:
            if not self.open:
                raise DeviceError("no way in")
            self._device.enter()

    closed, rules = Closed(device), parse_place("blk.0-3.ffn=ram")
    with opened_on(closed, write("llama"), place=rules, executor=ExecutorChoice.HYBRID) as model:
        kv = model.backend.new_kv(64)
        with pytest.raises(errors.DeviceError, match="no way in"):
            model.logits(model.hidden(IDS[:1], 0, kv, GO_ON), GO_ON)
        closed.open = True
        assert close(all_logits(model), on_numpy("llama"), FAST)


def test_a_pass_while_the_model_loads_is_that_of_later(device: Device, write: Write) -> None:
    path, rules = write("llama"), parse_place("blk.0-3.ffn=ram")
    with opened_on(device, path, place=rules, executor=ExecutorChoice.STREAM, settled=False) as model:
        assert not tiers_of(model).where.settled
        first, later = all_logits(model), all_logits(model)
    assert np.array_equal(first, later)


def test_blocks_move_while_passes_run(device: Device, write: Write, resident: np.ndarray) -> None:
    places = ("blk.0-3.ffn=ram", "blk.1.ffn=ram,blk.2.ffn=nvme,blk.3.attn=ram", "blk.0.ffn=nvme")
    with opened_on(device, write("llama"), executor=ExecutorChoice.STREAM) as model:
        tiers = tiers_of(model)
        assert tiers.where.whole
        for rules in (*map(parse_place, places), ()):
            tiers.change(tiers.where.budgets, rules)
            assert np.array_equal(prompt_logits(model), resident[:16])
            tiers.settle(GO_ON)
            shown = tiers.snapshot().blocks
            outside = {index for index, block in enumerate(shown) if block.tier is not Tier.VRAM}
            assert outside == wanted_tiers(rules, tiers.where.blocks).keys()
            assert np.array_equal(prompt_logits(model), resident[:16])
        assert tiers.where.whole
        assert np.array_equal(all_logits(model), resident)


def test_memory_that_all_blocks_have_left_is_let_go(
    device: Device, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its addresses too: pages that parts of the head share are given back with them alone."""
    monkeypatch.setattr("engine.backends.cuda_open.n_readers", lambda: 12)  # most have nothing to read then
    rules = parse_place("blk.0-2.ffn=ram")
    with opened_on(device, write("llama"), place=rules, executor=ExecutorChoice.CPU) as model:
        tiers = tiers_of(model)
        all_logits(model)
        left = tiers.where.host.resident(tiers.where.blocks[2])
        assert left is not None
        assert isinstance(left[0].base, np.ndarray)
        region = weakref.ref(left[0].base)
        del left
        tiers.change(tiers.where.budgets, parse_place("blk.3.ffn=ram"))
        tiers.settle(GO_ON)
        assert region() is not None  # who computes has not heard of it
        all_logits(model)
        gc.collect()
        assert region() is None


def test_only_the_runs_of_the_present_arrangement_are_graphs(device: Device, write: Write) -> None:
    places = ("blk.0-1.ffn=ram", "blk.1-3.ffn=ram", "blk.0.ffn=ram")
    with opened_on(device, write("llama"), executor=ExecutorChoice.STREAM, settled=False) as model:
        tiers, backend = tiers_of(model), model.backend
        assert isinstance(backend, CudaBackend)
        graphs, kv = backend._model.step.graphs, backend.new_kv(64)

        def steps() -> int:
            """Graphs after steps of one token and of two."""
            for position in range(4):
                model.hidden(IDS[: 1 + position % 2], position, kv, GO_ON)
            return len(graphs)

        before = len(graphs)
        assert not tiers.where.settled
        model.hidden(IDS[:1], 0, kv, GO_ON)
        assert len(graphs) == before
        tiers.settle(GO_ON)
        for rules in map(parse_place, places):
            tiers.change(tiers.where.budgets, rules)
            model.hidden(IDS[:1], 0, kv, GO_ON)
            tiers.settle(GO_ON)
            runs = tiers.where.route(1)
            assert 2 * len(runs) <= steps() <= 2 * len(runs) * tiers.where.plan.slots
            assert steps() <= 2 * len(runs) * tiers.where.plan.slots


def test_a_budget_that_is_too_small_changes_nothing(device: Device, write: Write) -> None:
    with opened_on(device, write("llama")) as model:
        tiers = tiers_of(model)
        before = tiers.snapshot().blocks
        with pytest.raises(Exception, match="GPU memory"):
            tiers.change(Budgets(vram=1 << 20, ram=tiers.where.budgets.ram))
        assert tiers.snapshot().blocks == before
