"""How often to look at the engine: so often that a reply flows, so seldom that the engine has the processor.

Knows what this thread has cost; does not know what it looked at or drew.
"""

from __future__ import annotations

import time
from typing import Final

SOON_S: Final = 0.125
"""Seconds until the next look where looks are cheap."""
LATE_S: Final = 0.4
"""Seconds until the next look however dear they are."""
SHARE: Final = 0.05
"""Share of a core's time that looking and drawing may take."""


class Pace:
    """Measures what looks cost, drawing included, and spaces them."""

    def __init__(self) -> None:
        """Begin with a look that has cost nothing yet."""
        self._cpu_s = time.thread_time()

    def begin(self) -> float:
        """Return the seconds until the next look after a time without any."""
        self._cpu_s = time.thread_time()
        return SOON_S

    def next(self) -> float:
        """Return the seconds until the next look; what was done since the last one was its cost."""
        before, self._cpu_s = self._cpu_s, time.thread_time()
        return min(LATE_S, max(SOON_S, (self._cpu_s - before) / SHARE))
