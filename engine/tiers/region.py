"""Memory of our own for weights: reserved in one go, given back to the system block by block.

Knows mappings and pages; does not know what lies in them. Called by the store for blocks that stay and by the
streamer for its ring.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from engine.machine import interleave
from engine.tiers.direct_io import ALIGNMENT

_HUGE_PAGE = 2 << 20


class Region:
    """An anonymous mapping that is handed out from its beginning to its end."""

    def __init__(self, n_bytes: int) -> None:
        """Reserve `n_bytes`: the sum of what will be placed, each rounded up to `ALIGNMENT`.

        Memory is used once it is written to. Raises MemoryError when the system refuses so much.
        """
        try:
            # Room to begin at a huge page; what is too much is never touched, so it costs addresses only.
            mapping = mmap.mmap(-1, n_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"{n_bytes} bytes for weights cannot be had") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(
                OSError
            ):  # a kernel built without huge pages: the same memory, read a little slower
                mapping.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(mapping, np.uint8)
        interleave(whole.ctypes.data, whole.size)
        start = -whole.ctypes.data % _HUGE_PAGE
        self._mapping = mapping
        self._address = whole.ctypes.data
        self._memory = whole[start : start + n_bytes]
        self._used = 0

    def place(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Hand out the next `n_bytes`, writable, at a multiple of `ALIGNMENT`; ValueError when it is full.

        The memory lives as long as a view of it.
        """
        start, end = self._used, self._used + n_bytes
        if end > self._memory.size:
            raise ValueError(f"{n_bytes} bytes do not fit a region with {self._memory.size - start} left")
        self._used = -(-end // ALIGNMENT) * ALIGNMENT
        return self._memory[start:end]

    def evict(self, view: npt.NDArray[np.uint8]) -> None:
        """Give the whole pages of a view back to the system at once.

        They read as zeros then, and take memory again when they are written to.
        """
        start = view.ctypes.data - self._address
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (start + view.size) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._mapping.madvise(mmap.MADV_DONTNEED, first, last - first)
