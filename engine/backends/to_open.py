"""What a backend is opened for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.config import LoadOptions
from engine.model_config import ModelConfig
from engine.tiers.blocks import Block
from engine.weights import ModelWeights
from kernels.quant_types import QuantType


class ToOpen(NamedTuple):
    """A model and how it is to be opened."""

    weights: ModelWeights
    blocks: Sequence[Block]
    config: ModelConfig
    options: LoadOptions
    max_context: int

    def with_threads(self, n_threads: int) -> ToOpen:
        """On so many threads, unless a number was asked for."""
        return self._replace(options=replace(self.options, threads=self.options.threads or n_threads))

    @property
    def n_bytes(self) -> int:
        """Of all weights that are in blocks."""
        return sum(block.n_bytes for block in self.blocks)

    @property
    def quant_types(self) -> set[QuantType]:
        """Of its matrices."""
        return {piece.quant_type for block in self.blocks for piece in block.pieces}
