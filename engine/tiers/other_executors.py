"""Whether other executors would be faster now that steps have shown the rates of this machine, and why.

The blocks stay where they are: which of the feed-forward blocks in memory are copied for every step is chosen
anew (`copied_blocks`), and up to which length passes go the way of a step. Knows plans and rates; changes
nothing itself. Called by the planner of a loaded model, between passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.config import ExecutorChoice
from engine.tiers.blocks import Block, BlockKind
from engine.tiers.copied_blocks import CopiedBlocks
from engine.tiers.gpu_planner import predicted
from engine.tiers.live_rates import LiveRates
from engine.tiers.rates import Rates, differ
from engine.tiers.simulator import cpu_seconds
from engine.tiers.step_pace import StepTimes
from engine.tiers.tier_clock import TierClock
from engine.tiers.tier_plan import TierPlan

_LEAST_GAIN = 0.02
"""Share of a step's time that another choice has to save."""
_SLOWER = 0.01
"""Share of a step's time by which a choice that has to be taken back is slower."""
_CORRECTIONS = 3
"""After so many the simulator says what was measured."""
_MOST_BEYOND = 2.0
"""What is further from the simulated time is no time of a step."""


class Anew(NamedTuple):
    """What holds from now on."""

    plan: TierPlan
    """Blocks are where they were."""
    why: str
    """Why others compute some of them, in words; empty where the same do."""


