"""What the tier map, its bars and its numbers show, worked out from the engine's snapshots alone.

Knows where blocks are, what moves, and how fast by the difference between two snapshots; does not know
widgets or terminals. The screen and `tiercel tiers` use the same report, so that they can only tell the same.
What is planned and what is measured stand beside each other and are never mixed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from app.tiers.history import Rate
from app.tiers.layout import Activity, Cell, Use, cell, in_order, letter_of, letter_of_tier
from engine import (
    BlockPlace,
    EngineSnapshot,
    EngineState,
    Executor,
    GpuFacts,
    ModelInfo,
    Tier,
    TierEvent,
    TierSnapshot,
)

STALE_S: Final = 2.0
"""A report older than this while a reply grows says how old it is."""
PACE_S: Final = 2.0
"""Over how many last seconds passes are counted for the speed now."""
PASSES: Final = 64
"""Over how many last passes waiting is averaged."""
_STALLED, _STALLS = 0.5, 0.1
"""Shares of the time from which on waiting for a link is what limits, or limits in part."""


@dataclass(frozen=True, slots=True)
class TierTotal:
    """All blocks of one tier."""

    tier: Tier
    letter: str
    blocks: int
    kinds: tuple[tuple[str, int], ...]
    """The same by their letters on the map: who computes them tells them apart."""
    n_bytes: int
    """Of the blocks."""
    used: int
    """Memory that they take, or bytes of the file; of a GPU all that the model takes there."""
    ring: int
    """Of `used`, for the staging ring of this tier."""
    total: int
    """What `used` can be at most: the budget, or the whole model."""
    whole: int
    """What the bar stands for: `total`, or of a GPU all its memory."""


@dataclass(frozen=True, slots=True)
class Moving:
    """A block on its way."""

    index: int
    share: float
    """How much is there, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Link:
    """The way from the disk to memory, or from memory to a GPU; bytes per second."""

    rate: float
    """Now."""
    ceiling: float | None
    """As probed, or what was seen since if that was more; None when neither is known."""
    probed: float | None
    history: tuple[float, ...]
    moving: tuple[Moving, ...]
    """Blocks that are not yet complete, the next one first."""
    read_bytes: int
    """That came over it so far."""
    busy: float
    """Share of the time now during which something came over it."""


@dataclass(frozen=True, slots=True)
class Compute:
    """The processors of the host."""

    busy: float
    """Cores of this process at work now."""
    cores: int
    history: tuple[float, ...]
    active: int | None
    """Index of the streamed block that is computed; a block that stays is not reported one by one."""


class Limit(StrEnum):
    """What holds the speed back now."""

    UNKNOWN = "unknown"
    PLANNED = "planned"
    """Nothing runs: as the plan says. Where it says nothing, what was measured last stays."""
    DISK = "disk"
    """Computing waits for the disk most of the time."""
    DISK_IN_PART = "disk in part"
    LINK = "link"
    """The GPU waits for copies most of the time."""
    LINK_IN_PART = "link in part"
    COMPUTE = "compute"
    """Computing hardly waits."""


@dataclass(frozen=True, slots=True)
class TierReport:
    """One moment of the tiers."""

    at: float
    """`time.monotonic()` of the snapshot."""
    state: EngineState
    model: ModelInfo | None
    backend: str
    reason: str
    """Why this backend computes, in words."""
    known: bool
    """Whether there is a map: not without a model, nor where NumPy computes."""
    blocks: tuple[BlockPlace, ...]
    cells: tuple[Cell, ...]
    """For each block."""
    skipped: frozenset[int]
    """Blocks, by index, that passes leave out."""
    tiers: tuple[TierTotal, ...]
    link: Link
    copies: Link | None
    """To the GPU; None without one."""
    gpu: GpuFacts | None
    """The GPU that computes; None where the processor does."""
    compute: Compute
    passes: int
    pass_bytes: int
    """Of weights that a pass needs."""
    skipped_bytes: int
    """Of weights that it would need besides, were they not left out."""
    pass_read_bytes: int
    """Of these from disk, by the plan."""
    pass_copy_bytes: int
    """Of these copied to the GPU, by the plan."""
    hit_rate: float | None
    """Share of a pass's bytes that were in memory when it began."""
    stall_s: float | None
    """Waiting for disk and copies in a pass, over the last passes; None before the first."""
    copy_stall_s: float | None
    """Of that, of the GPU for copies."""
    stall_share: float | None
    """Waiting for disk and copies as a share of their time."""
    limit_share: float | None
    """Waiting for what `limit` names as a share of their time; where nothing waits much, for both."""
    waits: Mapping[int, float]
    """Seconds that the last pass waited, by the index of the block that it waited for."""
    now_tok_s: float
    """Passes per second while a reply is decoded; 0 before the second, and otherwise."""
    tok_s: float
    """Of the whole reply, or of the last one."""
    tok_s_history: tuple[float, ...]
    predicted_tok_s: float | None
    predicted_prefill_tok_s: float | None
    limited_by: str
    """By the plan."""
    limit: Limit
    settled: bool
    """Whether every block is where the plan wants it."""
    load_progress: float
    """How much of the model is where the plan wants it, 0 to 1."""
    events: tuple[TierEvent, ...]
    events_dropped: int

    @property
    def generating(self) -> bool:
        """Whether a reply is computed."""
        return self.state is EngineState.GENERATING

    @property
    def streams(self) -> bool:
        """Whether anything is read for every pass."""
        return self.pass_read_bytes > 0

    @property
    def reads(self) -> bool:
        """Whether anything comes from the disk: for every pass, or because blocks move."""
        return self.streams or not self.settled

    def age(self, now: float) -> float:
        """Seconds since the snapshot if that is too long while a reply grows, else 0."""
        age = now - self.at
        return age if self.generating and age > STALE_S else 0.0


