"""A system that page-locks memory up to a limit, and notices what must not happen to locked memory."""

from __future__ import annotations

import numpy as np

from engine.tiers.direct_io import ALIGNMENT


class Pages:
    """A `Locker` that knows which memory is locked."""

    def __init__(self, limit: int = 1 << 60) -> None:
        self.limit = limit
        self.locked: dict[int, int] = {}
        """Address -> bytes."""
        self.asked = 0

    def lock(self, memory: np.ndarray) -> bool:
        self.asked += 1
        start, end = memory.ctypes.data, memory.ctypes.data + memory.size
        assert start % ALIGNMENT == end % ALIGNMENT == 0, "a copy could begin in a page that is not locked"
        assert all(end <= other or other + size <= start for other, size in self.locked.items())
        if self.n_bytes + memory.size > self.limit:
            return False
        self.locked[start] = memory.size
        return True

    def unlock(self, memory: np.ndarray) -> None:
        assert self.locked.pop(memory.ctypes.data) == memory.size

    @property
    def n_bytes(self) -> int:
        return sum(self.locked.values())

    def holds(self, memory: np.ndarray) -> bool:
        """Whether all of `memory` is locked."""
        start, end = memory.ctypes.data, memory.ctypes.data + memory.size
        return any(other <= start and end <= other + size for other, size in self.locked.items())
