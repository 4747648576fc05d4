"""Blocks that come from the file to stay: into memory in RAM, or through page-locked slots to the GPU.

    file --readers--> page-locked slot --link--> VRAM
    file --readers--> RAM, then page-locked

Knows what was asked for and how much of it has arrived, and asks again for what could not be read; does not
know why a block comes. It takes nothing away from anywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from engine.events import TierEventKind
from engine.tiers.blocks import Block
from engine.tiers.link import Link, Sent
from engine.tiers.loader import Arrival, Loader
from engine.tiers.placement import Place
from engine.tiers.whereabouts import Bytes, Coming, Whereabouts

_IN_COPY = 2
"""Slots that the GPU copies from: while one copy runs, the next one waits behind it."""
_AT_ONCE = 8
"""Arrivals that are taken in at a time: a pass that waits for one block does not wait for all."""


@dataclass(frozen=True, slots=True)
class _Copying:
    """A run of rows on the way from a page-locked slot to the GPU."""

    index: int
    n_bytes: int
    slot: int
    ended: Sent


class Arrivals:
    """What is being read for one model, and copied to the GPU. One thread uses it."""

    def __init__(
        self,
        where: Whereabouts,
        loader: Loader,
        link: Link,
        places: Callable[[Block], Mapping[str, Place]],
        note: Callable[[str, TierEventKind], None],
    ) -> None:
        """`places` says where the tensors of a block go that has memory on the GPU; `note` tells a person."""
        self._where, self._loader, self._link = where, loader, link
        self._places, self._note = places, note
        self._copying: deque[_Copying] = deque()
        self._left_to_copy: dict[int, int] = {}
        """Bytes of blocks on the way to the GPU that are not there yet."""
        self._attempts = 0
        """Passes, and whatever else needs what could not be read: each tries it anew."""

    @property
    def busy(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._copying) or not all(coming.failed for coming in self._where.coming.values())

    @property
    def to_gpu(self) -> Set[int]:
        """Blocks on the way from the file to the GPU."""
        return self._left_to_copy.keys()

    @property
    def bytes_to_gpu(self) -> int:
        """What is left of them."""
        return sum(self._left_to_copy.values())

    @property
    def share(self) -> float:
        """Of the bytes of all blocks, those that have been read or are not to be, 0 to 1."""
        total = sum(block.n_bytes for block in self._where.blocks)
        coming = list(self._where.coming.values())
        return 1 - sum(each.block.n_bytes if each.failed else each.left for each in coming) / total

    def ask(self, block: Block, into: list[Bytes] | None) -> None:
        """Let a block come that is not coming: into memory in RAM, or to the memory it has on the GPU."""
        self._where.settled = False
        self._where.coming[block.index] = Coming(block, into, block.n_bytes, self._attempts)
        if into is None:
            self._left_to_copy[block.index] = block.n_bytes
        self._loader.ask(block, into)

    def forget(self, indices: Set[int]) -> None:
        """Let nothing more of these blocks come from the file, where it was to come."""
        gone = self._where.coming.keys() & indices
        if gone:
            self._loader.forget(frozenset(gone))
            for index in gone:
                del self._where.coming[index]

    def give_up(self, index: int) -> None:
        """Let a block not come to the GPU, if it was to; nothing is copied to its memory any more."""
        if index in self._left_to_copy:
            self.forget({index})
            self._finish_copies(index)
            self._left_to_copy.pop(index, None)

    def take_in(self, wait_s: float) -> None:
        """Take in what has been read, waiting for it so long at most, and what has been copied."""
        if self._where.coming:
            for number in range(_AT_ONCE):
                arrival = self._loader.take(0 if number else wait_s)
                if arrival is None:
                    break
                self._take(arrival)
        self._note_copies()

    # -- what could not be read

    def try_again(self) -> None:
        """Begin a new attempt at what could not be read: the disk may have recovered."""
        self._attempts += 1
        self._ask_again()

    def insist(self, block: Block | None = None) -> None:
        """Ask once more in this attempt if a block, or any, could not be read; then raises StreamError."""
        for coming in list(self._where.coming.values()):
            if coming.failed and block in (None, coming.block):
                if coming.error is not None and coming.attempt == self._attempts:
                    raise coming.error
                self._ask_again()

    def _ask_again(self) -> None:
        for coming in [coming for coming in self._where.coming.values() if coming.failed]:
            self._finish_copies(coming.block.index)
            self.ask(coming.block, coming.into)

    # -- what has been read

    def _take(self, arrival: Arrival) -> None:
        """A run of rows that has been read, or could not be."""
        coming = self._where.coming.get(arrival.block.index)
        if coming is None:  # not wanted any more
            if arrival.slot is not None:
                self._loader.free(arrival.slot)
            return
        coming.left -= arrival.n_bytes
        if arrival.error is not None:
            if coming.error is None:
                self._note(f"{coming.block.name} could not be read: {arrival.error}", TierEventKind.WARNING)
            coming.error = arrival.error
            return
        if arrival.data is not None and arrival.slot is not None:
            self._copy(arrival, arrival.data, arrival.slot)
        if coming.left <= 0 and coming.error is None:
            del self._where.coming[coming.block.index]
            if coming.into is not None:
                self._where.came_to_ram(coming.block.index)

    def _copy(self, arrival: Arrival, data: Bytes, slot: int) -> None:
        """Put what is in a slot on the way to the GPU."""
        block = arrival.block
        piece = block.pieces[arrival.piece]
        self._link.send(piece, data, self._places(block)[piece.tensor], arrival.first_row)
        self._copying.append(_Copying(block.index, arrival.n_bytes, slot, self._link.record()))
        while len(self._copying) > _IN_COPY:
            self._copying[0].ended.wait()
            self._note_copies()

    def _note_copies(self) -> None:
        """Free the slots of copies that are done."""
        while self._copying and self._copying[0].ended.done:
            copy = self._copying.popleft()
            self._loader.free(copy.slot)
            self._left_to_copy[copy.index] -= copy.n_bytes
            if not self._left_to_copy[copy.index]:
                del self._left_to_copy[copy.index]
                self._where.came_to_vram(copy.index)

    def _finish_copies(self, index: int) -> None:
        """Wait for what is being copied of a block."""
        while any(copy.index == index for copy in self._copying):
            self._copying[0].ended.wait()
            self._note_copies()
