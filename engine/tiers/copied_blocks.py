"""Which of the feed-forward blocks in memory are copied to the GPU for every decode step.

The others are the processor's. As many as makes a step shortest on the simulator's clock, evenly spread.
Knows plans and what was asked for; does not know budgets, and does not say where a block is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.config import ExecutorChoice
from engine.tiers.blocks import Block, BlockKind
from engine.tiers.tier_clock import TierClock
from engine.tiers.tier_plan import TierPlan

_COARSE = 8
"""Steps in which the number of copied blocks is looked for first."""
_ALIKE = 1.002
"""Times by each other of which neither is better."""


class CopiedBlocks:
    """Of one model, by one set of rates."""

    def __init__(
        self,
        blocks: Sequence[Block],
        clock: TierClock | None,
        executor: ExecutorChoice,
        idle: frozenset[int],
        near: TierPlan | None = None,
    ) -> None:
        """Without a clock nothing is known of times; passes leave blocks in `idle` out.

        The best number is first looked for near what the plan `near` copies, everywhere without one.
        """
        self._clock, self._executor, self._idle = clock, executor, idle
        self._feed_forward = [block.index for block in blocks if block.kind is BlockKind.FEED_FORWARD]
        self._share: float | None = None
        """Of the blocks that may be copied, where that was last looked for."""
        if near is not None and (free := self._free(near)):
            self._share = len(near.streamed.intersection(free)) / len(free)

    def shared_out(self, plan: TierPlan) -> TierPlan:
        """The same plan with these blocks computed by whom it is fastest, as far as that is free.

        What else it copies stays copied.
        """
        if self._executor is ExecutorChoice.STREAM:  # all are copied
            return plan
        free = self._free(plan)
        others = plan.streamed.difference(free)

        def copying(n: int) -> TierPlan:
            """`n` of them, evenly spread."""
            total = len(free)
            taken = [index for k, index in enumerate(free) if (k * n) // total != (k + 1) * n // total]
            return replace(plan, streamed=others.union(taken))

        return copying(self._how_many(len(free), copying))

    def _free(self, plan: TierPlan) -> list[int]:
        """Blocks that may be copied or not."""
        elsewhere = {*self._idle, plan.spare}
        return [i for i in self._feed_forward if i in plan.host.resident and i not in elsewhere]

    def _how_many(self, most: int, copying: Callable[[int], TierPlan]) -> int:
        """How many of `most` are copied."""
        if not most or self._executor is ExecutorChoice.CPU:
            return 0
        both = self._executor is ExecutorChoice.HYBRID and most > 1
        candidates = range(1, most) if both else range(most + 1)
        clock = self._clock
        if clock is None:
            return most // 2 if both else 0
        near = None if self._share is None else round(self._share * most)
        n_copied = _least(candidates, near, lambda n: clock.decode(copying(n)).seconds)
        self._share = n_copied / most
        return n_copied


def _least(candidates: range, near: int | None, cost: Callable[[int], float]) -> int:
    """Where `cost` is about least: looked for `near` a number or everywhere, in large steps and then smaller.

    Of what differs by next to nothing the smallest is taken.
    """
    costs: dict[int, float] = {}
    step = max(1, len(candidates) // _COARSE)
    to_try = [*candidates[::step], candidates[-1]]
    if near is not None:
        step = -(-step // 2)
        to_try = [min(max(near, candidates[0]), candidates[-1])]
    while True:
        new = [n for n in to_try if n in candidates and n not in costs]
        costs |= {n: cost(n) for n in new}
        best = min(costs, key=lambda n: costs[n])
        if not new:
            if step == 1:
                return min(n for n in costs if costs[n] <= costs[best] * _ALIKE)
            step = -(-step // 2)
        to_try = [best - step, best + step]
