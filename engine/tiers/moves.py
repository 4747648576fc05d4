"""From one plan to another while passes run: other budgets, other wishes, and memory that others take.

Knows plans, and in which order blocks have to move for one to become true; does not choose (`gpu_planner`
does), and carries nothing itself. Nothing here is called while a pass is under way: what a pass would look
for is taken away only between two.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from engine.errors import BudgetError
from engine.events import Executor, Tier, TierEventKind
from engine.machine import return_freed_memory
from engine.tiers.arrivals import Arrivals
from engine.tiers.blocks import Block, BlockKind, slot_bytes_for
from engine.tiers.budget import shown_bytes
from engine.tiers.one_use import OneUse
from engine.tiers.other_executors import Anew
from engine.tiers.placement import left_out_words
from engine.tiers.planner import Plan, least_memory, plan
from engine.tiers.pressure import VramPressure
from engine.tiers.showing import Showing
from engine.tiers.spare import Spare
from engine.tiers.step_pace import StepPace, StepTimes
from engine.tiers.tier_plan import Budgets, TierPlan
from engine.tiers.vram_moves import VramMoves
from engine.tiers.vram_order import FEWEST_SLOTS
from engine.tiers.whereabouts import Whereabouts
from engine.tiers.wishes import PlaceRule
from kernels.errors import DeviceMemoryError


class Replan(Protocol):
    """Plans for a model that is loaded."""

    def __call__(self, budgets: Budgets, rules: Sequence[PlaceRule], idle: frozenset[int]) -> TierPlan:
        """Make the plan for other budgets and rules, and for blocks that passes leave out.

        Raises BudgetError.
        """
        ...

    def at_pace(
        self, plan: TierPlan, disk_rate: float | None, took: StepTimes | None, idle: frozenset[int]
    ) -> Anew | None:
        """Take note of what passes have found: other bytes per second of the disk, and what steps `took`.

        What holds then, every block being where it is; None where that is no news.
        """
        ...


_NO_MEMORY = "memory ran out: some blocks are read from disk instead; close other programs"


class Moves:
    """Lets the blocks of one model move. One thread uses it."""

    def __init__(
        self,
        where: Whereabouts,
        arrivals: Arrivals,
        vram: VramMoves,
        one_use: OneUse[Any],
        spare: Spare[Any],
        showing: Showing,
        pressure: VramPressure,
        pace: StepPace,
        replan: Replan,
        host_beside: int,
        slot_bytes: int,
    ) -> None:
        """`host_beside` bytes of the budget for RAM are no weights'; `pressure` tells of the GPU's memory.

        `pace` tells of steps that leave nothing out, while nothing moves. Any layer block fits a slot of
        `slot_bytes`.
        """
        self._where, self._arrivals, self._vram = where, arrivals, vram
        self._one_use, self._spare = one_use, spare
        self._showing, self._pressure, self._pace = showing, pressure, pace
        self._plan_for, self._host_beside, self._slot_bytes = replan, host_beside, slot_bytes
        self._disk_rate = where.host.disk_rate
        """That the plan's promises were made with."""

    def change(self, budgets: Budgets, rules: Sequence[PlaceRule]) -> None:
        """Go over to the plan for other budgets and rules. Raises BudgetError, nothing having changed."""
        where = self._where
        self._go_or_stay(self._replan(budgets, rules), budgets)
        where.rules = tuple(rules)
        self._pressure.forget()
        self._showing.note(
            f"the budgets are {shown_bytes(budgets.vram)} of GPU memory and {shown_bytes(budgets.ram)} of "
            f"memory for weights: {len(where.plan.vram)} of {len(where.blocks)} blocks are to be on the GPU"
        )

    def leave_out(self, idle: frozenset[int]) -> None:
        """Go over to the plan for passes that leave these blocks out, by index; stay where there is none."""
        where, before = self._where, self._where.plan
        if idle == where.idle:
            return
        where.idle = idle
        budgets = where.budgets._replace(vram=where.budgets.vram - self._pressure.yielded)
        try:
            chosen = self._replan(budgets, where.rules)
            moves = (chosen.vram, chosen.host.resident) != (before.vram, before.host.resident)
            if moves and idle and self._worth(chosen) <= self._worth(before):
                where.aim(before, where.budgets)  # what is shown has changed all the same
            elif chosen.host == before.host and not moves:
                where.aim(chosen, where.budgets)
            else:
                self._go_or_stay(chosen, where.budgets)
        except BudgetError as error:
            where.aim(where.plan, where.budgets)
            self._showing.note(f"{_left_out(where)}, and blocks stay where they are: {error}")
        except MemoryError:
            self._note_no_memory()
        to_gpu, from_gpu = len(where.plan.vram - before.vram), len(before.vram - where.plan.vram)
        if to_gpu or from_gpu:
            self._showing.note(
                f"{_left_out(where)}: {to_gpu} blocks come to the GPU's memory and {from_gpu} leave it"
            )
        self._showing.show(now=True)

    def go_on(self, wait_s: float) -> None:
        """Let go what can leave the GPU, and let come what has room there, waiting for copies if told to."""
        self._vram.leave()
        refused = self._vram.promote(wait_s)
        if refused is not None:
            self._stay_below(refused)

    def settle(self) -> None:
        """All is where it was wanted; what a promotion has made room for in RAM may come now."""
        where = self._where
        where.settled = True
        try:
            self._retarget(where.plan.vram, where.plan.host)
        except MemoryError:
            self._note_no_memory()
        if not where.settled:
            return
        in_vram, in_ram = len(where.in_vram), len(where.in_ram)
        self._showing.note(
            f"{in_vram} of {len(where.blocks)} blocks are in the memory of the GPU, {in_ram} in RAM, "
            f"{len(where.blocks) - in_vram - in_ram} are read from disk"
        )
        return_freed_memory()  # plans, graphs and copies took some that would be kept for more of them

    def before_pass(self) -> None:
        """Give way to other programs, follow what passes have found, and have all memory for the next one.

        Raises DeviceMemoryError where there is none for the ring.
        """
        self._give_memory_back()
        self._follow_passes()
        self._yield_memory()
        self._count_landing_in()
        self._vram.leave()
        self._make_ring()

    def let_go_of_memory(self, withdrawn: frozenset[int]) -> None:
        """Let nothing be copied from memory in RAM any more, or be read into that of `withdrawn` blocks."""
        self._arrivals.forget(withdrawn)
        self._wait_for_copies()

    def _wait_for_copies(self) -> None:
        self._one_use.stop()
        self._spare.stop()
        self._vram.finish()

    # -- to another plan

    def _worth(self, plan: TierPlan) -> tuple[int, int]:
        """Of the bytes that passes use, those that a plan has on the GPU, and less those that it reads."""
        used = [block for block in self._where.blocks if block.index not in self._where.idle]
        in_vram = sum(block.n_bytes for block in used if block.index in plan.vram)
        return in_vram, -sum(block.n_bytes for block in used if block.index in plan.host.streamed)

    def _replan(self, budgets: Budgets, rules: Sequence[PlaceRule]) -> TierPlan:
        """The plan for other budgets and rules. Raises BudgetError."""
        return self._plan_for(budgets, rules, self._where.idle)

    def _go_or_stay(self, plan: TierPlan, budgets: Budgets) -> None:
        """`_go_to`; raises BudgetError where the GPU has no memory for the ring, and then goes back."""
        before = self._where.plan, self._where.budgets
        try:
            self._go_to(plan, budgets)
        except DeviceMemoryError as error:
            self._go_to(*before)
            # The driver does not say how much it wanted for what it makes itself.
            needed = f"{shown_bytes(error.asked)} of GPU memory" if error.asked else "more GPU memory"
            raise BudgetError(
                f"copies of blocks need {needed}, and other programs have left {shown_bytes(error.free)}: "
                "close some"
            ) from None

    def _go_to(self, plan: TierPlan, budgets: Budgets) -> None:
        """Let blocks move to where `plan` wants them. Raises MemoryError, DeviceMemoryError."""
        where = self._where
        self._wait_for_copies()
        self._vram.drop(self._arrivals.to_gpu - plan.vram)  # what has not arrived is of no use
        entering = plan.vram - where.in_vram - self._arrivals.to_gpu
        # A block leaves RAM once it is in the GPU's memory, and that once it is in RAM.
        from_ram = entering & where.in_ram
        where.copied = (where.copied | where.plan.not_of_processor) & from_ram
        where.aim(plan, budgets)
        where.settled = False
        self._vram.want(entering)
        self._retarget(plan.vram - from_ram, _with_residents(plan.host, [where.blocks[i] for i in from_ram]))
        self._vram.leave()
        self._make_ring()

    def _retarget(self, apart: frozenset[int], chosen: Plan) -> None:
        """Let memory hold what `chosen` says, with `apart` on the GPU; what is missing is read."""
        where = self._where
        room = max(0, where.budgets.ram - self._host_beside)
        for index, memory in where.host.retarget(apart, room, chosen).items():
            coming = where.coming.get(index)
            if coming is None or coming.into is not memory:
                self._arrivals.forget({index})
                self._arrivals.ask(where.blocks[index], memory)

    def _make_ring(self) -> None:
        """Have the slots that the plan wants; where the GPU is full, blocks leave it for them."""
        where = self._where
        try:
            self._one_use.make_ring()
        except DeviceMemoryError as error:
            leaving = where.in_vram - where.plan.vram
            if leaving:
                self._vram.drop(leaving)  # before they have come to RAM: a pass waits for them there
                self._make_ring()
                return
            less = where.budgets._replace(vram=where.plan.vram_bytes - where.plan.ring_bytes)
            smaller = self._smaller(less, where.plan.ring_bytes)
            if smaller is None:
                raise error from None
            self._go_to(smaller, where.budgets)

    # -- memory that is not there

    def _count_landing_in(self) -> None:
        """Have a slot in the plan for blocks from disk where some have to be read that were to stay in RAM.

        Else a pass would ask for it, when no block can leave the GPU for it any more.
        """
        where, plan, host = self._where, self._where.plan, self._where.host.plan
        if plan.landing or not host.streamed:
            return
        copied = {index for index, who in plan.prefill_executors().items() if who is Executor.STREAM}
        if copied.isdisjoint(host.streamed):
            return
        needed = plan.vram_bytes + plan.slot_bytes
        where.aim(replace(plan, landing=True, vram_bytes=needed), where.budgets)
        there = Budgets(where.budgets.vram - self._pressure.yielded, host.ram_bytes + self._host_beside)
        smaller = self._smaller(there, needed - there.vram) if needed > there.vram else None
        if smaller is None:
            return
        try:
            self._go_to(smaller, where.budgets)
        except MemoryError:
            self._note_no_memory()

    def _smaller(self, budgets: Budgets, n_bytes: int) -> TierPlan | None:
        """A plan for these budgets, or else the present one without so many bytes of blocks on the GPU.

        None where there are none.
        """
        try:
            return self._replan(budgets, self._where.rules)
        except BudgetError:
            last = self._last_blocks(n_bytes)
            return self._outside(last) if last else None

    def _stay_below(self, error: DeviceMemoryError) -> None:
        """The GPU's memory is not there: as much as was to be promoted stays below."""
        stay = self._vram.without_room
        self._vram.want(frozenset())
        self._showing.note(
            f"{len(stay)} blocks stay out of the GPU's memory: {shown_bytes(error.free)} are free there, "
            "since another program has taken some",
            TierEventKind.WARNING,
        )
        try:
            self._go_to(self._plan_without(stay), self._where.budgets)
        except MemoryError:
            self._note_no_memory()
        except DeviceMemoryError as refused:  # the next pass tries again, and tells if it has to
            self._showing.note(f"the ring for copies has no room: {refused}", TierEventKind.WARNING)

    def _plan_without(self, stay: frozenset[int]) -> TierPlan:
        """A plan that takes less GPU memory by what some blocks take; wishes for it may not hold."""
        where, blocks, rules = self._where, self._where.blocks, self._where.rules
        less = where.plan.vram_bytes - sum(blocks[index].n_bytes for index in stay)
        for kept in (rules, [rule for rule in rules if rule.tier != Tier.VRAM]):
            with suppress(BudgetError):
                return self._replan(where.budgets._replace(vram=less), kept)
        return self._outside(stay)

    def _last_blocks(self, n_bytes: int) -> frozenset[int]:
        """Layer blocks on the GPU that make room for so many bytes, or all there are; attention last."""
        where = self._where
        found: set[int] = set()
        layer_blocks = [block for block in where.blocks if block.layer is not None]
        for block in sorted(
            reversed(layer_blocks), key=lambda block: block.kind is not BlockKind.FEED_FORWARD
        ):
            if n_bytes > 0 and block.index in where.plan.vram:
                found.add(block.index)
                n_bytes -= block.n_bytes
        return frozenset(found)

    def _outside(self, blocks_outside: frozenset[int]) -> TierPlan:
        """The present plan but for some blocks that the GPU copies for every step instead."""
        where, blocks = self._where, self._where.blocks
        vram = where.plan.vram - blocks_outside
        room = max(where.budgets.ram - self._host_beside, least_memory(blocks, None, vram))
        above = where.plan.above(plan(blocks, room, None, apart=vram, idle=where.idle))
        chosen = replace(
            above,
            vram=vram,
            streamed=above.streamed | blocks_outside & frozenset(where.plan.layer_blocks),
            slots=where.plan.slots or FEWEST_SLOTS,
            slot_bytes=where.plan.slot_bytes or self._slot_bytes,
            landing=True,
        )
        left = sum(blocks[index].n_bytes for index in where.plan.vram - vram)
        taken = chosen.ring_bytes - where.plan.ring_bytes
        return replace(chosen, vram_bytes=where.plan.vram_bytes - left + taken)

    def _follow_passes(self) -> None:
        """Let what the plan promises follow what passes have found, and with it who computes a block."""
        where, before, disk_rate = self._where, self._where.plan, self._where.host.disk_rate
        if disk_rate == self._disk_rate or not where.host.plan.streamed:
            disk_rate = None
        # What steps have taken is not what the plan of now promises where others are to come.
        took = self._pace.take(where.arrangement) if where.settled and not where.idle else None
        if disk_rate is None and took is None:
            return
        self._disk_rate = disk_rate or self._disk_rate
        anew = self._plan_for.at_pace(before, disk_rate, took, where.idle)
        if anew is None:
            return
        where.aim(anew.plan, where.budgets)
        if anew.why:
            self._showing.note(
                f"{anew.why}: {len(anew.plan.streamed)} instead of {len(before.streamed)} blocks are copied "
                "to the GPU for every token"
            )

    def _give_memory_back(self) -> None:
        """Give way to other programs in RAM; what leaves it does not come back by itself."""
        where, host = self._where, self._where.host
        before = host.plan
        host.before_pass()
        if host.plan.resident == before.resident:
            return
        among, vram = host.plan.resident, where.plan.vram
        room = max(host.snapshot().budget_bytes, least_memory(where.blocks, among, vram))
        below = plan(where.blocks, room, None, among=among, apart=vram, idle=where.idle)
        where.aim(where.plan.above(below), where.budgets._replace(ram=room + self._host_beside))

    def _yield_memory(self) -> None:
        """Give way to other programs on the GPU, and take back what they have left."""
        needed = self._pressure.to_yield()
        if needed is None:
            return
        where, before = self._where, self._where.plan.vram
        try:
            plan = self._replan(where.budgets._replace(vram=where.budgets.vram - needed), where.rules)
            if plan.vram == before:
                return
            self._go_or_stay(plan, where.budgets)
        except BudgetError as error:  # the model stays as it is
            self._showing.note(f"another program needs the GPU's memory: {error}", TierEventKind.WARNING)
            return
        except MemoryError:
            self._note_no_memory()
        fewer = len(before) - len(where.plan.vram)
        if fewer > 0:
            self._showing.note(
                f"another program has taken GPU memory: {fewer} blocks leave it", TierEventKind.WARNING
            )
        else:
            self._showing.note(f"GPU memory is free again: {-fewer} blocks come back")

    def _note_no_memory(self) -> None:
        self._showing.note(_NO_MEMORY, TierEventKind.WARNING)


def _left_out(where: Whereabouts) -> str:
    """Which blocks passes leave out, in words."""
    numbers = (n for n, block in enumerate(where.host.layer_blocks) if block.index in where.idle)
    return left_out_words(frozenset(numbers))


def _with_residents(below: Plan, blocks: Sequence[Block]) -> Plan:
    """A plan that keeps some more blocks in memory, which are there already."""
    return replace(
        below,
        resident=below.resident | {block.index for block in blocks},
        resident_bytes=below.resident_bytes + sum(map(slot_bytes_for, blocks)),
    )
