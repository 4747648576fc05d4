"""The way to a GPU: native bytes are copied there in pieces and laid out anew on arrival.

Knows buffers, lanes and pieces; does not know blocks or when they are needed. Called by the staging ring and
by the placement, from the engine's thread, which never waits here.

    host memory --copy--> buffer in VRAM --repack kernel--> matrix

There are two lanes, each with a buffer: while one lays out what has arrived, the other one's copy runs, so
that the link is never idle. In a lane all is in order, so that its buffer is free when the next copy begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from engine.tiers.blocks import Piece
from engine.tiers.placement import Place
from kernels.cuda.device import Array, Device, Event, Lane
from kernels.cuda.matrices import repack
from kernels.cuda.pace import PacedLane

Bytes = npt.NDArray[np.uint8]

BUFFER_BYTES = 32 << 20
"""Of each lane: copies of this size reach the link's full rate."""
N_LANES = 2


class Located(Protocol):
    """Matrices on a GPU."""

    @property
    def places(self) -> Mapping[str, Place]:
        """Where each tensor's rows go."""
        ...


class Sent(NamedTuple):
    """Places in the lanes behind something that was sent."""

    events: tuple[Event, ...]

    @property
    def done(self) -> bool:
        """Whether all of it has arrived."""
        return all(event.done for event in self.events)

    def wait(self) -> None:
        """Sleep until it has. Raises DeviceError."""
        for event in self.events:
            event.wait()

    def since(self, start: Sent) -> float:
        """Seconds from `start` to here, both with `timing`; waits.

        From when all lanes were at `start` until all are here. One that is there sooner waits for the link,
        which is still at what was sent before: of its time nothing counts twice.
        """
        self.wait()
        return max(min(end.since(begin) for begin in start.events) for end in self.events)


class Link:
    """Copies to one GPU."""

    def __init__(self, device: Device, buffers: Sequence[Array], rate: float | None) -> None:
        """Copy through `buffers`, one a lane, no faster than `rate` bytes per second if one is given."""
        self._lanes: list[tuple[Lane, Array]]
        if rate is None:
            self._lanes = [(device.lane(), buffer) for buffer in buffers]
        else:  # of two paced lanes each would have to know when the other one copied last
            self._lanes = [(PacedLane(device, rate), buffers[0])]
        self._turns = cycle(self._lanes)
        self.sent_bytes = 0
        """So far."""

    def send(self, piece: Piece, native: Bytes, place: Place, first_row: int = 0) -> None:
        """Put rows of `piece`, from its row `first_row` on, on the way to their place.

        `native` must stay until that is done; from memory that is not page-locked the copy is slower, and the
        calling thread waits for it.
        """
        row_bytes = piece.n_bytes // piece.n_rows
        rows_at_once = max(1, self._lanes[0][1].nbytes // row_bytes)
        n_rows = native.size // row_bytes
        for start in range(0, n_rows, rows_at_once):
            rows = min(rows_at_once, n_rows - start)
            lane, buffer = next(self._turns)
            part, held = native[start * row_bytes : (start + rows) * row_bytes], buffer[: rows * row_bytes]
            lane.copy_async(held, part)
            repack(lane, held, place.matrix, place.first_row + piece.first_row + first_row + start, rows)
        self.sent_bytes += native.size

    def send_block(
        self, pieces: Sequence[Piece], native: Sequence[Bytes], places: Mapping[str, Place]
    ) -> None:
        """Put all matrices of a block on the way."""
        for piece, data in zip(pieces, native, strict=True):
            self.send(piece, data, places[piece.tensor])

    def wait_for(self, event: Event) -> None:
        """Let what is sent from now on wait, on the GPU, for a place in its stream."""
        for lane, _ in self._lanes:
            lane.wait_for(event)

    def record(self, *, timing: bool = False) -> Sent:
        """The places behind all that was sent by now."""
        return Sent(tuple(lane.record(timing=timing) for lane, _ in self._lanes))