class OtherExecutors:
    """Of one loaded model.

    Choices cannot go round. By the same rates each takes less time than the one before. Rates are those that
    steps have shown, though, and under another choice they may show others. So where steps then take longer
    than before it, the choice is taken back, and nothing else is tried; and each has to save twice as much as
    the last one, so that after six there is nothing that would. The first steps judge a choice: later
    ones take longer as the context fills, too. Only when steps have taken what was promised, and later, under
    the same choice, do not, it is the machine that has changed: all is open again.
    """

    def __init__(self, blocks: Sequence[Block], rates: LiveRates, executor: ExecutorChoice) -> None:
        """`rates` follow what is found here; `executor` binds."""
        self._blocks, self._rates, self._executor = blocks, rates, executor
        self.begin()

    @property
    def rates(self) -> Rates:
        """Those of now."""
        return self._rates.now

    def begin(self) -> None:
        """Note that a plan was made by the rates of now."""
        self._chosen_by = self._rates.now
        self._as_promised = False
        """Whether rates have turned out right since the last choice."""
        self._beyond = 1.0
        """Times as long as by the simulator steps take: waiting threads, drawing and the screen are in it."""
        self._known: tuple[TierPlan, Rates, StepTimes] | None = None
        """What the simulator made of a plan by some rates."""
        self._open()

    def _open(self) -> None:
        self._gain = _LEAST_GAIN
        self._before: tuple[TierPlan, float] | None = None
        """The choice before this one, and the seconds of a step by it; None once this one is judged."""

    def follow(
        self, plan: TierPlan, disk_rate: float | None, took: StepTimes | None, idle: frozenset[int]
    ) -> Anew | None:
        """What holds now that the disk has been read at another rate, or that steps of `plan` `took` so long.

        `idle`: blocks that passes leave out. None where neither is news.
        """
        if disk_rate is not None:
            self._rates.at_disk_rate(disk_rate)
        other_rates = took is not None and self._learn(plan, took, idle)
        before = self._before
        if took is not None:
            self._before = None
        news = disk_rate is not None or other_rates
        if took is not None and (other_rates or differ(took.seconds, _decode_s(plan))):
            beyond = took.seconds / self._simulated(plan, idle).seconds
            self._beyond = min(max(beyond, 1 / _MOST_BEYOND), _MOST_BEYOND)
            news = True
        if not news:
            return None
        clock = self._clock(idle)
        same = self._predicted(plan, clock)
        other: TierPlan | None = None
        why = ""
        if took is not None and before is not None:
            # What is on disk stays the processor's, and its rate may change with every block.
            other = self._taken_back(same, *before, clock)
            why = (
                f"a step takes {_decode_s(same):.3g} s since the last change and took {before[1]:.3g} before"
            )
        if other is None and other_rates:
            other, why = self._next(same, clock, idle), self._why(same)
        if other is None:
            return Anew(same, "")
        self._as_promised, self._chosen_by = False, self._rates.now
        return Anew(other, why)

    def _learn(self, plan: TierPlan, took: StepTimes, idle: frozenset[int]) -> bool:
        """Correct the rates; whether they were wrong."""
        wrong = self._rates.are_others(self._simulated(plan, idle), took)
        if wrong and self._as_promised:
            self._open()
        self._as_promised = not wrong
        for _ in range(_CORRECTIONS if wrong else 0):
            self._rates.correct(self._simulated(plan, idle), took)
        return wrong

    def _next(self, same: TierPlan, clock: TierClock, idle: frozenset[int]) -> TierPlan | None:
        """Another choice that pays."""
        other = CopiedBlocks(self._blocks, clock, self._executor, idle, same).shared_out(same)
        if other.streamed == same.streamed:
            return None
        if self._beyond * clock.decode(other).seconds > _decode_s(same) * (1 - self._gain):
            return None
        self._gain *= 2
        self._before = same, _decode_s(same)
        return self._predicted(replace(other, crossover=clock.crossover(other)), clock)

    def _taken_back(
        self, same: TierPlan, before: TierPlan, before_s: float, clock: TierClock
    ) -> TierPlan | None:
        """The choice before this one, where steps took clearly less by it than they have taken since."""
        moved = (before.vram, before.host.resident) != (same.vram, same.host.resident)
        if moved or _decode_s(same) < before_s * (1 + _SLOWER):
            return None
        self._gain = 1.0  # nothing saves all of a step
        return self._predicted(replace(same, streamed=before.streamed, crossover=before.crossover), clock)

    def _predicted(self, plan: TierPlan, clock: TierClock) -> TierPlan:
        plan = predicted(plan, clock)
        return replace(plan, predicted_decode_s=self._beyond * _decode_s(plan))

    def _simulated(self, plan: TierPlan, idle: frozenset[int]) -> StepTimes:
        """What a step takes by the rates of now; kept, for a simulation takes milliseconds."""
        known = self._known
        if known is not None and known[0] is plan and known[1] is self._rates.now:
            return known[2]
        times = self._clock(idle).step_times(plan)
        self._known = plan, self._rates.now, times
        return times

    def _clock(self, idle: frozenset[int]) -> TierClock:
        rates = self._rates.now
        assert rates.link is not None, "there were some"
        # What they say of copies is within a limit of the link.
        return TierClock(self._blocks, rates, rates.link, None, idle)

    def _why(self, plan: TierPlan) -> str:
        """What is other than when executors were chosen last."""
        now, then = self._rates.now, self._chosen_by
        assert now.link is not None and then.link is not None
        products = "the processor multiplies"
        if plan.streamed:
            products = "beside copies the processor multiplies"
        of_both = (
            (products, self._product_rate(plan, now), self._product_rate(plan, then)),
            ("copies to the GPU reach", now.link.h2d, then.link.h2d),
        )
        changed = [one for one in of_both if differ(one[1], one[2])] or of_both
        return ", and ".join(
            f"{what} {rate / 1e9:.3g} GB/s in steps where {counted_on / 1e9:.3g} were counted on"
            for what, rate, counted_on in changed
        )

    def _product_rate(self, plan: TierPlan, rates: Rates) -> float:
        """Of feed-forward blocks that are not in the GPU's memory, bytes per second beside what is copied."""
        assert rates.link is not None
        outside = [b for b in self._blocks if b.kind is BlockKind.FEED_FORWARD and b.index not in plan.vram]
        seconds = sum(cpu_seconds(block, rates, 1) for block in outside)
        kept = rates.link.cpu_beside_h2d if plan.streamed else 1.0
        return kept * sum(block.n_bytes for block in outside) / seconds


def _decode_s(plan: TierPlan) -> float:
    assert plan.predicted_decode_s is not None, "there are rates"
    return plan.predicted_decode_s
