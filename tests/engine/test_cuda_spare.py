"""A block where long passes compute: steps find it there, prompts find their memory, whatever is late.

On the emulator with either stream late; the GPU computes everything, so that logits are those of the model
that fits, bit for bit.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.backends.cuda import CudaBackend
from engine.backends.cuda_weights import number_of
from engine.cancel import CancelToken
from engine.config import ExecutorChoice
from engine.errors import CancelledError
from engine.events import Executor, Tier
from engine.model import Transformer
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.tiers.blocks import Block
from engine.tiers.budget import Budget
from engine.tiers.gpu_memory import SPARE
from engine.tiers.gpu_tiers import GpuTiers
from engine.tiers.vram_order import VramOrder
from engine.tiers.wishes import parse_place
from kernels.quant_types import QuantType
from tests.engine import test_cuda_moves
from tests.engine.cuda_models import opened_on
from tests.engine.test_cuda_moves import EVEN, Driver, Late, Resident, StoppedAfter, Watch, World, pass_of
from tests.kernels.cuda import emulated_device
from tests.kernels.cuda.emulated_device import EmulatedDevice
from tests.tiny_gguf import write_tiny_model

pytestmark = pytest.mark.usefixtures("small_buffers")
IDS = [int(i) for i in np.random.default_rng(7).integers(3, 320, 48)]
GO_ON = CancelToken()
CHUNK = 16
N_LAYERS = 5


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := emulated_device.compiler_missing():
        pytest.skip(reason)
    pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")
    file = tmp_path_factory.mktemp("spare") / "spare.gguf"
    return write_tiny_model(file, quant_type=QuantType.Q4_K, layers=N_LAYERS)


@pytest.fixture(scope="module")
def whole_bytes(path: Path) -> int:
    """What all of the model takes of a GPU."""
    with opened_on(EmulatedDevice(), path, chunk=CHUNK) as model:
        return tiers_of(model).where.plan.vram_bytes


@pytest.fixture(scope="module")
def resident(path: Path) -> np.ndarray:
    """`reply` where all of the model is on the GPU."""
    with opened_on(EmulatedDevice(), path, chunk=CHUNK) as model:
        return reply(model)


@pytest.fixture
def opened(path: Path, whole_bytes: int) -> Callable[..., Any]:
    """The model with less of a GPU than it takes, so that some feed-forward blocks are in RAM."""

    @contextmanager
    def opened(late: Late = "lanes", **options: Any) -> Iterator[Transformer]:
        budget = Budget(whole_bytes - (300 << 10))
        chosen = {"vram_budget": budget, "executor": ExecutorChoice.STREAM, "rates": EVEN, **options}
        with opened_on(EmulatedDevice(late=late), path, chunk=CHUNK, **chosen) as model:
            yield model

    return opened


def tiers_of(model: Transformer) -> GpuTiers[Any]:
    tiers = model.backend.tiers
    assert isinstance(tiers, GpuTiers)
    return tiers


def spare_of(model: Transformer) -> Block:
    where = tiers_of(model).where
    assert where.plan.spare is not None
    return where.blocks[where.plan.spare]


def logits_of(
    model: Transformer,
    kv: Any,
    first: int,
    last: int,
    skip: SkipSet = NOTHING,
    cancel: CancelToken = GO_ON,
) -> np.ndarray:
    return model.logits(model.hidden(IDS[first:last], first, kv, cancel, skip), cancel)


def reply(model: Transformer, skip: SkipSet = NOTHING) -> np.ndarray:
    """Logits of a prompt, steps, drafts, another prompt of two passes, and steps again: [T, V]."""
    kv = model.backend.new_kv(64)
    ends = (0, 12, 13, 14, 18, 19, 35, 45, 46, 48)
    return np.concatenate([logits_of(model, kv, a, b, skip) for a, b in pairwise(ends)])


@pytest.mark.parametrize("late", ["lanes", "main"])
def test_logits_are_the_same_with_and_without(
    opened: Callable[..., Any], resident: np.ndarray, monkeypatch: pytest.MonkeyPatch, late: Late
) -> None:
    with opened(late) as model:
        assert spare_of(model).layer is not None
        again = [reply(model) for _ in range(2)]
    monkeypatch.setattr(VramOrder, "next_outside", lambda *args: None)
    with opened(late) as model:
        assert tiers_of(model).where.plan.spare is None
        again.append(reply(model))
    assert all(np.array_equal(each, resident) for each in again)


def test_it_is_copied_once_after_each_prompt_and_costs_steps_nothing(opened: Callable[..., Any]) -> None:
    with opened() as model:
        tiers, spare, kv = tiers_of(model), spare_of(model), model.backend.new_kv(64)
        bring: list[str] = []
        send = tiers._link.send_block
        slot = tiers._memory.in_slot(SPARE, spare)

        def send_block(pieces: Any, native: Any, places: Any) -> None:
            if places is slot.places:
                bring.append("spare")
            send(pieces, native, places)

        tiers._link.send_block = send_block  # type: ignore[method-assign]
        counts = []
        for first, last in ((0, 12), (12, 13), (13, 14), (14, 16), (16, 32), (32, 48), (12, 13), (13, 14)):
            logits_of(model, kv, first, last)
            counts.append(len(bring))
        assert counts == [0, 1, 1, 1, 1, 1, 2, 2]
        decode, prefill = tiers.where.route(1), tiers.where.route(CHUNK)
    assert not any(spare in run.blocks for run in decode if run.executor is Executor.STREAM)
    assert any(spare in run.blocks and len(run.blocks) > 1 for run in decode)  # one graph with its neighbours
    assert any(run.blocks == (spare,) for run in prefill if run.executor is Executor.STREAM)


def test_its_copy_waits_for_the_prompt_before_it(
    opened: Callable[..., Any], resident: np.ndarray, whole_bytes: int
) -> None:
    """Nobody has read what the prompt gave when the step begins: the GPU may not have computed it yet.

    Behind the last block that is copied for the prompt there are some more, which no other copy waits for.
    """
    rules, budget = parse_place("blk.3-4=vram,head=vram"), Budget(whole_bytes - (100 << 10))
    with opened("main", place=rules, vram_budget=budget) as model:
        assert spare_of(model).layer in range(3)
        kv = model.backend.new_kv(64)
        logits_of(model, kv, 0, 12)
        for _ in range(2):
            model.hidden(IDS[:12], 0, kv, GO_ON)
            assert np.array_equal(logits_of(model, kv, 12, 13), resident[12:13])


@pytest.mark.parametrize("late", ["lanes", "main"])
def test_a_prompt_waits_for_a_copy_that_no_step_has_used(
    opened: Callable[..., Any], resident: np.ndarray, late: Late
) -> None:
    with opened(late) as model:
        kv = model.backend.new_kv(64)
        for _ in range(2):
            assert np.array_equal(logits_of(model, kv, 0, 12), resident[:12])
            with suppress(CancelledError):  # once its copies are under way, before any block
                logits_of(model, kv, 12, 13, cancel=StoppedAfter(1))
            assert tiers_of(model)._spare._there is not None


def test_a_prompt_that_finds_all_on_the_gpu_takes_the_memory_too(
    opened: Callable[..., Any], resident: np.ndarray
) -> None:
    """Where a pass leaves out what is elsewhere, nothing is copied that would wait for the spare block."""
    with opened() as model:
        tiers, kv = tiers_of(model), model.backend.new_kv(64)
        numbers = {number_of(block) for block in tiers.where.blocks if block.layer is not None}
        skip = frozenset(numbers - tiers.near)
        expected = logits_of(model, kv, 0, 12, skip)
        logits_of(model, kv, 0, 12)
        assert np.array_equal(logits_of(model, kv, 12, 13), resident[12:13])
        assert np.array_equal(logits_of(model, kv, 0, 12, skip), expected)
        logits_of(model, kv, 0, 12)
        with suppress(CancelledError):
            logits_of(model, kv, 12, 13, cancel=StoppedAfter(1))
        assert np.array_equal(logits_of(model, kv, 0, 12, skip), expected)
        logits_of(model, kv, 0, 12)
        assert np.array_equal(logits_of(model, kv, 12, 13), resident[12:13])


@pytest.mark.parametrize("late", ["lanes", "main"])
def test_another_budget_in_the_middle_of_a_reply(
    opened: Callable[..., Any], resident: np.ndarray, whole_bytes: int, late: Late
) -> None:
    seen = set()
    with opened(late) as model:
        tiers, kv = tiers_of(model), model.backend.new_kv(64)
        for less in (500 << 10, 100 << 10, 600 << 10, 0, 300 << 10):
            assert np.array_equal(logits_of(model, kv, 0, 12), resident[:12])
            assert np.array_equal(logits_of(model, kv, 12, 13), resident[12:13])
            tiers.change(tiers.where.budgets._replace(vram=whole_bytes - less))
            assert np.array_equal(logits_of(model, kv, 13, 14), resident[13:14])
            tiers.settle(GO_ON)
            assert np.array_equal(logits_of(model, kv, 14, 18), resident[14:18])
            seen.add(tiers.where.plan.spare)
    assert len(seen) > 2


def test_passes_that_leave_blocks_out(opened: Callable[..., Any], path: Path) -> None:
    sets = (frozenset({1, 5, 9}), frozenset({0, 1, 2, 3}))
    with opened_on(EmulatedDevice(), path, chunk=CHUNK) as model:
        expected = {skip: reply(model, skip) for skip in (NOTHING, *sets)}
    with opened() as model:
        tiers = tiers_of(model)
        for skip in (*sets, NOTHING):
            tiers.leave_out(skip)
            idle = {tiers.where.host.layer_blocks[number].index for number in skip}
            assert tiers.where.plan.spare not in idle
            assert np.array_equal(reply(model, skip), expected[skip])
            tiers.settle(GO_ON)
            assert np.array_equal(reply(model, skip), expected[skip])


def test_a_block_that_a_person_places_elsewhere_is_replaced(
    opened: Callable[..., Any], resident: np.ndarray
) -> None:
    with opened() as model:
        tiers, kv = tiers_of(model), model.backend.new_kv(64)
        for tier in ("ram", "nvme", "vram"):
            before = spare_of(model)
            assert np.array_equal(logits_of(model, kv, 0, 12), resident[:12])
            assert np.array_equal(logits_of(model, kv, 12, 13), resident[12:13])
            tiers.change(tiers.where.budgets, parse_place(f"blk.{before.layer}.ffn={tier}"))
            assert np.array_equal(logits_of(model, kv, 13, 14), resident[13:14])
            tiers.settle(GO_ON)
            assert tiers.where.plan.spare != before.index
            assert np.array_equal(logits_of(model, kv, 14, 18), resident[14:18])
            tiers.change(tiers.where.budgets, ())
            tiers.settle(GO_ON)


def test_it_gives_way_in_ram(
    opened: Callable[..., Any], resident: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that leaves RAM is spare no more: the GPU takes it from the disk, as others."""
    world = World()
    monkeypatch.setattr("engine.backends.cuda_open.MemoryWatch", lambda: Watch(world))
    with opened() as model:
        tiers, kv = tiers_of(model), model.backend.new_kv(64)
        spare = spare_of(model)
        assert np.array_equal(logits_of(model, kv, 0, 12), resident[:12])
        assert np.array_equal(logits_of(model, kv, 12, 13), resident[12:13])
        world.deficit = 1 << 30
        for _ in range(2):
            assert np.array_equal(logits_of(model, kv, 13, 14), resident[13:14])
        assert tiers.where.host.resident(spare) is None
        assert tiers.where.plan.spare is None
        assert tiers.snapshot().blocks[spare.index].executor is Executor.STREAM


