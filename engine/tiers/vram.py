"""A model's matrices in a GPU's memory: read once from the file, copied, and laid out anew there.

Knows reads, page-locked buffers and copies; does not know which matrices are one on the GPU (its caller says
where every tensor goes), and nothing of passes. Called by the CUDA backend, from the engine's thread.

    disk or page cache --reader threads--> page-locked slots --copy--> staging --repack kernel--> matrices

The engine's thread alone gives work to the GPU; reader threads only fill slots. A slot is filled again when
the copy from it is done. Copies and repacking are in order on the GPU's one stream: one staging area will do.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.cancel import CancelToken
from engine.errors import CancelledError
from engine.events import GpuFacts, Tier, TierEvent, TierSnapshot
from engine.machine import physical_cores
from engine.tiers.blocks import Block, Piece
from engine.tiers.budget import shown_bytes
from engine.tiers.direct_io import DirectFiles
from engine.tiers.placement import place_of
from engine.tiers.streamer import StreamStats
from kernels.cuda.device import Array, Device, Event
from kernels.cuda.matrices import DeviceMatrix, repack

Bytes = npt.NDArray[np.uint8]

SLOT_BYTES = 16 << 20
"""What is read and copied at a time: copies of this size reach the link's full rate, and it is many pages."""
_MOST_READERS = 8
_IN_COPY = 2
"""Slots that the GPU copies from: while one copy runs, the next one waits behind it."""
_SHOW_S = 0.05
_CANCEL_POLL_S = 0.05
_JOIN_S = 2.0
"""How long an end of loading waits for reads; a thread on a dead disk ends with the process."""


class Place(NamedTuple):
    """Where a tensor's rows go."""

    matrix: DeviceMatrix
    first_row: int
    """Of the tensor, in the matrix."""