class _Pass(NamedTuple):
    """The moment when a pass was over, and what had been counted by then."""

    number: int
    disk_stall_s: float
    copy_stall_s: float
    at: float
    decoding: bool
    """Whether it was for a token of a reply and not for the prompt."""


class _Waiting(NamedTuple):
    """What one of the last passes waited for, in seconds and as shares of its time."""

    disk_s: float
    copy_s: float
    disk_share: float
    copy_share: float


class TierWatch:
    """Turns snapshots into reports; remembers as much of the past as rates take."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._snapshot: EngineSnapshot | None = None
        self._model: ModelInfo | None = None
        self._forget()
        self.report = self.feed(EngineSnapshot())
        """The last one."""

    def feed(self, snapshot: EngineSnapshot) -> TierReport:
        """Return the report of a snapshot; the same snapshot again costs nothing."""
        if snapshot is self._snapshot:
            return self.report
        if _other_model(snapshot.model, self._model):
            self._forget()
        self._filled = self._is_filled(snapshot)
        self._measure(snapshot)
        self._snapshot, self._model = snapshot, snapshot.model
        self.report = self._report(snapshot)
        return self.report

    def _forget(self) -> None:
        self._read, self._copied, self._cpu, self._speed = Rate(), Rate(), Rate(), Rate()
        self._reading, self._copying = Rate(), Rate()
        self._passes: deque[_Pass] = deque()
        """Ends of passes of the present or last reply, at most `PASSES` passes back."""
        self._peak, self._copy_peak, self._running, self._filled = 0.0, 0.0, False, True
        self._limit = Limit.UNKNOWN
        """What was measured last."""
        self._base: tuple[object, object, tuple[Cell, ...]] = ((), (), ())

    def _is_filled(self, snapshot: EngineSnapshot) -> bool:
        """Whether the ring is only being filled for a pass that is not yet asked for.

        That is over in a moment, of which nobody hears: what was under way when the reply ended is there. A
        snapshot that comes later, or is not settled, shows blocks that really move.
        """
        tiers, before = snapshot.tiers, self._snapshot
        if tiers is None or not tiers.settled or snapshot.state is EngineState.GENERATING:
            return False
        if before is None or before.tiers is None or before.state is not snapshot.state:
            return True
        return self._filled if tiers is before.tiers else tiers.passes != before.tiers.passes

    def _measure(self, snapshot: EngineSnapshot) -> None:
        running = snapshot.state is EngineState.GENERATING
        self._cpu.add(snapshot.at, snapshot.cpu_s)
        if not running:
            self._cpu.rest()
        tiers = snapshot.tiers
        if tiers is None:
            return
        self._read.add(snapshot.at, tiers.read_bytes)
        self._copied.add(snapshot.at, tiers.h2d_bytes)
        self._reading.add(snapshot.at, tiers.read_s)
        self._copying.add(snapshot.at, tiers.copy_s)
        if not running and tiers.settled and not self._moving(tiers):
            for each in (self._read, self._copied, self._reading, self._copying):
                each.rest()
        self._peak = max(self._peak, *self._read.history, 0.0)
        self._copy_peak = max(self._copy_peak, *self._copied.history, 0.0)
        if running and not self._running:
            self._passes.clear()  # the time between two replies is not waiting
        self._running = running
        if not self._passes or tiers.passes != self._passes[-1].number:
            decoding = running and snapshot.decode_tok_s > 0
            self._passes.append(_Pass(tiers.passes, tiers.stall_s, tiers.copy_stall_s, snapshot.at, decoding))
            self._speed.add(snapshot.at, tiers.passes)  # at whole passes only: between them it would fall
        while len(self._passes) > 2 and self._passes[-1].number - self._passes[0].number > PASSES:
            self._passes.popleft()

    def _report(self, snapshot: EngineSnapshot) -> TierReport:
        tiers = snapshot.tiers
        waiting = self._waiting()
        running = snapshot.state is EngineState.GENERATING
        decoding = running and snapshot.decode_tok_s > 0
        skipped = tiers.skipped if tiers else frozenset()
        whole = sum(_needed(block) for block in tiers.blocks) if tiers else 0
        left_out = sum(_needed(tiers.blocks[index]) for index in skipped) if tiers else 0
        needed = whole - left_out
        read = tiers.pass_read_bytes if tiers else 0
        limited_by = tiers.limited_by if tiers else ""
        active = tiers.active if tiers and running else None  # the last word of a reply that has ended
        if running and waiting is not None:  # what was measured wins over what was planned
            limit = self._limit = _measured(waiting)
        else:
            limit = Limit.PLANNED if limited_by else self._limit
        return TierReport(
            at=snapshot.at,
            state=snapshot.state,
            model=snapshot.model,
            backend=snapshot.backend,
            reason=snapshot.backend_reason,
            known=tiers is not None,
            blocks=tiers.blocks if tiers else (),
            cells=self._cells(tiers, active) if tiers else (),
            skipped=skipped,
            tiers=_totals(tiers) if tiers else (),
            link=self._link(tiers),
            copies=self._copies(tiers) if tiers and tiers.gpu else None,
            gpu=tiers.gpu if tiers else None,
            compute=Compute(
                busy=self._cpu.now,
                cores=snapshot.cores,
                history=self._cpu.history,
                active=active,
            ),
            passes=tiers.passes if tiers else 0,
            pass_bytes=needed,
            skipped_bytes=left_out,
            pass_read_bytes=read,
            pass_copy_bytes=tiers.pass_copy_bytes if tiers else 0,
            hit_rate=max(0.0, 1 - read / needed) if needed else None,
            stall_s=None if waiting is None else waiting.disk_s + waiting.copy_s,
            copy_stall_s=None if waiting is None else waiting.copy_s,
            stall_share=None if waiting is None else min(1.0, waiting.disk_share + waiting.copy_share),
            limit_share=None if waiting is None else _share_of(limit, waiting),
            waits=dict(tiers.pass_stalls) if tiers else {},
            now_tok_s=self._pace() if decoding else 0.0,
            tok_s=snapshot.decode_tok_s,
            tok_s_history=self._speed.history,
            predicted_tok_s=tiers.predicted_decode_tok_s if tiers else None,
            predicted_prefill_tok_s=tiers.predicted_prefill_tok_s if tiers else None,
            limited_by=limited_by,
            limit=limit,
            settled=tiers is None or tiers.settled,
            load_progress=snapshot.load_progress,
            events=tiers.events if tiers else (),
            events_dropped=tiers.events_dropped if tiers else 0,
        )

    def _cells(self, tiers: TierSnapshot, active: int | None) -> tuple[Cell, ...]:
        blocks, skipped, still = self._base
        if blocks is not tiers.blocks or skipped != tiers.skipped:
            still = tuple(
                cell(letter_of(block), use=Use.NOTHING if index in tiers.skipped else Use.ALL)
                for index, block in enumerate(tiers.blocks)
            )
            self._base = (tiers.blocks, tiers.skipped, still)
        cells = list(still)
        for index, share in tiers.in_flight:
            # A block that is there is drawn as there: only what still moves has an arrow or a level.
            here = share >= 1 or self._filled
            eighths = 0 if here else min(7, int(share * 8))
            activity = Activity.STAGED if here else Activity.MOVING
            cells[index] = cell(cells[index].letter, activity, eighths, use=cells[index].use)
        if active is not None:
            cells[active] = cell(cells[active].letter, Activity.ACTIVE)
        return tuple(cells)

    def _link(self, tiers: TierSnapshot | None) -> Link:
        probed = tiers.disk_rate if tiers else None
        return Link(
            rate=self._read.now,
            ceiling=max(probed or 0.0, self._peak) or None,
            probed=probed,
            history=self._read.history,
            moving=tuple(each for each in self._moving(tiers) if not _to_gpu(tiers, each)) if tiers else (),
            read_bytes=tiers.read_bytes if tiers else 0,
            busy=min(1.0, self._reading.now),
        )

    def _copies(self, tiers: TierSnapshot) -> Link:
        return Link(
            rate=self._copied.now,
            ceiling=max(tiers.h2d_rate or 0.0, self._copy_peak) or None,
            probed=tiers.h2d_rate,
            history=self._copied.history,
            moving=tuple(each for each in self._moving(tiers) if _to_gpu(tiers, each)),
            read_bytes=tiers.h2d_bytes,
            busy=min(1.0, self._copying.now),
        )

    def _moving(self, tiers: TierSnapshot) -> tuple[Moving, ...]:
        return tuple(Moving(i, share) for i, share in tiers.in_flight if share < 1 and not self._filled)

    def _pace(self) -> float:
        """Tokens per second over the last few seconds, or of the last one where it takes longer."""
        decoded = [each for each in self._passes if each.decoding]
        if len(decoded) < 2:
            return 0.0
        last = decoded[-1]
        first = next(each for each in decoded if each.at >= last.at - PACE_S)
        if first is last:
            first = decoded[-2]
        return (last.number - first.number) / (last.at - first.at) if last.at > first.at else 0.0

    def _waiting(self) -> _Waiting | None:
        """Waiting in one of the last passes; None before there are two."""
        if len(self._passes) < 2:
            return None
        first, last = self._passes[0], self._passes[-1]
        if last.number <= first.number or last.at <= first.at:
            return None
        disk, copies = last.disk_stall_s - first.disk_stall_s, last.copy_stall_s - first.copy_stall_s
        passes, seconds = last.number - first.number, last.at - first.at
        return _Waiting(disk / passes, copies / passes, min(1.0, disk / seconds), min(1.0, copies / seconds))


def _other_model(new: ModelInfo | None, old: ModelInfo | None) -> bool:
    return (new and new.path) != (old and old.path)


def _needed(block: BlockPlace) -> int:
    """Bytes of a block that a pass uses; of the embedding it takes a few rows, read one by one."""
    return 0 if block.kind == "embedding" else block.n_bytes


def _to_gpu(tiers: TierSnapshot, moving: Moving) -> bool:
    """Whether a block's way ends in the memory of a GPU."""
    return tiers.gpu is not None and tiers.blocks[moving.index].executor is not Executor.CPU


