"""Which memory of weights is page-locked, so that a GPU copies from it at the full rate of the link.

Knows what was locked and what the system refused; does not know CUDA (the `Locker` does) or whose memory it
is. Called by what owns memory: blocks that stay and the staging ring, from the engine's thread.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class Locker(Protocol):
    """Page-locks host memory, as a GPU's `Device` does."""

    def lock(self, memory: npt.NDArray[np.uint8]) -> bool:
        """Lock the whole pages of `memory`; False where the system refuses."""
        ...

    def unlock(self, memory: npt.NDArray[np.uint8]) -> None:
        """Undo `lock` of the same memory."""
        ...


class PageLocks:
    """Memory that is locked as far as the system allows: after one refusal, no more is asked for."""

    def __init__(self, locker: Locker | None = None) -> None:
        """Lock with `locker`; nothing is locked, and nothing missed, without one."""
        self.unlocked_bytes = 0
        """Memory that was to be locked and is not. For any thread."""
        self._locker = locker
        self._refused = False
        self._locked: dict[int, bool] = {}
        """Address of memory that was to be locked -> whether it is."""

    def lock(self, memory: npt.NDArray[np.uint8]) -> None:
        """Lock whole pages that nobody else uses, until `unlock`."""
        if self._locker is None:
            return
        locked = not self._refused and self._locker.lock(memory)
        if not locked:
            self._refused = True
            self.unlocked_bytes += memory.size
        self._locked[memory.ctypes.data] = locked

    def unlock(self, memory: npt.NDArray[np.uint8]) -> None:
        """Undo `lock` before memory is given back; memory that was never given to it may be passed."""
        locked = self._locked.pop(memory.ctypes.data, None)
        if locked and self._locker is not None:
            self._locker.unlock(memory)
        elif locked is False:
            self.unlocked_bytes -= memory.size