class _Run(NamedTuple):
    """Rows of one piece that are read and copied together."""

    block: int
    piece: Piece
    first_row: int
    """In the piece."""
    n_rows: int

    @property
    def n_bytes(self) -> int:
        return self.n_rows * (self.piece.n_bytes // self.piece.n_rows)

    @property
    def offset(self) -> int:
        """First byte in the file."""
        return self.piece.offset + self.first_row * (self.piece.n_bytes // self.piece.n_rows)


class VramWeights:
    """`Placement` of a model that is in a GPU's memory whole."""

    predicted_decode_tok_s: float | None = None
    """Nothing is predicted: the speed of GPUs is not measured beforehand."""
    notices: tuple[str, ...] = ()

    def __init__(
        self,
        device: Device,
        blocks: Sequence[Block],
        places: Mapping[str, Place],
        *,
        gpu: GpuFacts,
        used: int,
        budget: int,
        on_change: Callable[[TierSnapshot], None],
    ) -> None:
        """Know where the tensors of `blocks` go; `load` brings them.

        `used` and `budget` are GPU memory of the whole model, taken and granted. `on_change` is called by the
        engine's thread.
        """
        self._device, self._places = device, places
        self._gpu, self._used, self._budget, self._on_change = gpu, used, budget, on_change
        self.blocks = tuple(blocks)
        self._left = [block.n_bytes for block in blocks]
        """Bytes of each block that are not there yet."""
        self._shown = tuple(place_of(block, Tier.NVME) for block in blocks)
        self._vram_bytes = 0
        self._h2d_bytes = 0
        self._events: tuple[TierEvent, ...] = ()
        self._passes = 0

    # -- loading

    def load(self, files: DirectFiles, cancel: CancelToken) -> Generator[int]:
        """Bring all blocks, yielding now and then how many bytes are there.

        Raises CancelledError, StreamError, and what the device raises.
        """
        runs = list(_runs(self.blocks))
        slot_bytes = max((run.n_bytes for run in runs), default=0)
        n_readers = max(1, min(_MOST_READERS, physical_cores(), len(runs)))
        n_slots = n_readers + _IN_COPY
        memory = self._device.pinned(n_slots * slot_bytes)
        slots = [memory[i * slot_bytes : (i + 1) * slot_bytes] for i in range(n_slots)]
        staging = self._device.empty(slot_bytes, "uint8")
        copying: deque[tuple[Event, int, _Run]] = deque()
        shown_at = 0.0
        self._on_change(self.snapshot())
        readers = _Readers(files, runs, slots, n_readers)
        try:
            for run, slot in readers.filled(cancel):
                self._bring(run, slots[slot][: run.n_bytes], staging)
                copying.append((self._device.record(), slot, run))
                while len(copying) > _IN_COPY:
                    readers.free(self._arrived(*copying.popleft()))
                if time.monotonic() - shown_at > _SHOW_S:
                    shown_at = time.monotonic()
                    self._on_change(self.snapshot())
                    yield self._h2d_bytes
            while copying:
                self._arrived(*copying.popleft())
        finally:
            readers.close()
            self._device.synchronize()  # it may still copy from the slots
            self._device.fence()
        text = f"all {len(self.blocks)} blocks, {shown_bytes(self._h2d_bytes)}, are in the memory of the GPU"
        self._events = (TierEvent(time.time(), text),)
        self._on_change(self.snapshot())
        yield self._h2d_bytes

    def _bring(self, run: _Run, filled: Bytes, staging: Array) -> None:
        place = self._places[run.piece.tensor]
        native = staging[: run.n_bytes]
        self._device.copy_async(native, filled)
        first_row = place.first_row + run.piece.first_row + run.first_row
        repack(self._device, native, place.matrix, first_row, run.n_rows)

    def _arrived(self, event: Event, slot: int, run: _Run) -> int:
        """Wait for a copy; the slot that is free then."""
        event.wait()
        self._h2d_bytes += run.n_bytes
        self._left[run.block] -= run.n_bytes
        if not self._left[run.block]:
            block = self.blocks[run.block]
            self._vram_bytes += block.n_bytes
            shown = list(self._shown)
            shown[run.block] = place_of(block, Tier.VRAM)
            self._shown = tuple(shown)
        return slot

    # -- for the backend

    def count_pass(self) -> None:
        """Note that a pass over all blocks begins."""
        self._passes += 1

    def close(self) -> None:
        """Let go of the matrices; idempotent."""
        self._places = {}

    # -- for any thread

    @property
    def stats(self) -> StreamStats:
        """Nothing is read while the model runs."""
        return StreamStats()

    def snapshot(self) -> TierSnapshot:
        """Where everything is now."""
        arriving = (
            (block.index, 1 - left / block.n_bytes)
            for block, left in zip(self.blocks, self._left, strict=True)
            if 0 < left < block.n_bytes
        )
        return TierSnapshot(
            blocks=self._shown,
            ram_bytes=0,
            ring_bytes=0,
            budget_bytes=0,
            pass_read_bytes=0,
            read_bytes=0,
            read_s=0.0,
            stall_s=0.0,
            disk_rate=None,
            predicted_decode_tok_s=None,
            limited_by="",
            active=None,
            in_flight=tuple(arriving),
            events=self._events,
            events_dropped=0,
            passes=self._passes,
            vram_bytes=self._vram_bytes,
            vram_used_bytes=self._used,
            vram_budget_bytes=self._budget,
            h2d_bytes=self._h2d_bytes,
            gpu=self._gpu,
        )


class _Readers:
    """Threads that fill slots with runs, about in order."""

    def __init__(
        self, files: DirectFiles, runs: Sequence[_Run], slots: Sequence[Bytes], n_threads: int
    ) -> None:
        """Begin to read."""
        self._files, self._runs, self._slots = files, runs, slots
        self._lock = threading.Lock()
        self._next = 0
        """Index of the run that is read next."""
        self._free: SimpleQueue[int | None] = SimpleQueue()
        """Slots to fill; None ends the thread that takes it."""
        self._filled: SimpleQueue[tuple[_Run, int, Exception | None]] = SimpleQueue()
        for slot in range(len(slots)):
            self._free.put(slot)
        self._threads = [
            threading.Thread(target=self._read, name=f"reader {number}", daemon=True)
            for number in range(n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def filled(self, cancel: CancelToken) -> Iterator[tuple[_Run, int]]:
        """Each run once and the slot that it is in, as they come. Raises StreamError, CancelledError."""
        for _ in self._runs:
            run, slot, error = self._await(cancel)
            if error is not None:
                raise error
            yield run, slot

    def free(self, slot: int) -> None:
        """Let a slot be filled again."""
        self._free.put(slot)

    def close(self) -> None:
        """End the threads, each after the read that it is at."""
        with self._lock:
            self._next = len(self._runs)
        for _ in self._threads:
            self._free.put(None)
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _await(self, cancel: CancelToken) -> tuple[_Run, int, Exception | None]:
        while not cancel.cancelled:
            try:
                return self._filled.get(timeout=_CANCEL_POLL_S)
            except Empty:
                pass
        raise CancelledError("loading was stopped")

    def _read(self) -> None:
        while (slot := self._free.get()) is not None:
            with self._lock:
                if self._next == len(self._runs):
                    return
                run = self._runs[self._next]
                self._next += 1
            error = None
            try:
                self._files.expect(run.piece.part, run.offset, run.n_bytes)
                self._files.fill(run.piece.part, run.offset, self._slots[slot][: run.n_bytes].data)
            except Exception as caught:  # noqa: BLE001  raised by `filled`, whatever it is
                error = caught
            self._filled.put((run, slot, error))


def _runs(blocks: Sequence[Block]) -> Iterator[_Run]:
    """Cut all pieces into runs of at most `SLOT_BYTES`, in order; a longer row is a run of its own."""
    for block in blocks:
        for piece in block.pieces:
            rows = max(1, SLOT_BYTES // (piece.n_bytes // piece.n_rows))
            for first in range(0, piece.n_rows, rows):
                yield _Run(block.index, piece, first, min(rows, piece.n_rows - first))
