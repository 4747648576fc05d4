"""Where a model's weight blocks go on a GPU, as the placement asks for it.

Knows which of the model's objects belongs to a block; `GpuTiers` says when it comes and goes.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.backends.cuda_model import DeviceModel
from engine.backends.cuda_weights import BlockMatrices, number_of
from engine.tiers.blocks import Block, BlockKind
from engine.tiers.placement import Place


class ModelMemory:
    """`GpuMemory` of a `DeviceModel`."""

    def __init__(self, model: DeviceModel) -> None:
        """For this model."""
        self._model = model

    @property
    def slot_bytes(self) -> int:
        """Of a slot that any layer block fits."""
        return self._model.slot_bytes

    def places(self, block: Block) -> Mapping[str, Place]:
        """Where the tensors of a block that has memory there go."""
        weights = self._model.weights
        if block.kind is BlockKind.HEAD:
            assert weights.head is not None
            return weights.head.places
        if block.kind is BlockKind.EMBEDDING:
            assert weights.embedding is not None
            return weights.embedding.places
        return weights.blocks[number_of(block)].places

    def matrices(self, block: Block) -> BlockMatrices:
        """Those of a layer block that has memory there."""
        return self._model.weights.blocks[number_of(block)]

    def in_slot(self, slot: int, block: Block) -> BlockMatrices:
        """Those of a layer block that is in this slot; -1 is the landing slot, `SPARE` none of the ring."""
        return self._model.in_slot(slot, number_of(block))

    def add(self, block: Block) -> None:
        """Reserve memory for a block. Raises DeviceMemoryError."""
        if block.kind is BlockKind.EMBEDDING:
            self._model.add_embedding()
        elif block.kind is BlockKind.HEAD:
            if self._model.weights.head is None:  # all of its blocks are one matrix
                self._model.add_head()
        else:
            self._model.add_block(number_of(block))

    def drop(self, block: Block) -> None:
        """Give the memory of a block back."""
        if block.kind is BlockKind.EMBEDDING:
            self._model.drop_embedding()
        elif block.kind is BlockKind.HEAD:
            if self._model.weights.head is not None:
                self._model.drop_head()
        else:
            self._model.drop_block(number_of(block))

    def make_ring(self, slots: int, slot_bytes: int, landing: bool) -> None:
        """Have at least these slots, if they are not there yet. Raises DeviceMemoryError."""
        self._model.make_ring(slots, slot_bytes, landing)
