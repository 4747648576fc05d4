"""Which block goes into which slot of a staging ring, and when: the rules, for the GPU and the simulator.

Knows indices of blocks and numbers of slots; does not know memory, copies or clocks. Blocks come round in a
cyclic order, the end of a pass being followed by the beginning of the next one, so that copies never pause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Fill(NamedTuple):
    """A block and the slot that it is to be copied to."""

    slot: int
    block: int


class StagingOrder:
    """Slots and what is in them. Each is free, holds a block that lies ahead, or one that is in use."""

    def __init__(self, n_slots: int) -> None:
        """Begin with free slots and no order."""
        self._free = deque(range(n_slots))
        self._ahead: deque[Fill] = deque()
        """Filled or being filled, in order of use."""
        self._in_use: dict[int, int] = {}
        """Block -> slot."""
        self._order: tuple[int, ...] = ()
        self._next = 0
        """Where in the order the next fill is."""

    def follow(self, order: Sequence[int]) -> None:
        """Go by another cyclic order; of what lies ahead that stays which the new order begins with."""
        if tuple(order) == self._order:
            return
        self._order = tuple(order)
        ahead, self._ahead = self._ahead, deque()
        for fill in ahead:
            kept = len(self._ahead)
            if kept < len(order) and fill.block == order[kept]:
                self._ahead.append(fill)
            else:
                self._free.append(fill.slot)
        self._next = len(self._ahead) % len(order) if order else 0

    def next_fill(self) -> Fill | None:
        """The next block to copy and its slot; None where no slot is free or nothing is to come."""
        if not self._free or not self._order:
            return None
        block = self._order[self._next]
        if block in self._in_use or any(fill.block == block for fill in self._ahead):
            return None  # a ring longer than the order: it is here already
        fill = Fill(self._free.popleft(), block)
        self._ahead.append(fill)
        self._next = (self._next + 1) % len(self._order)
        return fill

    def take(self, block: int) -> int | None:
        """The slot of a block that is used now; None where it has not been filled: `aim` then."""
        while self._ahead and self._ahead[0].block != block:
            if not any(fill.block == block for fill in self._ahead):
                return None
            self._free.append(self._ahead.popleft().slot)
        if not self._ahead:
            return None
        slot = self._ahead.popleft().slot
        self._in_use[block] = slot
        return slot

    def aim(self, block: int) -> None:
        """Let the next fill be of this block: what lies ahead is dropped."""
        while self._ahead:
            self._free.append(self._ahead.popleft().slot)
        self._next = self._order.index(block)

    def release(self, block: int) -> None:
        """Let the slot of a used block be filled again."""
        self._free.append(self._in_use.pop(block))
