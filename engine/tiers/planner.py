"""Which weight blocks stay in memory and which are read for every pass: a pure function of sizes and rates.

For a dense model a fixed resident set is optimal: every pass uses every block once, so a cache of those last
used would never hit. Knows bytes and rates; touches no memory, file or clock. Called by the loader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.errors import BudgetError
from engine.tiers.blocks import Block, BlockKind, slot_bytes_for
from engine.tiers.rates import Rates

FEWEST_SLOTS, MOST_SLOTS = 2, 4
"""One slot is computed from while another is filled; more even out blocks of different sizes."""
_RESIDENT_PER_RING = 7
"""More than the fewest slots only where residents are 7 times the ring: a slot too many costs reads in every
pass, one too few costs a stall, and only where disk and products are about equally fast."""
_STEPS = 256
"""Sizes of the resident set that are weighed: about one for each block of a large model."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every block is, and what that costs. Blocks are named by their index."""

    resident: frozenset[int]
    """Blocks that stay in memory."""
    streamed: tuple[int, ...]
    """Blocks that are read for every pass that uses them, in order; never the embedding, whose rows are read
    one by one."""
    slots: int
    """Of the staging ring; 0 when nothing is streamed."""
    slot_bytes: int
    resident_bytes: int
    """Memory of the resident blocks, in whole pages."""
    read_bytes: int
    """From disk for one pass, without blocks that are idle."""
    predicted_decode_s: float | None
    """Seconds of these blocks in a decode step from an empty context; None without the rates for it."""
    limited_by: str
    """What a decode step waits for, in words; empty without a prediction."""

    @property
    def ring_bytes(self) -> int:
        """Memory of the staging ring."""
        return self.slots * self.slot_bytes

    @property
    def ram_bytes(self) -> int:
        """Memory of everything planned here; never above the budget."""
        return self.resident_bytes + self.ring_bytes


def plan(
    blocks: Sequence[Block],
    budget: int,
    rates: Rates | None,
    *,
    among: frozenset[int] | None = None,
    apart: frozenset[int] = frozenset(),
    idle: frozenset[int] = frozenset(),
) -> Plan:
    """Choose what stays within `budget`, bytes for weights and ring together, so that least is read.

    Rates predict, they do not choose. With `among` only those blocks may stay, so that nothing is moved in.
    Blocks in `apart` are elsewhere, such as in a GPU's memory, and neither planned nor counted. Blocks of
    layers that are `idle` are left out of passes for now: they give their places to others, which otherwise
    are where they would be, and can still be read. Raises BudgetError naming the smallest budget that works.
    With nothing idle a larger budget never reads more: it is chosen from the same placements, of which more
    fit.
    """
    used = _used(blocks, apart)
    memory = {block.index: slot_bytes_for(block) for block in blocks if block.index not in apart}
    placements = _placements(used, among)
    fitting = [placement for placement in placements if placement.ram_bytes <= budget]
    if not fitting:
        raise _too_small(budget, min(placement.ram_bytes for placement in placements))
    best = min(fitting, key=lambda placement: (placement.read_bytes, placement.ram_bytes))
    resident = {block.index for block in used} - set(best.streamed)
    if not best.streamed:
        # A pass reads only a few rows of the embedding, so everything else comes first.
        room = budget - best.ram_bytes
        rest = (memory.keys() if among is None else memory.keys() & among) - {b.index for b in used}
        resident |= {index for index in rest if memory[index] <= room}
    slot_bytes = best.slot_bytes
    if best.streamed and not idle.isdisjoint(resident):
        resident, slot_bytes = _give_places(used, resident, idle, best, budget, among)
    passed = [block for block in used if block.index not in idle]
    read_bytes = sum(block.n_bytes for block in passed if block.index not in resident)
    predicted, limited_by = _predict(passed, read_bytes, rates) if rates and passed else (None, "")
    return Plan(
        resident=frozenset(resident),
        streamed=tuple(block.index for block in used if block.index not in resident),
        slots=best.slots,
        slot_bytes=slot_bytes,
        resident_bytes=sum(memory[index] for index in resident),
        read_bytes=read_bytes,
        predicted_decode_s=predicted,
        limited_by=limited_by,
    )


def predicted(
    chosen: Plan, blocks: Sequence[Block], rates: Rates, apart: frozenset[int], idle: frozenset[int]
) -> Plan:
    """The same plan with what other rates promise of it; `apart` and `idle` as in `plan`."""
    passed = [block for block in _used(blocks, apart) if block.index not in idle]
    seconds, limited_by = _predict(passed, chosen.read_bytes, rates) if passed else (None, "")
    return replace(chosen, predicted_decode_s=seconds, limited_by=limited_by)


def least_memory(
    blocks: Sequence[Block], among: frozenset[int] | None = None, apart: frozenset[int] = frozenset()
) -> int:
    """The smallest budget that works, in bytes; `among` and `apart` as in `plan`."""
    return min(placement.ram_bytes for placement in _placements(_used(blocks, apart), among))


