"""How the pieces of a weight block are read in whole pages, and where each of them then lies in memory.

Knows alignment; reads nothing. Called by what brings blocks into memory: the streamer for those that pass
through, the store for those that stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.tiers.blocks import Piece
from engine.tiers.direct_io import ALIGNMENT


class Extent(NamedTuple):
    """Pages of one file and their place in memory; in bytes, and all but `needed` multiples of a page."""

    part: int
    offset: int
    """First byte in the file."""
    n_bytes: int
    needed: int
    """Bytes up to the end of the last piece: the file may end after these."""
    at: int
    """First byte in memory."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What to read for a block, and where its pieces begin in memory."""

    pieces: tuple[Piece, ...]
    starts: tuple[int, ...]
    """For each piece its first byte in memory."""
    extents: tuple[Extent, ...]
    n_bytes: int
    """Memory that the block takes, a multiple of a page; at most `slot_bytes_for`."""

    def requests(self, n_bytes: int) -> Iterator[Extent]:
        """Cut the extents into reads of at most `n_bytes`, a multiple of a page."""
        for part, offset, size, needed, at in self.extents:
            for done in range(0, size, n_bytes):
                length = min(n_bytes, size - done)
                yield Extent(part, offset + done, length, min(length, needed - done), at + done)

    def views(self, memory: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
        """The pieces in memory that the extents were read into: 1-D, read-only, in the block's order."""
        views = [
            memory[start : start + piece.n_bytes]
            for start, piece in zip(self.starts, self.pieces, strict=True)
        ]
        for view in views:
            view.flags.writeable = False
        return views


def lay_out(pieces: Sequence[Piece]) -> Layout:
    """Place pieces in the order of the file; those whose pages touch are read as one extent."""
    starts = [0] * len(pieces)
    extents: list[Extent] = []
    end = 0
    for index, piece in sorted(enumerate(pieces), key=lambda item: (item[1].part, item[1].offset)):
        first = piece.offset // ALIGNMENT * ALIGNMENT
        if not extents or extents[-1].part != piece.part or first > extents[-1].offset + extents[-1].n_bytes:
            extents.append(Extent(piece.part, first, 0, 0, end))
        extent = extents[-1]
        starts[index] = extent.at + piece.offset - extent.offset
        needed = max(extent.needed, piece.offset + piece.n_bytes - extent.offset)
        extents[-1] = extent._replace(n_bytes=-(-needed // ALIGNMENT) * ALIGNMENT, needed=needed)
        end = extents[-1].at + extents[-1].n_bytes
    return Layout(tuple(pieces), tuple(starts), tuple(extents), end)
