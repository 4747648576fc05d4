"""How fast a disk has been while blocks were streamed: what predictions go by once enough was read.

A probe reads for a second, and a disk that is shared with others, or has a cache of its own, may give
something else for minutes. Knows bytes and seconds; reads nothing. Called by the store, between passes.
"""

from __future__ import annotations

from engine.tiers.rates import differ
from engine.tiers.streamer import StreamStats

_LEAST_BYTES = 1 << 30
"""What less than this took says little."""


class DiskPace:
    """The rate of one disk, from a probe or as it has been lately."""

    def __init__(self, probed: float | None) -> None:
        """Begin with what a probe found, bytes per second; None where none did."""
        self.rate = probed
        self.learnt = False
        """Whether `rate` is from what was read."""
        self._counted = StreamStats()

    def note(self, stats: StreamStats) -> bool:
        """Look at what has been read since the beginning; True when the rate is another one now."""
        n_bytes, seconds = stats.read_bytes - self._counted.read_bytes, stats.read_s - self._counted.read_s
        if n_bytes < _LEAST_BYTES or seconds <= 0:
            return False
        self._counted = stats
        rate = n_bytes / seconds
        if self.rate is not None and not differ(rate, self.rate):
            return False
        self.rate, self.learnt = rate, True
        return True
