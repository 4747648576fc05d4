"""What passes and drafts cost here and how often drafts are right, as measured; and from it, how many pay.

Seconds and counts in, counts out: knows no model, no clock and no drafter. One belongs to a loaded model and
outlives replies. The model of a round with k drafts is: ids gained, 1 + a + ... + a^k where a draft is right
with probability a if those before it were; time, the drafts', one pass over k + 1 ids, the drawing of the ids
gained, and what is done with each of them elsewhere (Leviathan and others, https://arxiv.org/abs/2211.17192,
section 3.3, with measured times).
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import deque
from statistics import median

from engine.config import MOST_DRAFTS, DraftKind
from engine.skipping.skip_choice import SkipSet

MARGIN = 1.02
"""Drafts must promise this much more than plain steps do."""
_COUNTS = (1, 2, 3, 5, 7, 11, 15, MOST_DRAFTS)
"""How many drafts are chosen among: with the id before them, whole tiles of the kernels."""
_STAYS = 0.97
"""A count that comes so near to the best one is kept: each count is a kernel or a graph of its own."""
_LOSS = 0.005
"""Share of the time that drafting may have lost on plain steps, all in all."""
_CREDIT = 2.0
"""Plain steps that it may lose on top, for the first trials; of what was won, as many are kept in mind."""
_PLAIN_EVERY = 64
"""Rounds with drafts after which the time of a plain step is looked at again."""
_REMEMBERED = 8
"""Measurements of one kind that count."""
_MOST_SETS = 8
"""Skip sets whose passes are remembered."""
_FAR_FROM = 2 * (MOST_DRAFTS + 1)
"""Ids from which on a prompt's pass tells what many ids cost."""
_UNKNOWN = 0.25
"""While nothing is known of several ids, each one more is taken to cost so much of a plain step."""


class PassTimes:
    """Seconds of passes by their ids, as measured last, and guesses at counts that were not.

    Kept against the plain step of their time: contexts grow and machines have other work, which makes all
    passes slower, and only those that run are measured again.
    """

    def __init__(self) -> None:
        """Nothing measured yet."""
        self._measured: dict[int, deque[float]] = {}
        """Of one id seconds, of more of them plain steps."""
        self._counts: list[int] = []
        """Those that were measured, ascending."""
        self._steps: dict[int, float] = {}
        """What is taken of each, in plain steps."""
        self._plain: float | None = None
        self._far: tuple[int, float] | None = None
        """A prompt's ids and seconds."""

    def add(self, count: int, seconds: float) -> None:
        """Note a pass; the first of a count is not used: kernels and graphs come with it."""
        known = self._measured.get(count)
        if known is None:
            self._measured[count] = deque(maxlen=_REMEMBERED)
        elif count == 1:
            known.append(seconds)
            self._plain = typical(known)
            self._note(1, 1.0)
        elif self._plain is not None:
            known.append(seconds / self._plain)
            self._note(count, typical(known))

    def _note(self, count: int, steps: float) -> None:
        if count not in self._steps:
            insort(self._counts, count)
        self._steps[count] = steps

    def add_prompt(self, count: int, seconds: float) -> None:
        """Note a pass of a prompt: all that is known of several ids before any have been verified."""
        if count >= _FAR_FROM:
            self._far = count, seconds

    def knows(self, count: int) -> bool:
        """Whether passes over so many ids were measured."""
        return count in self._steps

    def at(self, count: int) -> float | None:
        """Seconds of a pass over so many ids; None while no plain step was measured."""
        steps, plain = self._steps, self._plain
        if plain is None:
            return None
        if count in steps:
            return steps[count] * plain
        above = bisect(self._counts, count)
        low = self._counts[above - 1]
        slope = self._least_slope(low, plain)
        if above < len(self._counts):
            high = self._counts[above]
            slope = min(slope, (steps[high] - steps[low]) / (high - low))
        return (steps[low] + (count - low) * slope) * plain

    def _least_slope(self, low: int, plain: float) -> float:
        """Plain steps for each id more than so many: the least that they may turn out to be.

        Passes of a GPU cost next to nothing more up to some count, and several times as much beyond it: it is
        found by trying counts that may pay. What is tried is measured, and then not taken to be less.
        """
        slopes = []
        if low > 1:
            slopes.append((self._steps[low] - 1) / (low - 1))
        if self._far is not None:
            slopes.append((self._far[1] / plain - 1) / (self._far[0] - 1))
        return max(0.0, min(slopes, default=_UNKNOWN))