def test_people_see_where_it_is(opened: Callable[..., Any]) -> None:
    with opened() as model:
        tiers, spare = tiers_of(model), spare_of(model)
        shown = tiers.snapshot()
        copied = [block for block in shown.blocks if block.executor is Executor.STREAM]
        assert shown.pass_copy_bytes == sum(block.n_bytes for block in copied)
        place = shown.blocks[spare.index]
        assert (place.tier, place.executor) == (Tier.RAM, Executor.GPU)
        assert "are copied after each prompt" in tiers.notices[0]


def test_it_takes_no_memory(opened: Callable[..., Any]) -> None:
    with opened() as model:
        backend, spare = model.backend, spare_of(model)
        assert isinstance(backend, CudaBackend)
        prompt: Any = backend._model.prompt
        matrices = backend._model.in_slot(SPARE, number_of(spare))
        assert matrices is backend._model.in_slot(SPARE, number_of(spare))
        first = prompt.memory.ctypes.data
        for place in matrices.places.values():
            data: Any = place.matrix.data
            assert first <= data.ctypes.data <= first + prompt.memory.nbytes - data.nbytes


@pytest.mark.parametrize("late", ["lanes", "main"])
def test_whatever_happens(
    opened: Callable[..., Any],
    path: Path,
    whole_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
    late: Late,
) -> None:
    """Passes, stopped ones too, in any order with what moves blocks, in budgets that hold most of them."""
    actions = ("pass", "pass", "drafts", "leave out", "stop", "stop", "change", "pump", "settle")
    monkeypatch.setattr(test_cuda_moves, "ACTIONS", actions)
    monkeypatch.setattr(test_cuda_moves, "WISHES", ("", "", "blk.1.ffn=ram", "blk.0.ffn=nvme"))
    monkeypatch.setattr(test_cuda_moves, "LONGEST", CHUNK)
    world, rng = World(), random.Random(late)
    with opened_on(EmulatedDevice(), path, chunk=CHUNK) as fitting, opened(late, settled=False) as model:
        kv = fitting.backend.new_kv(64)
        weight_bytes = sum(block.n_bytes for block in tiers_of(fitting).where.blocks)
        expected = functools.cache(lambda n_tokens, skip: pass_of(fitting, kv, n_tokens, skip=skip))
        driver = Driver(model, world, Resident(path, whole_bytes, weight_bytes, expected), exact=True)
        driver.check_pass(CHUNK)
        assert tiers_of(model)._spare._there is spare_of(model)
        for _ in range(16):
            driver.act(rng)