def _totals(tiers: TierSnapshot) -> tuple[TierTotal, ...]:
    """The tiers of this machine, from the fastest to the slowest."""
    model = sum(block.n_bytes for block in tiers.blocks)
    totals: list[TierTotal] = []
    for tier in Tier:
        own = [block for block in tiers.blocks if block.tier is tier]
        n_bytes = sum(block.n_bytes for block in own)
        letters = Counter(letter_of(block) for block in own)
        whole = ring = 0
        match tier:
            case Tier.VRAM:
                used, total, ring = tiers.vram_used_bytes, tiers.vram_budget_bytes, tiers.vram_ring_bytes
                whole = tiers.gpu.total_bytes if tiers.gpu is not None else 0
            case Tier.RAM:
                used, total, ring = tiers.ram_bytes + tiers.ring_bytes, tiers.budget_bytes, tiers.ring_bytes
            case Tier.NVME:
                used, total = n_bytes, model
        if not total:  # this machine has no such tier, or grants the model nothing of it
            continue
        totals.append(
            TierTotal(
                tier=tier,
                letter=letter_of_tier(tier),
                blocks=len(own),
                kinds=tuple((letter, letters[letter]) for letter in in_order(letters)),
                n_bytes=n_bytes,
                used=used,
                ring=ring,
                total=total,
                whole=max(total, whole),
            )
        )
    return tuple(totals)


def _measured(waiting: _Waiting) -> Limit:
    disk = waiting.disk_share >= waiting.copy_share
    share = max(waiting.disk_share, waiting.copy_share)
    if share >= _STALLED:
        return Limit.DISK if disk else Limit.LINK
    if share >= _STALLS:
        return Limit.DISK_IN_PART if disk else Limit.LINK_IN_PART
    return Limit.COMPUTE


def _share_of(limit: Limit, waiting: _Waiting) -> float:
    match limit:
        case Limit.DISK | Limit.DISK_IN_PART:
            return waiting.disk_share
        case Limit.LINK | Limit.LINK_IN_PART:
            return waiting.copy_share
        case _:
            return min(1.0, waiting.disk_share + waiting.copy_share)
