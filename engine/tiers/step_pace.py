"""What decode steps have taken of the processor and of the way to the GPU lately, over a window of them.

Knows seconds, bytes and counts; does not know rates (`live_rates` does) and has no clock. Told after each
step, and asked between passes.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

_LEAST_STEPS, _LEAST_S = 16, 2.0
"""A shorter window says more about single steps than about the machine."""
_LONGEST = 32
"""Times as long is the longest: about a minute."""


class StepTimes(NamedTuple):
    """What a decode step takes, as rates have it, or as it was measured: medians.

    Before some steps a person was waited for, and in some another program ran.
    """

    seconds: float
    """From the end of one to that of the next."""
    products_s: float | None
    """Of the processor's products, seconds; None where it has none, or where rates do not know them."""
    copy_rate: float | None
    """Of copies to the GPU, bytes per second of the time in which there is one; None where there is none."""


class Copies(NamedTuple):
    """All that there were so far."""

    seconds: float
    n_bytes: int


class StepPace:
    """Looks at the steps of one model."""

    def __init__(self) -> None:
        """Begin with none."""
        self._arrangement = -1
        self._last: int | None = None
        """Number of the last step's pass."""
        self._at, self._copies = 0.0, Copies(0.0, 0)
        """When the last step was over, and what had been copied then."""
        self._longer = 1
        """Times as long as the shortest is the window."""
        self._begin()

    def note(self, number: int, arrangement: int, at: float, products_s: float, copies: Copies) -> None:
        """Count a step: the `number`-th pass of all, over by `at` seconds of any clock.

        The processor's products took `products_s`. In another `arrangement` of the blocks a window begins.
        """
        if arrangement != self._arrangement:
            self._arrangement, self._last, self._longer = arrangement, None, 1
            self._begin()
        self._products_s.append(products_s)
        if self._last is not None and number == self._last + 1:
            # Behind another pass both the time and the copies, which run ahead, would be of that one, too.
            self._whole_s.append(at - self._at)
            copy_s = copies.seconds - self._copies.seconds
            if copy_s > 0:
                self._copy_rates.append((copies.n_bytes - self._copies.n_bytes) / copy_s)
        self._last, self._at, self._copies = number, at, copies

    def take(self, arrangement: int) -> StepTimes | None:
        """What steps have taken in this arrangement, once there were enough.

        Then a new window begins, twice as long: as long as nothing moves there is less and less to learn, and
        looking takes time.
        """
        whole_s = self._whole_s
        enough = len(whole_s) >= _LEAST_STEPS * self._longer and sum(whole_s) >= _LEAST_S * self._longer
        if arrangement != self._arrangement or not enough:
            return None
        took = StepTimes(
            median(whole_s),
            median(self._products_s) or None,
            median(self._copy_rates) if self._copy_rates else None,
        )
        self._longer = min(2 * self._longer, _LONGEST)
        self._begin()
        return took

    def _begin(self) -> None:
        self._whole_s: list[float] = []
        """Of steps right behind another one."""
        self._products_s: list[float] = []
        self._copy_rates: list[float] = []
