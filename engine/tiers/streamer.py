"""The staging ring: blocks that do not stay in memory are read from disk for every pass, ahead of use.

Knows slots, threads and the order of use; does not know which blocks stay (the planner) or what is computed.
Called by the store, from the engine's thread; `stats` and `in_flight` from any thread.

A slot is always in one of these states, and `_lock` is held whenever it moves:

    free      in `_free`: memory that nobody uses
    filling   its `_Fill` is in `_ahead`, with requests to be read or being read
    ready     its `_Fill` is in `_ahead`, with none left: all bytes are there, or an error is
    in use    in `_in_use`: between `acquire` and `release`
    draining  its `_Fill` was taken out of `_ahead` while requests were being read: its threads alone know it

    free -> filling      `_begin_fills`, as soon as there is a free slot
    filling -> ready     `_settle`, after the last request
    ready -> in use      `acquire`; -> free when there is an error, which is raised
    in use -> free       `release`
    filling, ready -> free or draining    `_drop`, when another block is wanted or this one has failed
    draining -> free     `_settle`, after the last request that was being read

`_ahead` is a run of the cyclic order, of those blocks that passes use, that ends before `_next`. So what is
wanted is either in it, behind what was skipped, or all of it is dropped and reading starts anew. Memory is
written only by reads of a fill, and a slot has no other fill before these have ended.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.cancel import CancelToken
from engine.errors import CancelledError
from engine.tiers.blocks import Block
from engine.tiers.direct_io import ALIGNMENT, DirectFiles
from engine.tiers.extents import Extent, lay_out
from engine.tiers.page_locks import PageLocks
from engine.tiers.region import Region

_CANCEL_POLL_S = 0.05
_JOIN_S = 2.0
"""How long closing waits for reads; a thread on a dead disk is a daemon and ends with the process."""


class StreamStats(NamedTuple):
    """What was done since the beginning; times in seconds."""

    read_bytes: int = 0
    """From disk, in whole pages, dropped blocks included."""
    read_s: float = 0.0
    """Time during which something was being read."""
    stall_s: float = 0.0
    """Time that `acquire` waited."""
    blocks: int = 0
    """Blocks handed out."""
    dropped_blocks: int = 0
    """Blocks whose reading had begun and that were then skipped."""
    h2d_bytes: int = 0
    """Copied to a GPU."""
    copy_stall_s: float = 0.0
    """Time that a GPU waited for copies."""

    def plus(self, more: StreamStats) -> StreamStats:
        """Both together."""
        return StreamStats(
            self.read_bytes + more.read_bytes,
            self.read_s + more.read_s,
            self.stall_s + more.stall_s,
            self.blocks + more.blocks,
            self.dropped_blocks + more.dropped_blocks,
            self.h2d_bytes + more.h2d_bytes,
            self.copy_stall_s + more.copy_stall_s,
        )


@dataclass(slots=True, eq=False)
class _Fill:
    """One block on its way into one slot."""

    position: int
    slot: int
    requests: deque[Extent]
    """Not yet taken by a thread."""
    n_bytes: int
    being_read: int = 0
    """Requests that threads are at."""
    arrived: int = 0
    """Bytes, of `n_bytes`."""
    error: Exception | None = None
    dropped: bool = False

    @property
    def begun(self) -> bool:
        return self.being_read > 0 or self.arrived > 0

    @property
    def ready(self) -> bool:
        return not self.requests and not self.being_read


class Streamer:
    """Reads the streamed blocks that passes use into a ring of slots, in cyclic order, ahead of use."""

    def __init__(
        self,
        files: DirectFiles,
        blocks: Sequence[Block],
        *,
        slots: int,
        slot_bytes: int,
        depth: int = 4,
        request_bytes: int = 4 << 20,
        locks: PageLocks | None = None,
        used: Set[int] | None = None,
    ) -> None:
        """Reserve the ring and begin to read those of the blocks that are `used`, by index: all by default.

        `blocks` are in order of use, `slot_bytes` is a multiple of a page that holds each of them
        (`slot_bytes_for`), `depth` is the number of reads under way at a time. With `locks` slots are
        page-locked. Raises MemoryError when there is no room for the ring, ValueError when a block does not
        fit a slot.
        """
        self._files = files
        self._blocks = tuple(blocks)
        self._positions = {block.index: position for position, block in enumerate(blocks)}
        self._layouts = [lay_out(block.pieces) for block in blocks]
        self._request_bytes = request_bytes
        largest = max(layout.n_bytes for layout in self._layouts)
        if largest > slot_bytes or slot_bytes % ALIGNMENT or request_bytes % ALIGNMENT:
            raise ValueError(
                f"slots of {slot_bytes} bytes and requests of {request_bytes} for blocks of up to {largest}: "
                f"a slot must hold each block, and both must be multiples of {ALIGNMENT}"
            )
        self._region = Region(slots * slot_bytes)
        self._slots = [self._region.place(slot_bytes) for _ in range(slots)]
        self._locks = locks or PageLocks()
        for slot in self._slots:
            self._locks.lock(slot)

        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """There are requests, or the streamer is closed."""
        self._arrived = threading.Condition(self._lock)
        """The first of `_ahead` may be ready, or the streamer is closed."""
        self._free = list(range(slots))
        self._ahead: deque[_Fill] = deque()
        self._in_use: dict[int, int] = {}
        """Index of a block -> its slot."""
        self._used: Set[int] = self._positions.keys() if used is None else used
        """Blocks, by index, that are read ahead."""
        self._order = self._order_of(self._used)
        """Their positions, in order."""
        self._next = self._order[0] if self._order else None
        """Position of the block that the next free slot is for; None where nothing is read ahead."""
        self._closed = False

        self._stats = StreamStats()
        self._being_read = 0
        """Requests that threads are at, of all fills."""
        self._busy_since = 0.0
        """When `_being_read` was last 0."""

        with self._lock:
            self._begin_fills()
        self._threads = [
            threading.Thread(target=self._read_requests, name=f"disk {number}", daemon=True)
            for number in range(depth)
        ]
        for thread in self._threads:
            thread.start()

    # -- for the engine's thread

    def follow(self, used: Set[int], start: int = 0) -> None:
        """Read ahead only these blocks, by index, from now on; first the one at or after index `start`.

        Of what was read ahead, that which comes next in this order is kept. The others can still be had.
        """
        with self._lock:
            if used == self._used:
                return
            self._used, self._order = used, self._order_of(used)
            first = bisect_left(self._order, start, key=lambda position: self._blocks[position].index)
            self._next = self._order[first % len(self._order)] if self._order else None
            fills, self._ahead = self._ahead, deque()
            for fill in fills:
                if fill.position == self._next:
                    self._ahead.append(fill)
                    self._next = self._after(fill.position)
                else:
                    self._drop(fill)
            self._begin_fills()

    def acquire(self, block: Block, cancel: CancelToken) -> list[npt.NDArray[np.uint8]]:
        """Wait until the block is there and return views of its pieces, valid until `release`.

        1-D, read-only, in the order of `block.pieces`. Blocks before it in the order are skipped. Raises
        StreamError when it cannot be read now, and the next `acquire` tries again; CancelledError within
        100 ms of a cancel or when the streamer is closed; RuntimeError when it or every slot is in use.
        """
        with self._lock:
            if block.index in self._in_use or len(self._in_use) == len(self._slots):
                raise RuntimeError(f"{block.name} is wanted while it or all slots are in use: release first")
            position = self._positions[block.index]
            self._aim_at(position)
            fill = self._wait_for_first(cancel)
            self._ahead.popleft()
            if fill.error is not None:
                self._vacate(fill.slot)
                raise fill.error
            self._in_use[block.index] = fill.slot
            self._stats = self._stats._replace(blocks=self._stats.blocks + 1)
            return self._layouts[position].views(self._slots[fill.slot])

    def release(self, block: Block) -> None:
        """Let the slot of an acquired block be filled again; its views must not be used any more."""
        with self._lock:
            self._vacate(self._in_use.pop(block.index))

    def close(self) -> None:
        """End the threads and give the memory back; idempotent. The files stay open.

        No copy from a slot may be under way.
        """
        with self._lock:
            self._closed = True
            self._work.notify_all()
            self._arrived.notify_all()
        deadline = perf_counter() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - perf_counter()))
        # Evicted rather than unmapped: a forgotten view then reads zeros and does not end the process.
        for slot in self._slots:
            self._locks.unlock(slot)
            self._region.evict(slot)

    # -- for any thread

    @property
    def stats(self) -> StreamStats:
        """What was done so far."""
        with self._lock:
            running = perf_counter() - self._busy_since if self._being_read else 0.0
            return self._stats._replace(read_s=self._stats.read_s + running)

    @property
    def in_flight(self) -> tuple[tuple[int, float], ...]:
        """Blocks in the ring that are not yet in use, next one first: index and how much is there, 0 to 1."""
        with self._lock:
            return tuple(
                (self._blocks[fill.position].index, fill.arrived / fill.n_bytes) for fill in self._ahead
            )

    # -- moves of slots; the lock is held

    def _begin_fills(self) -> None:
        """Assign every free slot to the next block in the order."""
        while self._free and self._next is not None:
            layout = self._layouts[self._next]
            requests = deque(layout.requests(self._request_bytes))
            self._ahead.append(_Fill(self._next, self._free.pop(), requests, layout.n_bytes))
            self._next = self._after(self._next)
            self._work.notify_all()

    def _order_of(self, used: Set[int]) -> list[int]:
        return sorted(self._positions[index] for index in used)

    def _after(self, position: int) -> int | None:
        """Where the next block is that is read ahead."""
        if not self._order:
            return None
        return self._order[bisect_right(self._order, position) % len(self._order)]

    def _vacate(self, slot: int) -> None:
        self._free.append(slot)
        self._begin_fills()

    def _aim_at(self, position: int) -> None:
        """Drop what lies ahead of the block at `position`: everything, when the block is not there.

        A block that failed while nobody waited for it counts as not there: the disk may have recovered.
        """
        while self._ahead and (self._ahead[0].position != position or self._ahead[0].error):
            self._drop(self._ahead.popleft())
        if not self._ahead:
            self._next = position
        self._begin_fills()

    def _drop(self, fill: _Fill) -> None:
        """Let a block that was taken out of `_ahead` not come; its slot is free when no read is at it."""
        fill.dropped = True
        if fill.begun:
            self._stats = self._stats._replace(dropped_blocks=self._stats.dropped_blocks + 1)
        if not fill.being_read:
            self._free.append(fill.slot)

    def _wait_for_first(self, cancel: CancelToken) -> _Fill:
        """Wait until the first of `_ahead`, which `_aim_at` has chosen, is ready."""
        started = perf_counter()
        try:
            while True:
                if self._closed or cancel.cancelled:
                    raise CancelledError("stopped")
                # `_ahead` is empty while every slot that is not in use is draining.
                if self._ahead and self._ahead[0].ready:
                    return self._ahead[0]
                self._arrived.wait(_CANCEL_POLL_S)
        finally:
            waited = perf_counter() - started
            self._stats = self._stats._replace(stall_s=self._stats.stall_s + waited)

    # -- the disk threads

    def _read_requests(self) -> None:
        while (taken := self._take()) is not None:
            fill, request = taken
            memory = self._slots[fill.slot][request.at : request.at + request.n_bytes]
            n_bytes, error = 0, None
            try:
                n_bytes = self._files.read(request.part, request.offset, memory.data, request.needed)
            except Exception as caught:  # noqa: BLE001  raised by `acquire`, whatever it is
                error = caught
            self._settle(fill, request, n_bytes, error)

    def _take(self) -> tuple[_Fill, Extent] | None:
        """Wait for a request of the block that is needed first; None when the streamer is closed."""
        with self._lock:
            while not self._closed:
                fill = next((fill for fill in self._ahead if fill.requests), None)
                if fill is not None:
                    fill.being_read += 1
                    if self._being_read == 0:
                        self._busy_since = perf_counter()
                    self._being_read += 1
                    return fill, fill.requests.popleft()
                self._work.wait()
            return None

    def _settle(self, fill: _Fill, request: Extent, n_bytes: int, error: Exception | None) -> None:
        """Account for a request that has ended."""
        with self._lock:
            fill.being_read -= 1
            self._being_read -= 1
            read_s = perf_counter() - self._busy_since if self._being_read == 0 else 0.0
            self._stats = self._stats._replace(
                read_bytes=self._stats.read_bytes + n_bytes, read_s=self._stats.read_s + read_s
            )
            if error is None:
                fill.arrived += request.n_bytes
            else:
                fill.error = error
                fill.requests.clear()
            if fill.dropped and not fill.being_read:
                self._vacate(fill.slot)
            elif fill.ready:
                self._arrived.notify_all()
