"""Where a backend's weights are, as far as others ask: what was read, what there is to know, what to show.

`TieredWeights` (memory and disk) and `GpuTiers` (a GPU beside them) have it, and show alike where a block is.
Knows neither. `Place` is where a tensor goes in a GPU's memory.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from engine.cancel import CancelToken
from engine.events import BlockPlace, Executor, Tier, TierSnapshot
from engine.skipping.skip_choice import SkipChoice, SkipRule, SkipSet
from engine.tiers.blocks import Block
from engine.tiers.streamer import StreamStats
from kernels.cuda.matrices import DeviceMatrix

_LONGEST_LIST = 60
"""Letters; blocks whose names take more are counted instead."""


class Place(NamedTuple):
    """Where a tensor's rows go on a GPU."""

    matrix: DeviceMatrix
    first_row: int
    """Of the tensor, in the matrix."""


class Placement(Protocol):
    """The weights of a loaded model. Owned by its backend; everything but `close` is for any thread."""

    @property
    def stats(self) -> StreamStats:
        """What was read from disk and copied to a GPU so far, and the waiting for it."""
        ...

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know about where the weights are."""
        ...

    @property
    def learnt_disk_rate(self) -> float | None:
        """Bytes per second of the disk as passes found it, where a probe had found another rate."""
        ...

    @property
    def predicted_decode_tok_s(self) -> float | None:
        """Tokens per second that the plan promises from an empty context; None when no rate is known."""
        ...

    @property
    def arrived_share(self) -> float:
        """How much of the weights is where it is to stay, 0 to 1; the model answers before all is."""
        ...

    def pump(self, wait_s: float) -> bool:
        """Take in what is on its way, waiting for it so long at most; False when nothing is.

        For the engine's thread, while it has nothing else to do.
        """
        ...

    def settle(self, cancel: CancelToken) -> None:
        """Wait until all weights are where they are to stay, as who measures does.

        Raises CancelledError, StreamError.
        """
        ...

    def leave_out(self, skip: SkipSet) -> None:
        """Take note that passes leave these blocks out from now on: their places go to others, between and
        beside passes. For drafts, which leave others out for a moment, it is not called.
        """
        ...

    @property
    def near(self) -> SkipSet:
        """Layer blocks, by number, that a pass need not fetch.

        That is what a GPU's memory holds where there is one, else what RAM holds.
        """
        ...

    def snapshot(self) -> TierSnapshot:
        """Where everything is now."""
        ...

    def close(self) -> None:
        """Let go of everything; idempotent."""
        ...


def place_of(block: Block, tier: Tier, executor: Executor = Executor.CPU) -> BlockPlace:
    """What is shown of a block that is in this tier."""
    kind, quantisation = str(block.kind), block.main_type.name
    return BlockPlace(block.name, kind, block.layer, block.n_bytes, quantisation, tier, executor)


def left_out_words(skip: SkipSet) -> str:
    """Which layer blocks passes leave out, such as 'blk.3, blk.5.attn are left out'."""
    if not skip:
        return "no blocks are left out"
    names = str(SkipChoice(SkipRule.BLOCKS, blocks=skip)).replace(",", ", ")
    if len(names) > _LONGEST_LIST:
        return f"{len(skip)} blocks are left out"
    return f"{names} {'are' if ',' in names else 'is'} left out"
