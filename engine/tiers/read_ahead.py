"""Lets the system read a model's file while nobody knows yet where its weights go: into the page cache.

Opening a GPU, planning and reserving memory take seconds in which a disk reads gigabytes. Who brings the
weights to where they stay reads through the page cache and finds them there. Knows the order of use and
what is cached; owns no memory, does not know plans, and fails silently: who needs the bytes tells. The loader
begins it with the header, and says what is wanted once that is known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence, Set
from itertools import chain
from typing import NamedTuple

from engine.errors import StreamError
from engine.tiers.blocks import Block, in_order_of_need
from engine.tiers.direct_io import DirectFiles
from engine.weights import ModelWeights

_READERS = 4
STEP_BYTES = 16 << 20
"""What a thread reads at a time: with less it waits more for Python than for the disk."""
_JOIN_S = 2.0
"""A thread on a dead disk is a daemon and ends with the process."""


class _Step(NamedTuple):
    block: int | None
    """By index; None for vectors, which are always wanted."""
    part: int
    offset: int
    n_bytes: int


class ReadAhead:
    """Reads one model in order of use, from the beginning on; for any thread."""

    def __init__(self, weights: ModelWeights, blocks: Sequence[Block], most_ahead: int) -> None:
        """Begin. No more than `most_ahead` bytes are read that nobody has `taken` yet.

        Raises StreamError where a file cannot be opened.
        """
        self._files = DirectFiles(weights.gguf.part_paths)
        self._steps = chain(_steps_of_vectors(weights), _steps(blocks))
        self._wanted: Set[int] | None = None
        self._room = most_ahead
        """Bytes that may still be read ahead."""
        self._closed = False
        self._lock = threading.Condition()
        # All threads read to here, and nobody looks at it: what counts is that the system has read. It goes
        # with the last of them, long before the model does.
        nowhere = memoryview(bytearray(STEP_BYTES))
        self._threads = [
            threading.Thread(target=self._read, args=(nowhere,), name=f"ahead {number}", daemon=True)
            for number in range(_READERS)
        ]
        for thread in self._threads:
            thread.start()

    def only(self, indices: Set[int]) -> None:
        """Read no other blocks from now on."""
        with self._lock:
            self._wanted = indices

    def taken(self, n_bytes: int) -> None:
        """Note that so many bytes have been used: as many more may be read."""
        with self._lock:
            self._room += n_bytes
            self._lock.notify_all()

    def close(self) -> None:
        """Read nothing more, and wait for what is being read: some milliseconds; idempotent."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._files.close()

    def _read(self, nowhere: memoryview) -> None:
        while (step := self._next()) is not None:
            _, part, offset, n_bytes = step
            if self._files.cached(part, offset, n_bytes):
                self.taken(n_bytes)
                continue
            try:
                self._files.fill(part, offset, nowhere[:n_bytes])
            except StreamError:
                return

    def _next(self) -> _Step | None:
        """Wait until more may be read; None when that is not to be, or nothing is left."""
        with self._lock:
            self._lock.wait_for(lambda: self._closed or self._room > 0)
            for step in self._steps:
                if self._closed:
                    return None
                if step.block is None or self._wanted is None or step.block in self._wanted:
                    self._room -= step.n_bytes
                    return step
            return None


def _steps_of_vectors(weights: ModelWeights) -> Iterator[_Step]:
    """They lie all over the file, and are needed first."""
    for name in weights:
        vector = weights.gguf.tensors[name]
        if len(vector.shape) == 1:
            yield _Step(None, vector.part, vector.offset, min(STEP_BYTES, vector.n_bytes))


def _steps(blocks: Sequence[Block]) -> Iterator[_Step]:
    for block in in_order_of_need(blocks):
        for piece in block.pieces:
            for start in range(0, piece.n_bytes, STEP_BYTES):
                n_bytes = min(STEP_BYTES, piece.n_bytes - start)
                yield _Step(block.index, piece.part, piece.offset + start, n_bytes)
