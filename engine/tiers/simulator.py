"""Passes over the blocks of a model against a clock of its own: who computes when, what is copied, who waits.

The scheduler is the engine's (`route` and `staging_order`, and a ring for reads from disk that is always
being filled); links and processors are rates. What runs at once slows as measured: copies beside the
processor's products, and these beside copies. Knows no device and takes no time to speak of: the planner
tries placements on it, and overlap, order and reuse of slots are tested with it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from engine.events import Executor
from engine.tiers.blocks import Block
from engine.tiers.rates import LinkRates, Rates
from engine.tiers.route import route
from engine.tiers.staging_order import StagingOrder


class Resource(StrEnum):
    """What one thing at a time happens on."""

    GPU = "GPU"
    CPU = "CPU"
    LINK = "link"
    """Copies to the GPU."""
    DISK = "disk"


class Span(NamedTuple):
    """What a resource did for a block; seconds from the beginning of the first pass."""

    resource: Resource
    block: int
    start: float
    end: float
    slot: int
    """Of the ring that a copy or a read went to, or that was computed from; -1 where there is none."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What every pass does."""

    blocks: Sequence[Block]
    """What is computed, in order of use."""
    executors: Mapping[int, Executor]
    """By index of the block."""
    slots: int
    """Of the staging ring in GPU memory."""
    on_disk: frozenset[int] = frozenset()
    """Blocks that are read for every pass."""
    disk_slots: int = 0
    """Of the ring in memory that they are read into."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened; seconds from the beginning of the first pass."""

    ends: tuple[float, ...]
    """Of every pass."""
    spans: tuple[Span, ...]
    """In the order in which they ended; reads and copies for passes to come are among them."""
    stalls: Mapping[int, float]
    """Blocks that the last pass waited for, by index, and for how long."""
    link_wait_s: float
    """Of the last pass: waiting for copies."""
    disk_wait_s: float
    """Of the last pass: waiting for reads."""

    @property
    def seconds(self) -> float:
        """Of a pass when all goes steadily: the mean of all but the first, which finds empty rings."""
        n_steady = len(self.ends) - 1
        return (self.ends[-1] - self.ends[0]) / n_steady if n_steady else self.ends[0]

    @property
    def last_pass(self) -> tuple[float, float]:
        """When it began and ended."""
        return (self.ends[-2] if len(self.ends) > 1 else 0.0), self.ends[-1]

    def busy(self, resource: Resource) -> float:
        """Seconds of the last pass that it worked."""
        begin, end = self.last_pass
        of_it = (span for span in self.spans if span.resource is resource)
        return sum(max(0.0, min(span.end, end) - max(span.start, begin)) for span in of_it)


def simulate(shape: Pass, rates: Rates, link: LinkRates, *, n_tokens: int = 1, n_passes: int = 3) -> Timeline:
    """Run passes of so many tokens one after another; the rings are empty at first and filled across ends."""
    return _Machine(shape, rates, link, n_tokens).run(n_passes)


def gpu_seconds(block: Block, link: LinkRates, n_tokens: int) -> float:
    """What the GPU takes to compute a block whose weights are in its memory."""
    return max(block.n_bytes / link.vram, _flops(block, n_tokens) / link.matrix_flops)


def cpu_seconds(block: Block, rates: Rates, n_tokens: int) -> float:
    """What the processor takes to compute a block whose weights are in memory, nothing else running."""
    reading = sum(piece.n_bytes / rates.product(piece.quant_type) for piece in block.pieces)
    if rates.cpu_flops is None:
        return reading * n_tokens
    return max(reading, _flops(block, n_tokens) / rates.cpu_flops)


def _flops(block: Block, n_tokens: int) -> float:
    """Multiplications and additions."""
    return 2.0 * n_tokens * sum(piece.n_rows * piece.n_columns for piece in block.pieces)


class _Step(NamedTuple):
    """A block as a pass computes it."""

    block: int
    on_cpu: bool
    crossing_s: float
    """That it takes to bring hidden states to its processor, when nobody computes."""
    seconds: float
    """Alone."""
    n_bytes: int
    copied: bool
    on_disk: bool


