"""Where a backend's weights are, as far as others ask: what was read, what there is to know, what to show.

`TieredWeights` (memory and disk) and `VramWeights` (a GPU) have it, and show alike where a block is. Knows
neither.
"""

from __future__ import annotations

from typing import Protocol

from engine.events import BlockPlace, Tier, TierSnapshot
from engine.tiers.blocks import Block
from engine.tiers.streamer import StreamStats


class Placement(Protocol):
    """The weights of a loaded model. Owned by its backend; everything but `close` is for any thread."""

    @property
    def stats(self) -> StreamStats:
        """What was read from disk so far, and the waiting for it."""
        ...

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know about where the weights are."""
        ...

    @property
    def predicted_decode_tok_s(self) -> float | None:
        """Tokens per second that the plan promises from an empty context; None when no rate is known."""
        ...

    def snapshot(self) -> TierSnapshot:
        """Where everything is now."""
        ...

    def close(self) -> None:
        """Let go of everything; idempotent."""
        ...


def place_of(block: Block, tier: Tier) -> BlockPlace:
    """What is shown of a block that is in this tier."""
    return BlockPlace(block.name, str(block.kind), block.layer, block.n_bytes, block.main_type.name, tier)
