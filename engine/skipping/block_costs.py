"""What a pass of a loaded model costs, block by block. Knows bytes and where they are; measures no time."""

from __future__ import annotations

from typing import NamedTuple

from engine.loading import LoadedModel
from engine.skipping.skip_choice import SkipSet
from engine.tiers.blocks import BlockKind, weight_blocks

_FAR = 8.0
"""What a byte that has to be fetched costs against one that is near: disks against memory, and links against
a GPU's memory, differ more than that, but part of the time is hidden."""


class BlockCosts(NamedTuple):
    """What a pass costs, in any unit."""

    layers: tuple[float, ...]
    """Of each layer block, by number."""
    rest: float
    """Of what every pass needs: the head."""


def block_costs(loaded: LoadedModel, near: SkipSet | None = None) -> BlockCosts:
    """By the bytes that are read; with `near` those count several times that a pass has to fetch."""
    blocks = weight_blocks(loaded.weights.gguf, loaded.model.config)
    layers = [block.n_bytes for block in blocks if block.layer is not None]
    return BlockCosts(
        layers=tuple(
            float(n) if near is None or number in near else n * _FAR for number, n in enumerate(layers)
        ),
        rest=float(sum(block.n_bytes for block in blocks if block.kind is BlockKind.HEAD)),
    )
