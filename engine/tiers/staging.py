"""The staging ring in a GPU's memory: blocks that do not stay there pass through it, copied ahead of use.

Knows slots, copies and what they wait for; does not know which blocks are streamed (`one_use`) nor what is
computed. Which block goes into which slot, and when, is said by `staging_order`. The engine's thread never
waits for a copy from memory: the GPU does, and the ring notes for how long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from engine.tiers.blocks import Block
from engine.tiers.link import Link, Located, Sent
from engine.tiers.staging_order import StagingOrder
from kernels.cuda.device import Device, Event

Bytes = npt.NDArray[np.uint8]
M = TypeVar("M", bound=Located)
"""A block's matrices on the GPU."""


class CopyTimes(NamedTuple):
    """Of the copies and waits that were looked at; seconds."""

    copy_s: float
    copied_bytes: int
    """Of the copies."""
    stalls: tuple[tuple[int, float], ...]
    """Blocks that the GPU waited for, by index, and for how long."""


class _Span(NamedTuple):
    """What the GPU's clock has to be asked about once it is over."""

    block: Block
    began: Sent | Event
    ended: Sent | Event


class Staging(Generic[M]):
    """Slots in a GPU's memory. One thread uses it."""

    def __init__(
        self,
        device: Device,
        link: Link,
        n_slots: int,
        matrices_in: Callable[[int, Block], M],
        bytes_of: Callable[[Block], Sequence[Bytes]],
    ) -> None:
        """Copy what `bytes_of` gives, page-locked memory that stays, to where `matrices_in` a slot shows."""
        self._device, self._link = device, link
        self._matrices_in, self._bytes_of = matrices_in, bytes_of
        self._order = StagingOrder(n_slots)
        self._blocks: dict[int, Block] = {}
        self._filled: dict[int, tuple[M, Sent]] = {}
        """By slot: the matrices in it, and when they are all there."""
        self._used: dict[int, Event] = {}
        """By slot: the place in the GPU's work after which it may be filled again."""
        self._slot_of_taken = 0
        self._released = False
        self._copies: deque[_Span] = deque()
        self._waits: deque[_Span] = deque()

    def follow(self, blocks: Sequence[Block], *, at: Block | None = None) -> None:
        """Copy these, in their order and round and round, from now on; in mid-pass from `at` on."""
        self._blocks = {block.index: block for block in blocks}
        self._order.follow(tuple(self._blocks))
        if at is not None:
            self._order.aim(at.index)
        self.fill()

    def has(self, block: Block) -> bool:
        """Whether the block is among those that are copied."""
        return block.index in self._blocks

    @property
    def can_fill(self) -> bool:
        """Whether a slot was released since `fill`."""
        return self._released

    def fill(self) -> None:
        """Put copies of what is to come on the way, as far as there are slots."""
        self._released = False
        while (fill := self._order.next_fill()) is not None:
            try:
                self._send(self._blocks[fill.block], fill.slot)
            except BaseException:
                self.follow(())  # else the slot would pass for filled, with what was in it before
                raise

    def _send(self, block: Block, slot: int) -> None:
        if slot in self._used:
            self._link.wait_for(self._used[slot])
        if slot in self._filled:  # what was dropped may be on the way still, in another lane
            for event in self._filled[slot][1].events:
                self._link.wait_for(event)
        began = self._link.record(timing=True)
        matrices = self._matrices_in(slot, block)
        self._link.send_block(block.pieces, self._bytes_of(block), matrices.places)
        ended = self._link.record(timing=True)
        self._filled[slot] = matrices, ended
        self._copies.append(_Span(block, began, ended))

    def take(self, block: Block) -> M:
        """The matrices of a block; what is put on the GPU from now on finds them there. `release` it then."""
        slot = self._order.take(block.index)
        if slot is None:
            self._order.aim(block.index)
            self.fill()
            slot = self._order.take(block.index)
            assert slot is not None, "a slot was free: no block is taken while all are in use"
        matrices, sent = self._filled[slot]
        began = self._device.record(timing=True)
        for event in sent.events:
            self._device.wait_for(event)
        self._waits.append(_Span(block, began, self._device.record(timing=True)))
        self._slot_of_taken = slot
        return matrices

    def release(self, block: Block) -> None:
        """Let the slot be filled again, by the next `fill`, after what is on the GPU by now."""
        self._used[self._slot_of_taken] = self._device.record()
        self._order.release(block.index)
        self._released = True

    def settle(self) -> None:
        """Wait until nothing is on the way, so that memory that is copied from may go."""
        for _, sent in self._filled.values():
            sent.wait()
        self._filled.clear()

    def times(self) -> CopyTimes:
        """What copies and waits took that are over and were not told before."""
        copy_s, copied_bytes, stalls = 0.0, 0, []
        while self._copies and _is_done(self._copies[0].ended):
            span = self._copies.popleft()
            copy_s += _seconds(span)
            copied_bytes += span.block.n_bytes
        while self._waits and _is_done(self._waits[0].ended):
            span = self._waits.popleft()
            stalls.append((span.block.index, _seconds(span)))
        return CopyTimes(copy_s, copied_bytes, tuple(stalls))


def _is_done(place: Sent | Event) -> bool:
    return place.done


def _seconds(span: _Span) -> float:
    if isinstance(span.ended, Sent):
        assert isinstance(span.began, Sent)
        return span.ended.since(span.began)
    assert not isinstance(span.began, Sent)
    return span.ended.since(span.began)
