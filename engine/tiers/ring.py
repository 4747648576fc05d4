"""The staging ring of whatever plan holds: made when it is first needed, remade when blocks move.

Knows plans and what of them passes read, blocks among it that stay once they have been read; does not know
why they do (the store), nor slots and threads (`streamer`). Its counters go on over all rings. Called by the
store, from the engine's thread; `stats` and `in_flight` from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.cancel import CancelToken
from engine.skipping.skip_choice import SkipSet
from engine.tiers.blocks import Block
from engine.tiers.direct_io import DirectFiles
from engine.tiers.page_locks import PageLocks
from engine.tiers.planner import Plan
from engine.tiers.residents import Bytes
from engine.tiers.streamer import Streamer, StreamStats


class Ring:
    """Reads the blocks that do not stay, for one model."""

    def __init__(self, files: DirectFiles, blocks: Sequence[Block], locks: PageLocks, plan: Plan) -> None:
        """Read as `plan` says, from `begin`, `follow` or `acquire` on."""
        self._files, self._blocks, self._locks = files, blocks, locks
        self._layer_blocks = [block.index for block in blocks if block.layer is not None]
        self._past = StreamStats()
        """Of streamers that an earlier plan had."""
        self._streamer: Streamer | None = None
        self._plan = plan
        self._readable = plan.streamed
        """Blocks that can be had, in order."""
        self._used: frozenset[int] = frozenset(plan.streamed)
        """Of those, the blocks that are read ahead."""
        self.coming: frozenset[int] = frozenset()
        """Blocks that the plan keeps, and that come to stay when a pass reads them."""
        self._followed: SkipSet | None = None
        """What the pass leaves out that is read for; None where it may have to be read for others."""
        self.active: int | None = None
        """The block in use, by index."""

    def lay_out(self, plan: Plan, coming: frozenset[int] = frozenset()) -> None:
        """Go over to another plan, between two passes; what was read ahead may be lost.

        Blocks that it keeps and that are still `coming` can be had, too.
        """
        self.coming, self._followed = coming, None
        readable = tuple(sorted({*plan.streamed, *coming}))
        before = self._readable, self._plan.slots, self._plan.slot_bytes
        self._plan = plan
        if (readable, plan.slots, plan.slot_bytes) != before:
            self._readable, self._used = readable, frozenset(readable)
            if self._streamer is not None:
                self._streamer.close()
                self._past, self._streamer = self._past.plus(self._streamer.stats), None

    def begin(self) -> None:
        """Reserve the ring, and begin to read; raises MemoryError."""
        self._ready()

    def follow(self, skip: SkipSet) -> None:
        """Read for passes that leave these layer blocks out, from the beginning of one.

        What such passes do not use is not read; a pass that reads nothing leaves all as it is. Raises
        MemoryError where a ring can no longer be had.
        """
        if skip != self._followed and self._plan.streamed and self._needed(skip):
            self._read_ahead(skip, 0)

    def came(self, index: int) -> None:
        """Let passes do without a block, which is in memory to stay."""
        self.coming -= {index}
        self._followed = None

    def stays(self, index: int) -> None:
        """The same of the block that was acquired last: the pass goes on behind it. Raises MemoryError."""
        followed = self._followed
        self.came(index)
        if followed is not None:
            self._read_ahead(followed, index + 1)

    def acquire(self, block: Block, cancel: CancelToken) -> list[Bytes]:
        """Wait for a block; raises as `Streamer.acquire`, and MemoryError."""
        matrices = self._ready().acquire(block, cancel)
        self.active = block.index
        return matrices

    def release(self, block: Block) -> None:
        """Let the memory of an acquired block be used for another one."""
        assert self._streamer is not None, "only acquired blocks are released"
        self.active = None
        self._streamer.release(block)

    def close(self) -> None:
        """Stop reading; idempotent. Its memory is given back."""
        if self._streamer is not None:
            self._streamer.close()

    @property
    def stats(self) -> StreamStats:
        """What was read so far, and the waiting for it."""
        streamer = self._streamer
        return self._past if streamer is None else self._past.plus(streamer.stats)

    @property
    def in_flight(self) -> tuple[tuple[int, float], ...]:
        """As `Streamer.in_flight`."""
        streamer = self._streamer
        return () if streamer is None else streamer.in_flight

    def _needed(self, skip: SkipSet) -> frozenset[int]:
        """What passes have to be brought that leave these layer blocks out."""
        skipped = {self._layer_blocks[number] for number in skip}
        return (frozenset(self._plan.streamed) | self.coming) - skipped

    def _read_ahead(self, skip: SkipSet, start: int) -> None:
        """Read what they need, from this block on; see `Streamer.follow`."""
        self._used = self._needed(skip)
        self._ready().follow(self._used, start)
        self._followed = skip

    def _ready(self) -> Streamer:
        if self._streamer is None:
            self._streamer = Streamer(
                self._files,
                [self._blocks[index] for index in self._readable],
                slots=self._plan.slots,
                slot_bytes=self._plan.slot_bytes,
                locks=self._locks,
                used=self._used,
            )
        return self._streamer
