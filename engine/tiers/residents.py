"""Blocks that stay in memory: reserved together, read from the file, given back one by one.

Knows memory and files; does not choose what stays (`planner`) and does not know passes or the ring. Called by
the store, from the engine's thread.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.tiers.blocks import Block, BlockKind, slot_bytes_for
from engine.tiers.direct_io import DirectFiles
from engine.tiers.region import Region

Bytes = npt.NDArray[np.uint8]

_COPY_STEP = 32 << 20
_LINE = 64


class _Home(NamedTuple):
    """Where a block is."""

    region: Region
    pieces: list[Bytes]


class Residents:
    """The blocks of a model that are in memory."""

    def __init__(self, files: DirectFiles, blocks: Sequence[Block]) -> None:
        """Begin with none of `blocks`."""
        self._files, self._blocks = files, blocks
        self._head = [block for block in blocks if block.kind is BlockKind.HEAD]
        self._homes: dict[int, _Home] = {}

    @property
    def indices(self) -> frozenset[int]:
        """The blocks that are here, by index."""
        return frozenset(self._homes)

    def get(self, index: int) -> list[Bytes] | None:
        """The matrices of a block; None while it is not here."""
        home = self._homes.get(index)
        return None if home is None else home.pieces

    def bring(self, wanted: frozenset[int]) -> Generator[tuple[Block, int]]:
        """Read blocks into new memory, yielding each with how many of its bytes have arrived.

        It is here when all have. Left in the middle, a block that has not arrived gives its memory back.
        Raises MemoryError before anything is read, and StreamError.
        """
        region = Region(sum(slot_bytes_for(self._blocks[index]) for index in wanted))
        for block, pieces in self._reserve(region, wanted):
            home = _Home(region, pieces)
            try:
                done = 0
                for piece, memory in zip(block.pieces, pieces, strict=True):
                    for start in range(0, piece.n_bytes, _COPY_STEP):
                        yield block, done
                        part = memory[start : start + _COPY_STEP]
                        self._files.fill(piece.part, piece.offset + start, part.data)
                        done += part.size
                    memory.flags.writeable = False
            except BaseException:
                _evict(home)
                raise
            self._homes[block.index] = home
            yield block, block.n_bytes

    def evict(self, index: int) -> None:
        """Give the memory of a block back to the system; who still looks at it sees zeros."""
        _evict(self._homes.pop(index))

    def clear(self) -> None:
        """Let go of everything."""
        self._homes.clear()

    def _reserve(self, region: Region, wanted: frozenset[int]) -> Iterator[tuple[Block, list[Bytes]]]:
        """Memory for every wanted block; that of neighbouring parts of the head is one stretch."""
        stretch = np.empty(0, np.uint8)
        for index in sorted(wanted):
            block = self._blocks[index]
            if block.kind is BlockKind.HEAD:
                if not stretch.size:
                    stretch = region.place(self._head_bytes_from(block, wanted))
                pieces = [stretch[: block.n_bytes]]
                stretch = stretch[block.n_bytes :]
            else:
                memory = region.place(sum(_whole_lines(piece.n_bytes) for piece in block.pieces))
                pieces = []
                for piece in block.pieces:
                    pieces.append(memory[: piece.n_bytes])
                    memory = memory[_whole_lines(piece.n_bytes) :]
            yield block, pieces

    def _head_bytes_from(self, block: Block, wanted: frozenset[int]) -> int:
        """Bytes of this part of the head and of those that follow it without a gap."""
        n_bytes = 0
        for other in self._head[block.number :]:
            if other.index not in wanted:
                break
            n_bytes += other.n_bytes
        return n_bytes


def follows(first: Bytes, second: Bytes) -> bool:
    """Whether memory lies right after other memory, as neighbouring parts of the head do."""
    return bool(first.ctypes.data + first.size == second.ctypes.data)


def joined(first: Bytes, second: Bytes) -> Bytes:
    """Two views of one stretch of memory, the second right after the first, as one."""
    whole = first.base
    assert isinstance(whole, np.ndarray)
    start = first.ctypes.data - whole.ctypes.data
    both: Bytes = whole[start : start + first.size + second.size]
    return both


def _evict(home: _Home) -> None:
    for memory in home.pieces:
        home.region.evict(memory)


def _whole_lines(n_bytes: int) -> int:
    return -(-n_bytes // _LINE) * _LINE
