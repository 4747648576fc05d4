"""How work is told to stop: one number that native code polls and any thread may set.

Knows nothing of what is cancelled. Standard library only, as the interface makes them before numpy is loaded.
"""

from __future__ import annotations

from array import array


class CancelToken:
    """Set once, never cleared; a new piece of work gets a new one."""

    def __init__(self) -> None:
        """Begin not cancelled."""
        self.flag = array("i", [0])
        """One C int that kernels read through the buffer protocol: not 0 once cancelled."""

    def cancel(self) -> None:
        """Ask the work to stop. Safe from any thread and from a signal handler, idempotent."""
        self.flag[0] = 1

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self.flag[0] != 0
