"""Which weight blocks are in a GPU's memory, and who computes the others: a pure function of sizes and rates.

What GPU memory holds is said by `vram_order`, what is left to memory and disk by `planner`, which of that is
copied by `copied_blocks`, and what a choice is worth by `tier_clock`. Touches no memory, device, file or
clock. Called by the loader, by previews, and whenever a budget changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.config import ExecutorChoice
from engine.errors import BudgetError
from engine.tiers.blocks import Block, BlockKind, slot_bytes_for
from engine.tiers.budget import shown_bytes
from engine.tiers.copied_blocks import CopiedBlocks
from engine.tiers.planner import Plan, least_memory, plan
from engine.tiers.rates import Rates
from engine.tiers.tier_clock import LONGEST_STEP, TierClock
from engine.tiers.tier_plan import GpuSizes, TierPlan
from engine.tiers.vram_order import FEWEST_SLOTS, InVram, Reserved, VramOrder, Wishes, read_wishes
from engine.tiers.wishes import PlaceRule

MOST_SLOTS = 4
"""More slots even out blocks that take unequally long."""
_PROMPT, _REPLY = 4096, 128
"""Tokens of the conversation whose time decides between long passes, a long ring and resident blocks."""
_WAITING = 4
"""A second before the first word is worth so many of the reply, which is read as it comes."""
_SHOWN_PROMPT = 512


def plan_tiers(
    blocks: Sequence[Block],
    sizes: GpuSizes,
    vram_budget: int,
    ram_room: int,
    rates: Rates | None,
    *,
    executor: ExecutorChoice = ExecutorChoice.AUTO,
    gpu_layers: int | None = None,
    rules: Sequence[PlaceRule] = (),
    prefetch: int | None = None,
    chunk: int | None = None,
    link_limit: float | None = None,
    keep: frozenset[int] = frozenset(),
    like: TierPlan | None = None,
    idle: frozenset[int] = frozenset(),
) -> TierPlan:
    """Share the blocks out over GPU memory, memory and disk, and choose who computes them.

    `vram_budget` is for everything on the GPU; `ram_room` for weights, the ring for reads from disk and the
    KV of layers whose attention is the processor's; bytes. The wishes are those of `LoadOptions`; `chunk`
    must be one that `sizes` knows. Blocks in `keep` stay in GPU memory. `like` is a plan in effect: KV, chunk
    and what there is of a ring stay as they are. Passes leave blocks in `idle` out: these have what place the
    others do not need, and are not in what is predicted. Without rates of the link the processor computes
    what is not on the GPU, and nothing is predicted.

    Raises BudgetError with figures for budgets that are too small and wishes that cannot be.
    """
    wishes = read_wishes(blocks, sizes, gpu_layers, rules, keep)
    clock = TierClock(blocks, rates, rates.link, link_limit, idle) if rates and rates.link else None
    planner = _Planner(blocks, sizes, vram_budget, ram_room, rates, clock, executor, wishes, like, idle)
    chunks = sorted(sizes.fixed_bytes) if chunk is None else [chunk]
    rings: Sequence[int] = range(FEWEST_SLOTS, MOST_SLOTS + 1) if prefetch is None else [prefetch]
    if like is not None:
        chunks = [like.chunk]
        rings = [like.slots] if like.slots else rings[:1]
    chosen = planner.best(chunks, rings)
    if clock is None:
        return chosen
    return predicted(replace(chosen, crossover=clock.crossover(chosen)), clock)


def predicted(chosen: TierPlan, clock: TierClock) -> TierPlan:
    """The same plan with what other rates promise of it."""
    timeline = clock.decode(chosen)
    return replace(
        chosen,
        predicted_decode_s=timeline.seconds,
        predicted_prefill_s=clock.prompt_s(chosen, _SHOWN_PROMPT),
        limited_by=clock.limited_by(chosen, timeline),
    )


class _Draft(NamedTuple):
    """One way to share memory out; who computes what is open."""

    reserved: Reserved
    inside: InVram
    host: Plan


class _Planner:
    """One model, its budgets and what was asked for."""

    def __init__(
        self,
        blocks: Sequence[Block],
        sizes: GpuSizes,
        vram_budget: int,
        ram_room: int,
        rates: Rates | None,
        clock: TierClock | None,
        executor: ExecutorChoice,
        wishes: Wishes,
        like: TierPlan | None,
        idle: frozenset[int],
    ) -> None:
        self._blocks = blocks
        self._sizes = sizes
        self._budget = vram_budget
        self._ram_room = ram_room
        self._rates = rates
        self._clock = clock
        self._executor = executor
        self._wishes = wishes
        self._like, self._idle = like, idle
        self._order = VramOrder(blocks, sizes, wishes, None if like is None else like.cpu_attention, idle)
        self._layers = tuple(block.index for block in blocks if block.layer is not None)
        self._copied = CopiedBlocks(blocks, clock, executor, idle)

    def best(self, chunks: Sequence[int], rings: Sequence[int]) -> TierPlan:
        """The plan that gets through a conversation soonest: first of the chunks, then of the rings.

        Raises BudgetError where the first of each does not fit.
        """
        best = self._plan(chunks[0], rings[0])
        if self._clock is None or not best.slots:
            return best
        for chunk in chunks[1:]:
            best = self._better(best, chunk, rings[0])
        for slots in rings[1:]:
            best = self._better(best, best.chunk, slots)
        return best

    def _better(self, best: TierPlan, chunk: int, slots: int) -> TierPlan:
        try:
            other = self._plan(chunk, slots)
        except BudgetError:
            return best
        return min(best, other, key=self._conversation_s)

    def _conversation_s(self, chosen: TierPlan) -> float:
        assert self._clock is not None
        waiting_s = self._clock.prompt_s(chosen, _PROMPT)
        return _WAITING * waiting_s + _REPLY * self._clock.decode(chosen).seconds

    def _plan(self, chunk: int, slots: int) -> TierPlan:
        """With this chunk, and with so many slots if any block is copied."""
        draft = self._within(self._budget, chunk, slots)
        if draft is None:
            raise self._refusal(chunk, slots)
        return self._shared_out(draft)

    def _within(self, budget: int, chunk: int, slots: int) -> _Draft | None:
        """What GPU memory of `budget` bytes holds, and what is left to memory and disk.

        None where the budget is too small; BudgetError where memory is.
        """
        like = self._like
        rings = [Reserved(chunk, 0, False), Reserved(chunk, slots, False), Reserved(chunk, slots, True)]
        if like is not None and like.slots:
            rings = rings[2 if like.landing else 1 :]
        for reserved in rings:
            inside = self._order.fill(budget, reserved)
            if inside is None:
                continue
            copied = self._order.copied(inside)
            if copied and not reserved.slots:
                continue
            host = self._host(inside, chunk)
            if reserved.landing or not set(host.streamed).intersection(copied):
                return _Draft(reserved, inside, host)
        return None

    def _host(self, inside: InVram, chunk: int) -> Plan:
        """Where memory and disk hold the others. Raises BudgetError."""
        room = self._ram_room - self._sizes.host_bytes(chunk, len(inside.cpu_attention))
        if all(b.index in inside.blocks or b.kind is BlockKind.EMBEDDING for b in self._blocks):
            room = max(0, room)  # whatever was granted: nothing of a pass is outside the GPU's memory
        staying = self._wishes.ram
        among = None
        if self._wishes.disk:
            among = frozenset(block.index for block in self._blocks) - self._wishes.disk
        if not staying:
            return plan(self._blocks, room, self._rates, among=among, apart=inside.blocks, idle=self._idle)
        # What has to stay is planned by nobody, and added.
        stay_bytes = sum(slot_bytes_for(block) for block in self._blocks if block.index in staying)
        apart = inside.blocks | staying
        least = stay_bytes + least_memory(self._blocks, among, apart)
        if least > room:
            raise BudgetError(
                f"the blocks that are to be in memory (--place) take {shown_bytes(stay_bytes)}, with what "
                f"reading the others takes {shown_bytes(least)}, and there are {shown_bytes(room)}: name "
                "fewer, or give more memory (--ram-budget)"
            )
        rest = plan(self._blocks, room - stay_bytes, self._rates, among=among, apart=apart, idle=self._idle)
        return replace(
            rest, resident=rest.resident | staying, resident_bytes=rest.resident_bytes + stay_bytes
        )

    def _shared_out(self, draft: _Draft) -> TierPlan:
        """Let the blocks be computed by whom it is fastest, as far as that is free."""
        reserved, inside, host = draft
        by_gpu = self._order.copied(inside)
        feed_forward = {b.index for b in self._blocks if b.kind is BlockKind.FEED_FORWARD}
        always = {i for i in by_gpu if i not in feed_forward}
        if self._executor is ExecutorChoice.STREAM:
            always |= feed_forward.intersection(by_gpu)
        drafted = TierPlan(
            layer_blocks=self._layers,
            vram=inside.blocks,
            host=host,
            streamed=frozenset(always),
            spare=None,
            cpu_attention=inside.cpu_attention,
            slots=reserved.slots,
            slot_bytes=self._order.slot_bytes if reserved.slots else 0,
            landing=reserved.landing,
            chunk=reserved.chunk,
            crossover=LONGEST_STEP,
            vram_bytes=inside.n_bytes,
            predicted_decode_s=None,
            predicted_prefill_s=None,
            limited_by="",
        )
        return self._with_spare(self._copied.shared_out(drafted), inside)

    def _with_spare(self, without: TierPlan, inside: InVram) -> TierPlan:
        """The same with a block where long passes compute, if steps are shorter for it.

        None that a person has a place for outside GPU memory, nor where all of that is to be the processor's.
        """
        clock = self._clock
        if clock is None or self._executor is ExecutorChoice.CPU:
            return without
        room = self._sizes.spare_bytes[without.chunk]
        index = self._order.next_outside(inside, without.host.resident, room)
        if index is None:
            return without
        drafted = replace(without, spare=index, streamed=without.streamed - {index})
        chosen = self._copied.shared_out(drafted)
        both = self._executor is ExecutorChoice.HYBRID
        if both and {*without.executors().values()} != {*chosen.executors().values()}:
            return without
        return min(without, chosen, key=lambda plan: clock.decode(plan).seconds)

    def _refusal(self, chunk: int, slots: int) -> BudgetError:
        """Names the smallest budget that works."""

        def works(budget: int) -> bool:
            try:
                return self._within(budget, chunk, slots) is not None
            except BudgetError:
                return False

        budgets = self._order.least(chunk, slots)
        smallest = next(filter(works, budgets), budgets[-1])
        return self._order.refusal(self._budget, smallest, Reserved(chunk, slots, False))