def _used(blocks: Sequence[Block], apart: frozenset[int]) -> list[Block]:
    """Blocks that a pass needs whole, and that are not elsewhere."""
    return [b for b in blocks if b.kind is not BlockKind.EMBEDDING and b.index not in apart]


class _Sizes(NamedTuple):
    """A block as far as placement goes."""

    block: int
    n_bytes: int
    memory: int
    may_stay: bool


class _Placement(NamedTuple):
    """One way to divide the blocks of a pass, whatever the budget."""

    streamed: tuple[int, ...]
    slots: int
    slot_bytes: int
    ram_bytes: int
    read_bytes: int


def _placements(used: Sequence[Block], among: frozenset[int] | None) -> list[_Placement]:
    """From keeping nothing to keeping all that may stay."""
    sizes = [
        _Sizes(block.index, block.n_bytes, slot_bytes_for(block), among is None or block.index in among)
        for block in used
    ]
    return [_place(sizes, step) for step in range(_STEPS + 1)]


def _place(used: Sequence[_Sizes], step: int) -> _Placement:
    """Keep about step / _STEPS of the bytes, and size the ring for the others."""
    resident, streamed = _spread(used, step)
    resident_bytes = sum(sizes.memory for sizes in resident)
    slot_bytes = max((sizes.memory for sizes in streamed), default=0)
    slots = 0
    if streamed:
        affordable = resident_bytes // (_RESIDENT_PER_RING * slot_bytes)
        slots = max(FEWEST_SLOTS, min(MOST_SLOTS, affordable))
    return _Placement(
        streamed=tuple(sizes.block for sizes in streamed),
        slots=slots,
        slot_bytes=slot_bytes,
        ram_bytes=resident_bytes + slots * slot_bytes,
        read_bytes=sum(sizes.n_bytes for sizes in streamed),
    )


def _spread(used: Sequence[_Sizes], step: int) -> tuple[list[_Sizes], list[_Sizes]]:
    """Blocks that stay, about step / _STEPS of the bytes and spread evenly through the pass, and the others.

    Even, because while residents are computed the disk works on only until the ring is full. As with the
    points of Bresenham's lines, a block stays when the bytes owed so far reach half of it.
    """
    resident: list[_Sizes] = []
    streamed: list[_Sizes] = []
    owed = 0
    for sizes in used:
        owed += sizes.n_bytes * step
        if sizes.may_stay and 2 * owed >= sizes.n_bytes * _STEPS:
            owed -= sizes.n_bytes * _STEPS
            resident.append(sizes)
        else:
            streamed.append(sizes)
    return resident, streamed


def _give_places(
    used: Sequence[Block],
    resident: set[int],
    idle: frozenset[int],
    best: _Placement,
    budget: int,
    among: frozenset[int] | None,
) -> tuple[set[int], int]:
    """Let idle residents make room for blocks that are read: who stays now, and bytes of a slot.

    Slots hold all that leaves or comes. No other resident is moved, and none where that gains nothing.
    """
    sizes = {block.index: _Sizes(block.index, block.n_bytes, slot_bytes_for(block), True) for block in used}
    given = sorted(resident & idle)
    wanted = [sizes[i] for i in best.streamed if i not in idle and (among is None or i in among)]
    slot_bytes = max(best.slot_bytes, *(sizes[index].memory for index in given))
    staying = sum(sizes[index].memory for index in resident - idle)
    room = budget - best.slots * slot_bytes - staying
    came: list[_Sizes] = []
    for step in range(_STEPS, 0, -1):
        came, _ = _spread(wanted, step)
        if sum(block.memory for block in came) <= room:
            break
        came = []
    if not came:
        return resident, best.slot_bytes
    room -= sum(block.memory for block in came)
    kept: list[int] = []
    for index in given:
        if sizes[index].memory <= room:
            room -= sizes[index].memory
            kept.append(index)
    return (resident - idle) | {block.block for block in came} | set(kept), slot_bytes


def _too_small(budget: int, smallest: int) -> BudgetError:
    needed = -(-smallest // 10**6)  # rounded up: what the message names must do
    return BudgetError(
        f"{max(0, budget) / 1e6:,.0f} MB of memory for weights are too little: even reading them from disk "
        f"as they are used takes {needed:,} MB; give more (--ram-budget), or use a smaller context (-c)"
    )


def _predict(used: Sequence[Block], read_bytes: int, rates: Rates) -> tuple[float | None, str]:
    """Seconds of a decode step, and what it waits for: reads run beside the products."""
    if read_bytes and rates.disk is None:
        return None, ""  # nothing was to be read when rates were measured, and memory ran short later
    pieces = [piece for block in used for piece in block.pieces]
    disk_s = read_bytes / rates.disk if rates.disk else 0.0
    memory_s = sum(piece.n_bytes for piece in pieces) / rates.dram
    products_s = sum(piece.n_bytes / rates.product(piece.quant_type) for piece in pieces)
    if disk_s > products_s:
        return disk_s, "the disk"
    return products_s, "memory bandwidth" if memory_s > _NEAR_MEMORY * products_s else "the processor"


_NEAR_MEMORY = 0.75
"""Products that reach this share of plain reads wait for memory; below it they wait for their arithmetic."""
