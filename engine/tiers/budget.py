"""How much memory a person grants, as typed, and when the system needs some of it back.

Knows sizes and clocks; does not know models and does not choose what goes. Standard library only: the command
line and the settings read budgets before anything is loaded.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from engine.machine import available_memory, total_memory

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:(%)|([KMGT]?)(I?)B?)", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True)
class Budget:
    """So many bytes, or a share of the memory that is available."""

    n_bytes: int = 0
    percent: Fraction = Fraction(0)
    """Of available memory; 0 where bytes are given."""
    taken: int = 0
    """Bytes of it that something else has taken already."""

    def __str__(self) -> str:
        """As `parse_budget` reads it."""
        return f"{float(self.percent):g}%" if self.percent else str(self.n_bytes)

    def resolve(self, available: int) -> int:
        """Bytes, where `available` can be taken without swapping; below 0 where too much was taken."""
        return self.n_bytes + int((available + self.taken) * self.percent / 100) - self.taken


DEFAULT = Budget(percent=Fraction(70))
"""Leaves 30 % of available memory to the rest of the system."""


def parse_budget(text: str, *, of: str = "the available memory") -> Budget:
    """Read "8G", "7.5GiB", "900 MB", "50%" or plain bytes; ValueError says what is accepted.

    `of` names the memory of which a share is meant.
    """
    kind = "size above 0"
    match = _SIZE.fullmatch(text.strip())
    if match:
        number, percent, unit, binary = match.groups()
        amount = Fraction(number)
        if percent:
            if 0 < amount <= 100:
                return Budget(percent=amount)
            kind = "share above 0% and up to 100%"
        elif unit or not binary:
            n_bytes = int(amount * (1024 if binary else 1000) ** _POWERS[unit.upper()])
            if n_bytes > 0:
                return Budget(n_bytes)
    raise ValueError(
        f"{text!r} is no {kind}: give bytes, a size such as 8G, 900MB or 7.5GiB, or a share of {of} "
        "such as 50%"
    )


def shown_bytes(n_bytes: int) -> str:
    """For people: "7.50 GB", "42 MB"; bytes that are not there are 0."""
    n_bytes = max(0, n_bytes)
    return f"{n_bytes / 1e9:,.2f} GB" if n_bytes >= 10**9 else f"{n_bytes / 1e6:,.0f} MB"


class MemoryWatch:
    """Tells when the rest of the system runs short of memory; asks it at most once per second."""

    def __init__(
        self,
        *,
        read: Callable[[], int] = available_memory,
        clock: Callable[[], float] = time.monotonic,
        total: int | None = None,
    ) -> None:
        """Watch what `read` returns, bytes that are available of `total` (by default this machine's)."""
        self._read = read
        self._clock = clock
        self._watermark = watermark(total_memory() if total is None else total)
        self._next = clock()

    def deficit(self) -> int:
        """Bytes that should be given back now; 0 when all is well.

        Each reading is reported once, so that what has been given back is not asked for again.
        """
        now = self._clock()
        if now < self._next:
            return 0
        self._next = now + _INTERVAL_S
        return max(0, self._watermark - self._read())


_INTERVAL_S = 1.0


def watermark(total: int) -> int:
    """Bytes to leave available on a machine of `total`."""
    # Some 10 % is where desktops begin to swap and to drop the page cache that programs start from. A GiB is
    # enough of a head start for a second of another program's growth, however large the machine.
    return min(total // 10, 1 << 30)
