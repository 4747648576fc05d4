"""Blocks that move between three tiers while something goes wrong: passes stay right, nothing is left over.

Sequences drawn at random of passes, stopped passes, blocks that are left out, other wishes and budgets,
memory that others take, and a disk that fails; on the emulator with either stream late. Whatever happens, the
logits of a pass that ends are those of the model that fits, bit for bit where the GPU alone computes.
"""

from __future__ import annotations

import errno
import functools
import gc
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest

from engine.backends.cuda import CudaBackend
from engine.backends.cuda_weights import number_of
from engine.cancel import CancelToken
from engine.config import ExecutorChoice
from engine.errors import BudgetError, CancelledError, DeviceError, StreamError
from engine.events import Tier
from engine.model import Transformer
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.tiers.budget import Budget
from engine.tiers.gpu_tiers import GpuTiers
from engine.tiers.rates import LinkRates, Rates
from engine.tiers.tier_plan import Budgets
from engine.tiers.wishes import parse_place
from kernels.cuda.device import Array
from kernels.errors import DeviceMemoryError
from kernels.quant_types import QuantType
from tests.engine.cuda_models import Borrowed, opened_on
from tests.kernels.cuda import emulated_device
from tests.kernels.cuda.emulated_device import EmulatedDevice
from tests.tiny_gguf import write_tiny_model

LONGEST, CHUNK = 20, 32
pytestmark = pytest.mark.usefixtures("small_buffers")
IDS = [int(i) for i in np.random.default_rng(5).integers(3, 320, LONGEST + 1)]
GO_ON = CancelToken()
FAST = 4e-2
"""Share of the largest logit that the processor's rounding of activations may cost."""
PLENTY = Budgets(vram=1 << 29, ram=1 << 29)
WISHES = (
    "",
    "blk.0-2.ffn=ram",
    "blk.0-2=ram",
    "blk.1.ffn=ram,blk.2=nvme",
    "blk.0-2.ffn=nvme",
    "blk.0.attn=nvme,blk.1.ffn=ram,head=ram",
    "blk.0=ram,blk.2.ffn=nvme,head=nvme",
)
LEFT_OUT: tuple[SkipSet, ...] = (
    NOTHING,
    frozenset({1}),
    frozenset({2, 5}),
    frozenset({0, 1, 4, 5}),
    frozenset(range(6)),
)
EVEN = Rates(
    dram=1e8,
    gemv={},
    disk=1e8,
    cpu_flops=1e12,
    link=LinkRates(
        vram=1e12, h2d=1e8, h2d_beside_cpu=1e8, cpu_beside_h2d=1.0, matrix_flops=1e15, crossing_s=0.0
    ),
)
"""Copies are as fast as the processor: both have work."""
_PATIENCE_S = 20.0

Late = Literal["lanes", "main"]
Expected = Callable[[int, SkipSet], tuple[np.ndarray, np.ndarray]]


class StoppedAfter(CancelToken):
    """Cancels itself when it has been looked at so often."""

    def __init__(self, n_looks: int) -> None:
        super().__init__()
        self._left = n_looks

    @property
    def cancelled(self) -> bool:
        self._left -= 1
        if self._left < 0:
            self.cancel()
        return super().cancelled


class Patience(CancelToken):
    """Cancels itself after a while, so that what hangs fails."""

    def __init__(self) -> None:
        super().__init__()
        self._deadline = time.monotonic() + _PATIENCE_S

    @property
    def cancelled(self) -> bool:
        return time.monotonic() > self._deadline


@dataclass
class World:
    """What is outside the engine, and can go wrong."""

    deficit: int = 0
    """Bytes that the system is short of, told once."""
    needed: int | None = None
    """Bytes of the GPU's budget that other programs need, told once."""
    most_bytes: int = 1 << 40
    """Of the GPU that can be had."""
    disk_fails: Callable[[], bool] = field(default=lambda: False)


class CrowdedDevice(Borrowed):
    """A device that other programs use, too."""

    def __init__(self, device: EmulatedDevice, world: World) -> None:
        super().__init__(device)
        self._world, self._emulated = world, device

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Array:
        n_bytes, used = int(np.prod(shape)) * np.dtype(dtype).itemsize, self._emulated.used_bytes
        if used + n_bytes > self._world.most_bytes:
            raise DeviceMemoryError(n_bytes, self._world.most_bytes - used, None, used)
        return self._device.empty(shape, dtype)


