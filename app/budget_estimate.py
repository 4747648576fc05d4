"""What a budget would bring: how little memory a model can do with, and what a token needs from beside it.

A first answer while someone still moves the slider; the engine plans in blocks and has the last word. Knows
the engine's snapshots, and the header of the model's file; imports no widget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine import BlockPlace, Budget, EngineSnapshot, LoadOptions, Tier, preview_model

_ALL: Final = Budget(1 << 60)
"""Room for any model."""
_RING_SLOTS: Final = 2
"""The fewest blocks that the engine reads ahead into."""


@dataclass(frozen=True, slots=True)
class BudgetRange:
    """The budgets that make sense for the loaded model, in bytes of memory, or of a GPU's memory, for it."""

    least: int
    """Less does not work."""
    available: int
    """What this machine can give without swapping, or the GPU, the model's own memory included."""
    whole: int
    """From here on nothing is read from disk, or nothing is left beside the GPU."""
    in_effect: int
    beside: int
    """Of a budget: the KV cache and room to compute, which always stay."""
    pass_bytes: int
    """What a token needs of the weights that this memory is for."""
    outside_now: int
    """What a token needs now of the weights that have no place in this memory."""

    @property
    def most(self) -> int:
        """The far end of a slider: all there is, as far as it is of use, and what is in effect."""
        return max(self.in_effect, min(self.available, max(self.whole, self.least) * 5 // 4), self.least + 1)

    def outside(self, budget: int) -> int:
        """Return about how many bytes of the weights that a token needs would have no place."""
        if budget >= self.whole:
            return 0
        ring = self.least - self.beside
        return min(self.pass_bytes, max(0, self.pass_bytes - max(0, budget - self.beside - ring)))


def computing_bytes(snapshot: EngineSnapshot) -> int:
    """Return about how much memory computing takes beside weights and cache; 0 where it is not known.

    Reads the header of the model's file: not for the thread of the interface.
    """
    tiers, model = snapshot.tiers, snapshot.model
    if tiers is None or model is None:
        return 0
    options = LoadOptions(model.path, context=model.max_context, device="cpu", ram_budget=_ALL)
    preview = preview_model(model.path, options)
    weights = sum(block.n_bytes for block in tiers.blocks)
    return max(0, preview.ram_bytes - preview.kv_bytes - weights)


def ram_range(snapshot: EngineSnapshot, available: int, computing: int = 0) -> BudgetRange | None:
    """Return the range for the memory of the loaded model, `available` being bytes nobody uses.

    `computing` is as `computing_bytes` says, 0 until that is known.
    Of weights in a GPU's memory nothing is counted. None where there is nothing to choose: without tiers, or
    where a GPU holds the whole model.
    """
    tiers, model = snapshot.tiers, snapshot.model
    if tiers is None or model is None:
        return None
    blocks = [block for block in tiers.blocks if block.tier is not Tier.VRAM]
    if tiers.gpu is not None and not blocks:
        return None
    asked = snapshot.ram_budget.n_bytes if snapshot.ram_budget is not None else 0
    # What is not for weights is known to the byte only when bytes were asked for.
    cache = model.kv_bytes if tiers.gpu is None else 0
    beside = max(cache, asked - tiers.budget_bytes) if asked else cache + computing
    return _range(
        blocks,
        beside,
        available=available + tiers.ram_bytes + tiers.ring_bytes + beside,
        in_effect=beside + tiers.budget_bytes,
        outside_now=tiers.pass_read_bytes,
    )


def vram_range(snapshot: EngineSnapshot) -> BudgetRange | None:
    """Return the range for a GPU's memory of the loaded model; None where none computes."""
    tiers = snapshot.tiers
    if tiers is None or tiers.gpu is None or snapshot.model is None:
        return None
    outside = [block for block in _used(tiers.blocks) if block.tier is not Tier.VRAM]
    return _range(
        tiers.blocks,
        max(0, tiers.vram_used_bytes - tiers.vram_bytes - tiers.vram_ring_bytes),
        available=max(tiers.gpu.free_bytes, tiers.vram_used_bytes),
        in_effect=tiers.vram_budget_bytes,
        outside_now=sum(block.n_bytes for block in outside),
    )


def _range(
    blocks: Sequence[BlockPlace], beside: int, *, available: int, in_effect: int, outside_now: int
) -> BudgetRange:
    used = _used(blocks)
    largest = max((block.n_bytes for block in used), default=0)
    whole = sum(block.n_bytes for block in blocks)
    return BudgetRange(
        least=beside + min(_RING_SLOTS * largest, whole),
        available=available,
        whole=beside + whole,
        in_effect=in_effect,
        beside=beside,
        pass_bytes=sum(block.n_bytes for block in used),
        outside_now=outside_now,
    )


def _used(blocks: Sequence[BlockPlace]) -> list[BlockPlace]:
    """Those that a token needs whole: of the embedding it takes a row."""
    return [block for block in blocks if block.kind != "embedding"]