_NOTHING = math.inf
_LANDING = -2
"""The slot for blocks that come from disk: beside the staging ring, one at a time."""


@dataclass(slots=True, eq=False)
class _Work:
    """What a resource is at; in bytes on link and disk, in seconds on processors."""

    block: int
    start: float
    left: float
    slot: int = -1


@dataclass(slots=True, eq=False)
class _Ring:
    """Memory that blocks are read into from disk, in cyclic order, whenever a slot is free."""

    order: tuple[tuple[int, int], ...]
    """Blocks and their bytes."""
    free: deque[int]
    ready: dict[int, int] = field(default_factory=dict)
    """Block -> slot."""
    next: int = 0


class _Machine:
    """Resources, rings and the place that the passes are at."""

    def __init__(self, shape: Pass, rates: Rates, link: LinkRates, n_tokens: int) -> None:
        self._link_rates = link
        self._disk_rate = rates.disk or math.inf
        self._steps = _steps(shape, rates, link, n_tokens)
        self._order = StagingOrder(shape.slots)
        copied = [step for step in self._steps if step.copied and not step.on_disk]
        self._copy_bytes = {step.block: step.n_bytes for step in copied}
        self._order.follow([step.block for step in copied])
        self._ring = _Ring(
            tuple((step.block, step.n_bytes) for step in self._steps if step.on_disk),
            deque(range(shape.disk_slots)),
        )
        self._copies: deque[_Work] = deque()
        """Waiting for the link, which the first one is on."""
        self._read: _Work | None = None
        self._arrived: set[int] = set()
        """Slots of the staging ring whose copy is done."""
        self._slots: dict[int, int] = {}
        """Blocks whose turn has come and the slots that they are in."""
        self._now = 0.0
        self._spans: list[Span] = []

    def run(self, n_passes: int) -> Timeline:
        ends: list[float] = []
        stalls: dict[int, float] = {}
        waited = [0.0, 0.0]
        self._feed()
        for _ in range(n_passes):
            stalls, waited = {}, [0.0, 0.0]
            for step in self._steps:
                came = self._now
                while step.on_disk and step.block not in self._ring.ready:
                    self._advance(None)
                read = self._now
                if step.copied:
                    self._await_copy(step)
                if self._now > came:
                    stalls[step.block] = self._now - came
                    waited[0] += self._now - read
                    waited[1] += read - came
                self._compute(step)
            ends.append(self._now)
        return Timeline(tuple(ends), tuple(self._spans), stalls, waited[0], waited[1])

    def _await_copy(self, step: _Step) -> None:
        if step.on_disk:
            slot = _LANDING
            self._copies.append(_Work(step.block, self._now, step.n_bytes, slot))
        else:
            taken = self._order.take(step.block)
            assert taken is not None, "copies come in the order of use"
            slot = taken
        self._slots[step.block] = slot
        while slot not in self._arrived:
            self._advance(None)
        if step.on_disk:
            self._ring.free.append(self._ring.ready.pop(step.block))
            self._feed()

    def _compute(self, step: _Step) -> None:
        slot = self._slots.pop(step.block, -1)
        resource = Resource.CPU if step.on_cpu else Resource.GPU
        crossing = _Work(step.block, self._now, step.crossing_s)
        while crossing.left > 0:
            self._advance(crossing)
        work = _Work(step.block, self._now, step.seconds, slot)
        while work.left > 0:
            self._advance(work, step.on_cpu)
        self._spans.append(Span(resource, step.block, work.start, self._now, slot))
        if step.copied:
            self._arrived.discard(slot)
            if slot != _LANDING:
                self._order.release(step.block)
                self._feed()
        elif step.on_disk:
            self._ring.free.append(self._ring.ready.pop(step.block))
            self._feed()

    def _feed(self) -> None:
        """Begin what has become possible."""
        while (fill := self._order.next_fill()) is not None:
            self._copies.append(_Work(fill.block, self._now, self._copy_bytes[fill.block], fill.slot))
        ring = self._ring
        if self._read is None and ring.free and ring.order:
            block, n_bytes = ring.order[ring.next]
            if block not in ring.ready:
                ring.next = (ring.next + 1) % len(ring.order)
                self._read = _Work(block, self._now, n_bytes, ring.free.popleft())

    def _advance(self, work: _Work | None, on_cpu: bool = False) -> None:
        """Let time pass until something ends: what is computed or handed over, a copy or a read."""
        link = self._link_rates
        copy = self._copies[0] if self._copies else None
        read = self._read
        pace = link.cpu_beside_h2d if on_cpu and copy else 1.0
        copy_rate = link.h2d_beside_cpu if on_cpu else link.h2d
        compute_s = work.left / pace if work else _NOTHING
        copy_s = copy.left / copy_rate if copy else _NOTHING
        read_s = read.left / self._disk_rate if read else _NOTHING
        passed = min(compute_s, copy_s, read_s)
        assert passed < _NOTHING, "what is waited for is on its way"
        self._now += passed
        if work:
            work.left = 0.0 if compute_s == passed else work.left - passed * pace
        if copy:
            if copy_s == passed:
                self._copies.popleft()
                self._arrived.add(copy.slot)
                self._spans.append(Span(Resource.LINK, copy.block, copy.start, self._now, copy.slot))
                if self._copies:
                    self._copies[0].start = self._now
            else:
                copy.left -= passed * copy_rate
        if read:
            if read_s == passed:
                self._read = None
                self._ring.ready[read.block] = read.slot
                self._spans.append(Span(Resource.DISK, read.block, read.start, self._now, read.slot))
                self._feed()
            else:
                read.left -= passed * self._disk_rate