class Watch:
    """The system's memory, as `MemoryWatch` tells of it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def deficit(self) -> int:
        deficit, self._world.deficit = self._world.deficit, 0
        return deficit


class Pressure:
    """The GPU's memory, as `VramPressure` tells of it."""

    yielded = 0

    def __init__(self, world: World) -> None:
        self._world = world

    def forget(self) -> None:
        self._world.needed = None

    def to_yield(self) -> int | None:
        needed, self._world.needed = self._world.needed, None
        return needed


class Resident(NamedTuple):
    """A model of which every block is of some runs of rows, and what it computes where it fits."""

    path: Path
    vram_bytes: int
    """Of all of it."""
    weight_bytes: int
    expected: Expected
    """What `pass_of` gives for so many tokens and these blocks left out."""


MODELS: dict[str, dict[str, Any]] = {
    "llama": {"quant_type": QuantType.Q4_K, "layers": 3},
    "gemma3": {"architecture": "gemma3", "quant_type": QuantType.Q8_0, "layers": 3, "tied": True},
}


@pytest.fixture(scope="module", params=MODELS)
def resident(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, small_buffers: None
) -> Iterator[Resident]:
    """Each of the models."""
    if reason := emulated_device.compiler_missing():
        pytest.skip(reason)
    pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")
    path = write_tiny_model(tmp_path_factory.mktemp("moves") / "moves.gguf", **MODELS[request.param])
    device: Any = EmulatedDevice()
    with opened_on(device, path, chunk=CHUNK) as model:
        kv, tiers = model.backend.new_kv(64), model.backend.tiers
        assert isinstance(tiers, GpuTiers)
        weight_bytes = sum(block.n_bytes for block in tiers.where.blocks)
        expected = functools.cache(lambda n_tokens, skip: pass_of(model, kv, n_tokens, skip=skip))
        yield Resident(path, tiers.where.plan.vram_bytes, weight_bytes, expected)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Small pieces of everything, and somebody who can take it away."""
    world = World()
    monkeypatch.setattr("engine.tiers.loader.RUN_BYTES", 24 << 10)
    monkeypatch.setattr("engine.tiers.vram_moves._MOVING_BYTES", 100 << 10)
    monkeypatch.setattr("engine.tiers.arrivals._AT_ONCE", 3)
    monkeypatch.setattr("engine.backends.cuda_open.MemoryWatch", lambda: Watch(world))
    monkeypatch.setattr("engine.tiers.gpu_tiers.VramPressure", lambda read: Pressure(world))
    real = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], position: int, flags: int = 0) -> int:
        if world.disk_fails():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, buffers, position, flags)

    monkeypatch.setattr("engine.tiers.direct_io.os.preadv", preadv)
    return world


def pass_of(
    model: Transformer, kv: Any, n_tokens: int, cancel: CancelToken = GO_ON, skip: SkipSet = NOTHING
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of so many tokens from the beginning, and of one after them."""
    prompt = model.logits(model.hidden(IDS[:n_tokens], 0, kv, cancel, skip), cancel)
    step = model.logits(model.hidden(IDS[n_tokens : n_tokens + 1], n_tokens, kv, cancel, skip), cancel)
    return prompt, step


def test_a_plan_of_last_resort_counts_what_blocks_leave_and_slots_take(resident: Resident) -> None:
    device: Any = EmulatedDevice()
    with opened_on(device, resident.path, chunk=CHUNK) as model:
        tiers: Any = model.backend.tiers
        where, moves = tiers.where, tiers._moves
        last = moves._last_blocks(1)
        plan = moves._outside(last)
        left = sum(where.blocks[index].n_bytes for index in last)
        assert left > 0
        assert plan.ring_bytes > 0
        assert plan.vram == where.plan.vram - last
        assert plan.vram_bytes == where.plan.vram_bytes - left + plan.ring_bytes


