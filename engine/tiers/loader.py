"""Threads that read whole blocks from the file, in the order asked: into memory of theirs, or through slots.

    disk or page cache --reader threads--> memory where the block stays
                                     `---> slots, handed out one by one, for a copy to a GPU

Knows runs of rows, slots and the order of reading; does not know where a block goes in the end, nor passes.
Called from the engine's thread, which takes what has arrived when it has time for it.

A run (rows of one piece, at most `RUN_BYTES`) is asked for, read by one thread, then arrives and is taken.
Runs that need a slot wait until one is free, and others go on meanwhile. A slot is free until it is read
into, and again when the caller frees it, when reading into it failed, or when its block was forgotten.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.machine import physical_cores
from engine.tiers.blocks import Block
from engine.tiers.direct_io import DirectFiles

Bytes = npt.NDArray[np.uint8]

RUN_BYTES = 16 << 20
"""What is read and copied at a time: copies of this size reach a link's full rate, and it is many pages."""
_MOST_READERS = 8
_SPARE_SLOTS = 4
"""Slots more than readers: what is copied to the GPU, and what waits for that."""
_JOIN_S = 2.0
"""How long is waited for reads under way; a thread on a dead disk is a daemon and ends with the process."""


class Arrival(NamedTuple):
    """Rows of a block that were read, or could not be."""

    block: Block
    piece: int
    """Index of the piece in the block."""
    first_row: int
    """In the piece."""
    n_rows: int
    n_bytes: int
    data: Bytes | None
    """The bytes in their slot; None where they went into memory of the block's, and after an error."""
    slot: int | None
    """To be freed when `data` is no longer needed."""
    error: Exception | None
    """Why they are not here, a StreamError; other rows of the block may arrive nevertheless."""


