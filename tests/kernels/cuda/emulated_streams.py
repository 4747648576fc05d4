"""Streams of the emulated device: work in order, done at once or as late as can be.

A GPU may do the work of one stream long before or long after that of another. Of two streams one is `late`:
it does nothing before somebody waits for it, so that a wait that was forgotten shows as wrong data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Stream:
    """Actions in order."""

    def __init__(self, *, late: bool) -> None:
        """`late`: done when they are waited for. Otherwise each is done when it is put here."""
        self._late = late
        self._left: deque[tuple[Callable[[], None], object]] = deque()
        self.n_put = 0
        """Actions so far."""
        self.n_done = 0
        """Of them."""

    def put(self, action: Callable[[], None], used: object = None) -> None:
        """Have something done; `used` is kept until then."""
        self.n_put += 1
        self._left.append((action, used))
        if not self._late:
            self.reach(self.n_put)

    def put_behind(self, action: Callable[[], None]) -> None:
        """Have something done behind what is left: at once if nothing is."""
        if self._left:
            self.n_put += 1
            self._left.append((action, None))
        else:
            action()

    def reach(self, n: int) -> None:
        """Do the first `n` actions, as far as they are not done."""
        while self.n_done < n and self._left:
            self.go_on()

    def go_on(self) -> None:
        """Do one action, if there is one."""
        if self._left:
            action, _ = self._left.popleft()
            try:
                action()
            finally:
                self.n_done += 1
