"""Blocks that stay in memory: reserved together, read from the file, given back one by one.

A block is reserved, its bytes come into that memory (read here, or by somebody else who then says so), and it
is here, page-locked where a GPU copies from it. Knows memory and files; does not choose what stays
(`planner`), does not know passes or the ring. Called by the store, from the engine's thread.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.tiers.blocks import Block, BlockKind, slot_bytes_for
from engine.tiers.direct_io import ALIGNMENT, DirectFiles
from engine.tiers.page_locks import PageLocks
from engine.tiers.region import Region

Bytes = npt.NDArray[np.uint8]

_COPY_STEP = 32 << 20
_LINE = 64


class _Home(NamedTuple):
    """Where a block is."""

    region: Region
    memory: Bytes
    """Whole pages of its own; of a part of the head only its bytes, as other parts touch them."""
    pieces: list[Bytes]


class Residents:
    """The blocks of a model that are in memory, or that memory is reserved for."""

    def __init__(self, files: DirectFiles, blocks: Sequence[Block], locks: PageLocks | None = None) -> None:
        """Begin with none of `blocks`. With `locks` those of layers are page-locked while they are here."""
        self._files, self._blocks = files, blocks
        self._locks = locks or PageLocks()
        self._head = [block for block in blocks if block.kind is BlockKind.HEAD]
        self._homes: dict[int, _Home] = {}
        self._reserved: dict[int, _Home] = {}

    @property
    def indices(self) -> frozenset[int]:
        """The blocks that are here, by index."""
        return frozenset(self._homes)

    @property
    def reserved(self) -> dict[int, list[Bytes]]:
        """Writable memory of the blocks that are to come, an array for each piece."""
        return {index: home.pieces for index, home in self._reserved.items()}

    def get(self, index: int) -> list[Bytes] | None:
        """The matrices of a block; None while it is not here."""
        home = self._homes.get(index)
        return None if home is None else home.pieces

    def bring(self, wanted: frozenset[int]) -> Generator[tuple[Block, int]]:
        """Read blocks into memory, yielding each with how many of its bytes have arrived.

        Memory that is reserved is used, other is new. A block is here when all of its bytes are.
        Left in the middle, blocks that have not arrived give their memory back.
        Raises MemoryError before anything is read, and StreamError.
        """
        self.reserve(wanted - self._reserved.keys())
        try:
            for index in sorted(wanted):
                block, done = self._blocks[index], 0
                for piece, memory in zip(block.pieces, self._reserved[index].pieces, strict=True):
                    for start in range(0, piece.n_bytes, _COPY_STEP):
                        yield block, done
                        part = memory[start : start + _COPY_STEP]
                        self._files.fill(piece.part, piece.offset + start, part.data)
                        done += part.size
                self.settle(index)
                yield block, done
        finally:
            for index in wanted & self._reserved.keys():
                self.withdraw(index)

    def reserve(self, wanted: frozenset[int]) -> None:
        """Reserve memory for blocks that are neither here nor reserved; raises MemoryError."""
        region = Region(sum(slot_bytes_for(self._blocks[index]) for index in wanted))
        stretch = np.empty(0, np.uint8)
        for index in sorted(wanted):
            block = self._blocks[index]
            if block.kind is BlockKind.HEAD:
                # Neighbouring parts are one stretch, which is computed in one call.
                if not stretch.size:
                    stretch = region.place(self._head_bytes_from(block, wanted))
                home = _Home(region, stretch[: block.n_bytes], [stretch[: block.n_bytes]])
                stretch = stretch[block.n_bytes :]
            else:
                starts = [0, *accumulate(_whole(piece.n_bytes, _LINE) for piece in block.pieces)]
                memory = region.place(_whole(starts[-1], ALIGNMENT))
                sizes = (piece.n_bytes for piece in block.pieces)
                pieces = [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]
                home = _Home(region, memory, pieces)
            self._reserved[index] = home

    def settle(self, index: int) -> None:
        """Take it that all bytes of a reserved block are in its memory: it is here now."""
        home = self._reserved[index]
        for memory in home.pieces:
            memory.flags.writeable = False
        if self._blocks[index].layer is not None:
            self._locks.lock(home.memory)
        self._homes[index] = self._reserved.pop(index)

    def withdraw(self, index: int) -> None:
        """Give up the memory of a reserved block, which nobody may be reading into any more."""
        self._evict(self._reserved.pop(index))

    def evict(self, index: int) -> None:
        """Give the memory of a block back to the system; who still looks at it sees zeros."""
        self._evict(self._homes.pop(index))

    def clear(self) -> None:
        """Let go of everything."""
        for home in self._homes.values():
            self._locks.unlock(home.memory)
        self._homes.clear()
        self._reserved.clear()

    def _evict(self, home: _Home) -> None:
        self._locks.unlock(home.memory)
        home.region.evict(home.memory)

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


def _whole(n_bytes: int, unit: int) -> int:
    return -(-n_bytes // unit) * unit