class Driver:
    """One model in that world, and what was seen of it."""

    def __init__(self, model: Transformer, world: World, resident: Resident, *, exact: bool) -> None:
        assert isinstance(model.backend, CudaBackend)
        self.model, self.world, self.expected = model, world, resident.expected
        self.tiers: GpuTiers[Any] = model.backend.tiers
        self.kv = model.backend.new_kv(64)
        self.exact = exact and not self.tiers.where.plan.cpu_attention
        self.whole, self.n_bytes = resident.vram_bytes, resident.weight_bytes

    def check_pass(self, n_tokens: int, skip: SkipSet = NOTHING) -> None:
        head_on_gpu = self.tiers.where.head_on_gpu
        logits = pass_of(self.model, self.kv, n_tokens, skip=skip)
        exact = self.exact and head_on_gpu and self.tiers.where.head_on_gpu
        for ours, theirs in zip(logits, self.expected(n_tokens, skip), strict=True):
            if exact:
                assert np.array_equal(ours, theirs)
            else:
                assert np.max(np.abs(ours - theirs)) < FAST * np.max(np.abs(theirs))
        self.check_blocks()

    def stop_pass(self, n_tokens: int, n_looks: int) -> None:
        with suppress(CancelledError):
            pass_of(self.model, self.kv, n_tokens, StoppedAfter(n_looks))

    def settle(self) -> None:
        """Wait until nothing moves, and look whether all is where it was to be."""
        self.tiers.settle(Patience())
        self.check_blocks()
        assert self.tiers.where.settled
        shown = self.tiers.snapshot()
        in_vram = {index for index, each in enumerate(shown.blocks) if each.tier is Tier.VRAM}
        assert in_vram == self.tiers.where.plan.vram
        held = self.model.backend._model.weights  # type: ignore[attr-defined]
        layers = [block for block in self.tiers.where.blocks if block.layer is not None]
        assert held.blocks.keys() == {number_of(b) for b in layers if b.index in in_vram}
        stay = {index for index, each in enumerate(shown.blocks) if each.tier is Tier.RAM}
        assert stay == self.tiers.where.host.plan.resident

    def check_blocks(self) -> None:
        """Every block is shown once, somewhere."""
        shown = self.tiers.snapshot()
        assert [each.name for each in shown.blocks] == [block.name for block in self.tiers.where.blocks]
        assert shown.vram_bytes == sum(each.n_bytes for each in shown.blocks if each.tier is Tier.VRAM)
        assert all(0 <= share <= 1 for _, share in shown.in_flight)

    def change(self, rng: random.Random) -> None:
        wishes = rng.choice(WISHES)
        vram = rng.choice((PLENTY.vram, self.whole - rng.randrange(self.n_bytes)))
        ram = rng.choice((PLENTY.ram, rng.randrange(2 * self.n_bytes)))
        try:
            self.tiers.change(Budgets(vram, ram), parse_place(wishes) if wishes else ())
        except BudgetError:
            self.check_blocks()

    def act(self, rng: random.Random) -> None:
        """Do one thing at random, and recover from it."""
        world, n_tokens = self.world, rng.randint(1, LONGEST)
        match rng.choice(ACTIONS):
            case "pass":
                self.check_pass(n_tokens)
            case "drafts":  # which leave out what others do not
                for _ in range(rng.randint(1, 3)):
                    self.check_pass(n_tokens, rng.choice(LEFT_OUT))
            case "leave out":
                skip = rng.choice(LEFT_OUT)
                self.tiers.leave_out(skip)
                self.check_pass(n_tokens, skip)
                shown, blocks = self.tiers.snapshot(), self.tiers.where.host.layer_blocks
                assert shown.skipped == {blocks[number].index for number in skip}
            case "stop":
                self.stop_pass(n_tokens, rng.randint(0, 12))
            case "change":
                self.change(rng)
            case "pump":
                for _ in range(rng.randint(1, 4)):
                    self.tiers.pump(rng.choice((0.0, 0.005)))
            case "settle":
                self.settle()
            case "memory is short":
                world.deficit = rng.choice((1 << 10, 200_000, 1 << 30))
                self.check_pass(n_tokens)
            case "GPU memory is short":
                left = self.whole - rng.randrange(self.n_bytes)
                world.needed = max(0, self.tiers.where.budgets.vram - left) if rng.random() < 0.7 else 0
                self.check_pass(n_tokens)
            case "GPU memory is full":
                world.most_bytes = self.model.backend.device.used_bytes  # type: ignore[attr-defined]
                self.change(rng)
                try:
                    self.check_pass(n_tokens)
                except DeviceError:  # nothing is left that could leave for a slot, and the next pass has room
                    where = self.tiers.where
                    assert where.in_vram.isdisjoint(where.plan.layer_blocks)
                for _ in range(3):
                    self.tiers.pump(0.005)
                world.most_bytes = 1 << 40
                self.check_pass(n_tokens)
            case "disk fails":
                world.disk_fails = lambda: rng.random() < 0.5
                self.change(rng)
                for _ in range(2):
                    with suppress(StreamError):
                        self.check_pass(n_tokens)
                world.disk_fails = lambda: False
                self.check_pass(n_tokens)


ACTIONS = (
    *("pass", "pass", "stop", "change", "change", "pump", "settle", "memory is short"),
    *("drafts", "leave out", "leave out"),
    *("GPU memory is short", "GPU memory is full", "disk fails"),
)


