"""Which of the host's memory is page-locked: what is copied from it must not run over an edge.

The driver refuses a copy of which only a part is locked, or that runs from one locked run into another. Knows
addresses; locks nothing. Called by cuda_device.py.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right, insort
from typing import NamedTuple

PAGE = mmap.PAGESIZE
"""Bytes."""


class Part(NamedTuple):
    """Bytes of a copy that lie in one locked run, or in none."""

    first: int
    """Counted from the copy's first byte."""
    n_bytes: int
    locked: bool


def whole_pages(address: int, n_bytes: int) -> tuple[int, int]:
    """First address and bytes of the whole pages inside a run of memory: 0 bytes where there are none."""
    first = -(-address // PAGE) * PAGE
    return first, max(0, (address + n_bytes) // PAGE * PAGE - first)


class LockedRuns:
    """Runs of locked memory that do not overlap."""

    def __init__(self) -> None:
        """None so far."""
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def __contains__(self, address: int) -> bool:
        """Whether a run begins there."""
        return address in self._sizes

    def add(self, address: int, n_bytes: int) -> None:
        """A run is locked now. Raises ValueError where some of it was already."""
        if any(part.locked for part in self.cut(address, n_bytes)):
            raise ValueError(f"some of the {n_bytes} bytes at {address:#x} are page-locked already")
        insort(self._starts, address)
        self._sizes[address] = n_bytes

    def remove(self, address: int) -> None:
        """The run that begins there is locked no longer. Raises KeyError where none begins."""
        del self._sizes[address]
        self._starts.remove(address)

    def clear(self) -> list[int]:
        """Forget all runs; where they began."""
        starts, self._starts, self._sizes = self._starts, [], {}
        return starts

    def cut(self, address: int, n_bytes: int) -> list[Part]:
        """Memory cut where a locked run begins or ends, in order."""
        parts: list[Part] = []
        at, end = address, address + n_bytes
        while at < end:
            index = bisect_right(self._starts, at)
            before = self._starts[index - 1] if index else at
            locked = index > 0 and at < before + self._sizes[before]
            following = self._starts[index] if index < len(self._starts) else end
            until = min(end, before + self._sizes[before] if locked else following)
            parts.append(Part(at - address, until - at, locked))
            at = until
        return parts