def _steps(shape: Pass, rates: Rates, link: LinkRates, n_tokens: int) -> list[_Step]:
    """What a pass computes, one after another; hidden states change processors between runs."""
    steps: list[_Step] = []
    was_on_gpu: bool | None = None
    for run in route(shape.blocks, shape.executors):
        crossing = was_on_gpu is not None and run.on_gpu != was_on_gpu
        was_on_gpu = run.on_gpu
        for number, block in enumerate(run.blocks):
            alone = gpu_seconds(block, link, n_tokens) if run.on_gpu else cpu_seconds(block, rates, n_tokens)
            steps.append(
                _Step(
                    block=block.index,
                    on_cpu=not run.on_gpu,
                    crossing_s=link.crossing_s / 2 if crossing and number == 0 else 0.0,
                    seconds=alone,
                    n_bytes=block.n_bytes,
                    copied=run.executor is Executor.STREAM,
                    on_disk=block.index in shape.on_disk,
                )
            )
    return steps


def draw(timeline: Timeline, width: int) -> list[str]:
    """A chart of the last pass in lines of `width` characters: what each resource was at, and when."""
    begin, end = timeline.last_pass
    columns = max(1, width - _LABEL)
    step = (end - begin) / columns
    lines = []
    for resource in Resource:
        busy = [0.0] * columns
        for span in timeline.spans:
            if span.resource is resource and span.end > begin and span.start < end:
                _shade(busy, (span.start - begin) / step, (span.end - begin) / step)
        shades = "".join(_SHADES[min(len(_SHADES) - 1, math.ceil(share * 3 - 0.01))] for share in busy)
        lines.append(f"{resource:<{_LABEL}}{shades}")
    last = f"{(end - begin) * 1e3:.0f} ms"
    return [*lines, f"{'':<{_LABEL}}0{last:>{columns - 1}}"]


_LABEL = 5
_SHADES = ".-+#"
"""Idle, busy for up to a third of the time, up to two thirds, more."""


def _shade(busy: list[float], start: float, end: float) -> None:
    """Add the time from `start` to `end`, in columns, to what is busy in each."""
    first, last = max(0.0, start), min(float(len(busy)), end)
    for column in range(int(first), min(len(busy), math.ceil(last))):
        busy[column] += max(0.0, min(last, column + 1) - max(first, column))
