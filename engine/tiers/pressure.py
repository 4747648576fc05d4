"""Other programs on the same GPU: how much of its memory they have taken since a model was loaded.

Knows figures and a clock; does not know blocks, and moves nothing. Asked between passes by the placement.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_INTERVAL_S = 1.0
_CALM_S = 10.0
"""Memory that has become free is taken back only after so long, lest two programs chase each other."""
_LEFT_FREE = 1 << 30
"""So much, or half of what was free at the beginning if that is less, is kept free for others."""
_STEP_BYTES = 256 << 20
"""Less is not worth a move."""


class VramPressure:
    """Says what budget is left to us."""

    def __init__(
        self, read: Callable[[], tuple[int, int]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Watch what `read` returns: bytes that are free on the GPU, and that we have allocated."""
        self._read, self._clock = read, clock
        self._next = self._changed = clock()
        self.forget()

    def forget(self) -> None:
        """What others have taken so far is accounted for: a budget was chosen anew."""
        free, used = self._read()
        self._ours, self._slack = free + used, free - min(free // 2, _LEFT_FREE)
        self.yielded = 0
        """Bytes of our budget that were given up since."""

    def to_yield(self) -> int | None:
        """Bytes of our budget that others need now; None when that has not changed."""
        now = self._clock()
        if now < self._next:
            return None
        self._next = now + _INTERVAL_S
        taken = self._ours - sum(self._read())
        wanted = max(0, taken - self._slack)
        more = wanted - self.yielded
        if abs(more) < _STEP_BYTES and (wanted or not more):
            return None
        if more < 0 and now - self._changed < _CALM_S:
            return None
        self.yielded, self._changed = wanted, now
        return wanted