@dataclass(slots=True, eq=False)
class _Run:
    """Rows of one piece that are read together."""

    number: int
    """In the order of asking."""
    block: Block
    piece: int
    first_row: int
    n_rows: int
    into: Bytes | None
    """Where the bytes go; None for any slot."""
    forgotten: bool = False

    @property
    def n_bytes(self) -> int:
        piece = self.block.pieces[self.piece]
        return self.n_rows * (piece.n_bytes // piece.n_rows)

    @property
    def offset(self) -> int:
        """First byte in the file."""
        piece = self.block.pieces[self.piece]
        return piece.offset + self.first_row * (piece.n_bytes // piece.n_rows)


class Loader:
    """Reads blocks in the background. One thread uses it."""

    def __init__(self, files: DirectFiles, slots: Sequence[Bytes], n_readers: int) -> None:
        """Wait for blocks to read with `n_readers` threads; the slots are of one size, see `slot_bytes`."""
        self._files, self._slots = files, slots
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        """There is a run that can be read, or the loader is closed."""
        self._progress = threading.Condition(self._lock)
        """A run was read."""
        self._free = deque(range(len(slots)))
        self._direct: deque[_Run] = deque()
        """Runs to be read into memory of their block's, in order."""
        self._slotted: deque[_Run] = deque()
        """Runs to be read into slots, in order."""
        self._being_read: set[_Run] = set()
        self._arrived: deque[Arrival] = deque()
        self._n_runs = 0
        self._closed = False
        self._threads = [
            threading.Thread(target=self._read_runs, name=f"reader {number}", daemon=True)
            for number in range(n_readers)
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, block: Block, into: Sequence[Bytes] | None = None) -> None:
        """Read a block after all that was asked for before; it must not be pending.

        `into` is writable memory for each piece, None for slots. Raises ValueError where a slot is too small
        for one row.
        """
        runs = list(self._runs(block, into))
        with self._lock:
            (self._slotted if into is None else self._direct).extend(runs)
            self._work.notify_all()

    def take(self, timeout: float) -> Arrival | None:
        """The next rows that have arrived, about in the order of asking; None after `timeout` seconds."""
        with self._lock:
            self._progress.wait_for(lambda: self._arrived, timeout)
            return self._arrived.popleft() if self._arrived else None

    def free(self, slot: int) -> None:
        """Let the slot of an arrival be read into again."""
        with self._lock:
            self._vacate(slot)

    def forget(self, indices: frozenset[int]) -> None:
        """Drop these blocks: nothing of them arrives any more, and their memory is not written to.

        Waits for reads into it that are under way: some milliseconds each, two seconds on a dead disk.
        """
        with self._lock:
            self._direct = deque(run for run in self._direct if run.block.index not in indices)
            self._slotted = deque(run for run in self._slotted if run.block.index not in indices)
            dropped = [arrival for arrival in self._arrived if arrival.block.index in indices]
            self._arrived = deque(arrival for arrival in self._arrived if arrival.block.index not in indices)
            for arrival in dropped:
                if arrival.slot is not None:
                    self._vacate(arrival.slot)
            going = {run for run in self._being_read if run.block.index in indices}
            for run in going:
                run.forgotten = True
            into_memory = {run for run in going if run.into is not None}
            self._progress.wait_for(lambda: self._being_read.isdisjoint(into_memory), _JOIN_S)

    @property
    def pending(self) -> int:
        """Runs of rows that were asked for and not yet taken."""
        with self._lock:
            going = sum(not run.forgotten for run in self._being_read)
            return len(self._direct) + len(self._slotted) + going + len(self._arrived)

    def close(self) -> None:
        """Read nothing more and end the threads, each after its read; idempotent. The files stay open."""
        with self._lock:
            self._closed = True
            self._direct.clear()
            self._slotted.clear()
            self._arrived.clear()
            for run in self._being_read:
                run.forgotten = True
            self._work.notify_all()
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # -- the lock is held

    def _vacate(self, slot: int) -> None:
        self._free.append(slot)
        self._work.notify()

    def _next(self) -> tuple[_Run, int | None] | None:
        """Take the first run that can be read now, and the slot for it."""
        can_slot = bool(self._slotted and self._free)
        if self._direct and not (can_slot and self._slotted[0].number < self._direct[0].number):
            return self._direct.popleft(), None
        if can_slot:
            return self._slotted.popleft(), self._free.popleft()
        return None

    # -- the readers

    def _read_runs(self) -> None:
        while self._read_next():  # one that waits refers to no memory
            pass

    def _read_next(self) -> bool:
        """Wait for a run and read it; False when the loader is closed."""
        taken = self._wait_for_run()
        if taken is None:
            return False
        run, slot = taken
        memory = run.into if slot is None else self._slots[slot][: run.n_bytes]
        assert memory is not None
        error = None
        try:
            self._files.fill(run.block.pieces[run.piece].part, run.offset, memory.data)
        except Exception as caught:  # noqa: BLE001  handed out with the rows, whatever it is
            error = caught
        self._hand_out(run, slot, error)
        return True

    def _wait_for_run(self) -> tuple[_Run, int | None] | None:
        """Wait for something to read; None when the loader is closed."""
        with self._lock:
            while not self._closed:
                taken = self._next()
                if taken is not None:
                    self._being_read.add(taken[0])
                    return taken
                self._work.wait()
            return None

    def _hand_out(self, run: _Run, slot: int | None, error: Exception | None) -> None:
        """Account for a run that was read, or could not be."""
        with self._lock:
            self._being_read.remove(run)
            if slot is not None and (error or run.forgotten):
                self._vacate(slot)
                slot = None
            if not run.forgotten:
                data = None if slot is None else self._slots[slot][: run.n_bytes]
                self._arrived.append(
                    Arrival(run.block, run.piece, run.first_row, run.n_rows, run.n_bytes, data, slot, error)
                )
            self._progress.notify_all()

    def _runs(self, block: Block, into: Sequence[Bytes] | None) -> Iterator[_Run]:
        """Cut a block into runs."""
        limit = RUN_BYTES if into is not None else min(RUN_BYTES, self._slots[0].size)
        for index, piece in enumerate(block.pieces):
            one_row = piece.n_bytes // piece.n_rows
            if into is None and one_row > self._slots[0].size:
                raise ValueError(f"{piece.tensor}: a row of {one_row} bytes, a slot of {self._slots[0].size}")
            rows = max(1, limit // one_row)
            for first in range(0, piece.n_rows, rows):
                n_rows = min(rows, piece.n_rows - first)
                memory = None if into is None else into[index][first * one_row : (first + n_rows) * one_row]
                self._n_runs += 1
                yield _Run(self._n_runs, block, index, first, n_rows, memory)


def n_readers() -> int:
    """Threads that read, and may each need a slot, on this machine."""
    return max(1, min(_MOST_READERS, physical_cores()))


def n_slots() -> int:
    """Slots of a loader on this machine."""
    return n_readers() + _SPARE_SLOTS


def slot_bytes(blocks: Sequence[Block]) -> int:
    """What the slots of a loader for these blocks should have: the most that is read at a time."""
    pieces = [piece for block in blocks for piece in block.pieces]
    return max(
        (max(min(piece.n_bytes, RUN_BYTES), piece.n_bytes // piece.n_rows) for piece in pieces), default=0
    )
