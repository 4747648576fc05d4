"""The staging ring of whatever plan holds: made when it is first needed, remade when blocks move.

Knows plans and what of them the passes use; does not know why a block is read (the store), nor slots and
threads (`streamer`). Its counters go on over all rings. Called by the store, from the engine's thread;
`stats` and `in_flight` from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from engine.cancel import CancelToken
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
        self._past = StreamStats()
        """Of streamers that an earlier plan had."""
        self._streamer: Streamer | None = None
        self._plan = plan
        self._readable = plan.streamed
        """Blocks that can be had, in order."""
        self._used: frozenset[int] = frozenset(plan.streamed)
        """Of those, the blocks that are read ahead."""
        self.active: int | None = None
        """The block in use, by index."""

    def lay_out(self, plan: Plan, coming: Set[int] = frozenset()) -> None:
        """Go over to another plan, between two passes; what was read ahead may be lost.

        Blocks that it keeps and that are still `coming` can be had, too.
        """
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

    def follow(self, used: frozenset[int], start: int = 0) -> None:
        """Read ahead these blocks only; see `Streamer.follow`. Raises MemoryError."""
        self._used = used
        self._ready().follow(used, start)

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
