"""Rates from counters that only grow: a smoothed one for the number, and the last half minute for the curve.

Knows moments and counts; does not know what is counted. Used by the report of the tiers.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

BIN_S: Final = 0.5
BINS: Final = 60
"""Half a minute."""
SMOOTH_S: Final = 1.0
"""Time constant of the number: long enough to be read, short enough to be true."""


class Rate:
    """How fast a counter grows, from readings at any moments."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.now = 0.0
        """Per second, smoothed."""
        self._last: tuple[float, float] | None = None
        self._first_bin = 0
        self._bins: deque[float] = deque(maxlen=BINS)
        """Counted in each half second."""

    def add(self, at: float, count: float) -> None:
        """Take a reading; one from before the last is passed over, a counter that fell begins anew."""
        if self._last is None or count < self._last[1]:
            self._last = (at, count)
            return
        before, counted = self._last
        if at <= before:
            return
        rate = (count - counted) / (at - before)
        # The first rate is taken as it is: a curve that starts at 0 would be an invention.
        weight = 1 - math.exp(-(at - before) / SMOOTH_S) if self._bins else 1.0
        self.now += weight * (rate - self.now)
        self._spread(before, at, rate)
        self._last = (at, count)

    def rest(self) -> None:
        """Say that nothing is under way: the number is 0, whatever came last."""
        self.now = 0.0

    @property
    def history(self) -> tuple[float, ...]:
        """Rates of the last half minute by half seconds, oldest first; the running one is left out."""
        return tuple(count / BIN_S for count in list(self._bins)[:-1])

    def _spread(self, start: float, end: float, rate: float) -> None:
        """Share what was counted among the half seconds it took."""
        first = max(int(start / BIN_S), int(end / BIN_S) - BINS)
        if not self._bins:
            self._first_bin = first
        for number in range(first, int(end / BIN_S) + 1):
            while self._first_bin + len(self._bins) <= number:
                if len(self._bins) == BINS:
                    self._first_bin += 1
                self._bins.append(0.0)
            overlap = min(end, (number + 1) * BIN_S) - max(start, number * BIN_S)
            if number >= self._first_bin:
                self._bins[number - self._first_bin] += rate * max(0.0, overlap)


def sparkline(values: Sequence[float], top: float, width: int) -> str:
    """Return a curve of `width` columns with the newest value at the right, `top` being a full column.

    The scale is fixed, so that two curves can be compared. A column of nothing is a blank, of little a line.
    """
    if width <= 0:
        return ""
    per_column = max(1, -(-BINS // width))
    newest_first = list(reversed(values))
    columns: list[str] = []
    for start in range(0, min(len(newest_first), width * per_column), per_column):
        part = newest_first[start : start + per_column]
        share = sum(part) / len(part) / top if top > 0 else 0.0
        columns.append(_COLUMNS[math.ceil(min(1.0, share) * 8)] if share > 0 else _COLUMNS[0])
    return "".join(reversed(columns)).rjust(width)


_COLUMNS: Final = " ▁▂▃▄▅▆▇█"
