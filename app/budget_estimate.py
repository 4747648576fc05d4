"""What a memory budget would bring: how little a model can do with, and what a token would read from disk.

A first answer while someone still moves the slider; the engine plans in blocks and has the last word. Knows
the engine's snapshots; imports no widget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine import EngineSnapshot

_RING_SLOTS: Final = 2
"""The fewest blocks that the engine reads ahead into."""


@dataclass(frozen=True, slots=True)
class BudgetRange:
    """The budgets that make sense for the loaded model, in bytes of the whole process's memory for it."""

    least: int
    """Less does not work."""
    available: int
    """What this machine can give without swapping, the model's own memory included."""
    whole: int
    """From here on nothing is read from disk."""
    in_effect: int
    beside: int
    """Of a budget: the KV cache and room to compute, which always stay in memory."""
    pass_bytes: int
    """What a token needs of the weights."""
    read_now: int
    """What a token reads from disk now."""

    @property
    def most(self) -> int:
        """The far end of a slider: all there is, as far as it is of use, and what is in effect."""
        return max(self.in_effect, min(self.available, max(self.whole, self.least) * 5 // 4), self.least + 1)

    def reads(self, budget: int) -> int:
        """Return about how many bytes a token would read from disk."""
        if budget >= self.whole:
            return 0
        ring = self.least - self.beside
        return min(self.pass_bytes, max(0, self.pass_bytes - max(0, budget - self.beside - ring)))


def budget_range(snapshot: EngineSnapshot, available: int) -> BudgetRange | None:
    """Return the range for the loaded model, `available` being bytes nobody uses.

    None where there is nothing to choose: without tiers, or where a GPU holds the model.
    """
    tiers, model = snapshot.tiers, snapshot.model
    if tiers is None or tiers.gpu is not None or model is None:
        return None
    asked = snapshot.ram_budget.n_bytes if snapshot.ram_budget is not None else 0
    # What is not for weights is known to the byte only when bytes were asked for.
    beside = max(model.kv_bytes, asked - tiers.budget_bytes) if asked else model.kv_bytes
    used = [block for block in tiers.blocks if block.kind != "embedding"]
    largest = max((block.n_bytes for block in used), default=0)
    whole = sum(block.n_bytes for block in tiers.blocks)
    return BudgetRange(
        least=beside + min(_RING_SLOTS * largest, whole),
        available=available + tiers.ram_bytes + tiers.ring_bytes + beside,
        whole=beside + whole,
        in_effect=beside + tiers.budget_bytes,
        beside=beside,
        pass_bytes=sum(block.n_bytes for block in used),
        read_now=tiers.pass_read_bytes,
    )