class DraftRecord:
    """One kind of drafter: what its drafts cost, and how often they are right."""

    def __init__(self) -> None:
        """Half of the drafts are taken to be right until some have been seen."""
        self._right, self._seen = 0.5, 1.0
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self.last = 0
        """How many were verified last."""
        self.rounds = 0
        """Rounds with drafts since the last plain step."""

    @property
    def acceptance(self) -> float:
        """Probability that a draft is right where those before it were."""
        return self._right / self._seen

    def saw(self, right: int, wrong: int) -> None:
        """Note drafts that were looked at; the last 32 or so count."""
        fade = (1 - 1 / 32) ** (right + wrong)
        self._right, self._seen = self._right * fade + right, self._seen * fade + right + wrong

    def took(self, count: int, seconds: float) -> None:
        """Note what `count` drafts, at least one, have cost."""
        self._seconds.append(seconds / count)

    @property
    def draft_s(self) -> float | None:
        """Seconds of one draft; None before any were measured."""
        return typical(self._seconds) if self._seconds else None


class StepCosts:
    """Of one loaded model."""

    def __init__(self) -> None:
        """Nothing measured yet."""
        self._passes: dict[SkipSet, PassTimes] = {}
        self._records: dict[DraftKind, DraftRecord] = {}
        self._draws: deque[float] = deque(maxlen=_REMEMBERED)
        self._outside: deque[float] = deque(maxlen=_REMEMBERED)
        self._spent_s = 0.0
        self._lost_s = 0.0

    # -- what was measured

    def passes(self, skip: SkipSet) -> PassTimes:
        """Of passes that leave this set out, until the first id after them is known."""
        if skip not in self._passes:
            while len(self._passes) >= _MOST_SETS:
                del self._passes[next(iter(self._passes))]
            self._passes[skip] = PassTimes()
        return self._passes[skip]

    def record(self, kind: DraftKind) -> DraftRecord:
        """Of one kind of drafter."""
        return self._records.setdefault(kind, DraftRecord())

    def drew(self, seconds: float) -> None:
        """Note what it took to draw one more id after a pass."""
        self._draws.append(seconds)

    def waited(self, seconds: float) -> None:
        """Note what passed between two ids while nothing was computed here."""
        self._outside.append(seconds)

    def finished(self, skip: SkipSet, ids: int, seconds: float, *, drafted: bool) -> None:
        """Keep account of a round that was free to have no drafts: what those have lost on plain steps."""
        plain = self.passes(skip).at(1)
        self._spent_s += seconds
        if drafted and plain is not None:
            self._lost_s = max(-_CREDIT * plain, self._lost_s + seconds - ids * plain)

    def plain_step_s(self, skip: SkipSet) -> float:
        """From one id to the next without drafts, all in all; 0 before any."""
        plain = self.passes(skip).at(1)
        return 0.0 if plain is None else plain + typical(self._outside)

    # -- what follows from it

    def gain(self, skip: SkipSet, kind: DraftKind, drafts: int) -> float | None:
        """Predicted speed of rounds with so many drafts, against plain steps; None before both are known."""
        record, times = self.record(kind), self.passes(skip)
        plain, draft_s = times.at(1), record.draft_s
        if plain is None or draft_s is None:
            return None
        ids, outside_s = expected_ids(record.acceptance, drafts), typical(self._outside)
        pass_s = times.at(drafts + 1) or plain
        seconds = drafts * draft_s + pass_s + (ids - 1) * typical(self._draws)
        return ids * (plain + outside_s) / (seconds + ids * outside_s)

    def choose(self, skip: SkipSet, kind: DraftKind, most: int, *, tries: bool) -> int:
        """How many drafts the next round is to have, 0 to `most`; 0 where they do not pay.

        With `tries` drafts that do not promise to pay are tried all the same where that can lose little
        enough. Whatever is promised: drafts that have lost too much are left alone until enough time has
        passed without.
        """
        record, plain = self.record(kind), self.passes(skip).at(1)
        if plain is None or record.rounds >= _PLAIN_EVERY or most < 1:
            return 0
        may_lose = _LOSS * self._spent_s - self._lost_s
        if may_lose + _CREDIT * plain <= 0:
            return 0
        counts = [count for count in _COUNTS if count <= most]
        gains = {count: gain for count in counts if (gain := self.gain(skip, kind, count)) is not None}
        if not gains:
            return 1  # to find out what it costs
        drafts = max(gains, key=gains.__getitem__)
        if record.last in gains and gains[record.last] >= _STAYS * gains[drafts]:
            drafts = record.last
        best = gains[drafts]
        if best >= MARGIN:
            # Between two counts a line is assumed, which hides where costs rise steeply: just above the best.
            fewer = max((count for count in counts if count < drafts), default=drafts)
            return drafts if self.passes(skip).knows(fewer + 1) else fewer
        loses = expected_ids(record.acceptance, drafts) * self.plain_step_s(skip) * (1 / best - 1)
        return drafts if tries and loses <= may_lose else 0


def expected_ids(acceptance: float, drafts: int) -> float:
    """Ids that a round gives on average, the one that corrects or follows the drafts included."""
    if acceptance == 1:
        return drafts + 1.0
    return (1 - acceptance ** (drafts + 1)) / (1 - acceptance)


def typical(seconds: deque[float]) -> float:
    """The median, of one or two the smaller; 0 of none."""
    if not seconds:
        return 0.0
    return median(seconds) if len(seconds) > 2 else min(seconds)