@pytest.mark.parametrize("seed", range(2, 4))
@pytest.mark.parametrize("executor", [ExecutorChoice.STREAM, ExecutorChoice.CPU, ExecutorChoice.AUTO])
@pytest.mark.parametrize("late", ["lanes", "main"])
def test_whatever_happens(
    resident: Resident,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    late: Late,
    executor: ExecutorChoice,
    seed: int,
) -> None:
    # Where it is free, each step may show other rates, and so another executor.
    monkeypatch.setattr("engine.tiers.step_pace._LEAST_STEPS", 1)
    monkeypatch.setattr("engine.tiers.step_pace._LEAST_S", 0.0)
    monkeypatch.setattr("engine.tiers.other_executors._LEAST_GAIN", 0.0)
    rng = random.Random(f"{late} {executor} {seed}")
    device = EmulatedDevice(late=late, backwards=bool(seed % 2))
    wishes = rng.choice(WISHES)
    options: dict[str, Any] = {"executor": executor, "chunk": CHUNK, "settled": False}
    options["place"] = parse_place(wishes) if wishes else ()
    options["rates"] = EVEN if executor is ExecutorChoice.AUTO else None
    if rng.random() < 0.5:  # a ring of the largest blocks fits beside less of them
        options["vram_budget"] = Budget(resident.vram_bytes - rng.randrange(resident.weight_bytes // 3))
    with opened_on(CrowdedDevice(device, world), resident.path, **options) as model:
        driver = Driver(model, world, resident, exact=executor is ExecutorChoice.STREAM)
        for _ in range(7):
            driver.act(rng)
        driver.check_pass(rng.randint(1, LONGEST))
        if seed % 2:
            driver.settle()
    del model, driver
    gc.collect()
    assert device.used_bytes == 0 and device.locked_bytes == 0


def test_memory_that_was_counted_on_is_not_there(resident: Resident, world: World) -> None:
    """On a GPU that others have filled meanwhile, blocks of a model that fits leave for the ring."""
    device = EmulatedDevice()
    with opened_on(
        CrowdedDevice(device, world), resident.path, chunk=CHUNK, executor=ExecutorChoice.STREAM
    ) as model:
        driver = Driver(model, world, resident, exact=True)
        world.most_bytes = device.used_bytes
        for wishes in ("blk.1.ffn=ram", "blk.0-2=ram", "blk.0-2.ffn=nvme", "blk.0.ffn=ram"):
            try:
                driver.tiers.change(PLENTY, parse_place(wishes))
            except BudgetError as error:
                assert "other programs" in str(error)
            driver.check_pass(CHUNK // 2)
            driver.settle()
            driver.check_pass(1)
        world.most_bytes = 1 << 40
        driver.tiers.change(PLENTY, ())
        driver.settle()
        assert driver.tiers.where.whole
        driver.check_pass(1)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("executor", [ExecutorChoice.STREAM, ExecutorChoice.CPU, ExecutorChoice.AUTO])
def test_blocks_leave_the_gpu_for_those_that_memory_has_no_room_for_any_more(
    resident: Resident, world: World, executor: ExecutorChoice, full: bool
) -> None:
    """They come from disk to a slot that was not counted on: within the budget, and where the GPU is full."""
    device = EmulatedDevice()
    budget = Budget(resident.vram_bytes - resident.weight_bytes // 4)
    with opened_on(
        CrowdedDevice(device, world),
        resident.path,
        chunk=CHUNK,
        executor=executor,
        vram_budget=budget,
        rates=EVEN,
    ) as model:
        driver = Driver(model, world, resident, exact=executor is ExecutorChoice.STREAM)
        where = driver.tiers.where
        driver.check_pass(12)
        assert where.plan.slots and not where.plan.landing
        if full:
            world.most_bytes = device.used_bytes
        world.deficit = 1 << 30
        for n_tokens in (1, 12, 1):
            driver.check_pass(n_tokens)
        assert where.plan.landing
        assert where.plan.vram_bytes <= where.budgets.vram
        driver.settle()


def test_a_closed_model_leaves_nothing_without_the_collector(resident: Resident, world: World) -> None:
    device = EmulatedDevice(lockable_bytes=430 << 10)
    gc.collect()
    gc.disable()
    try:
        with opened_on(
            CrowdedDevice(device, world),
            resident.path,
            chunk=CHUNK,
            executor=ExecutorChoice.STREAM,
            place=parse_place("blk.0-1.ffn=ram,blk.2=nvme"),
        ) as model:
            driver = Driver(model, world, resident, exact=True)
            driver.check_pass(12)
            driver.check_pass(1)
            assert 0 < device.locked_bytes <= 430 << 10 and device.unlocked_copies
        del model, driver
        assert device.used_bytes == 0 and device.locked_bytes == 0
    finally:
        gc.enable()
