"""What the placement of a model asks of a GPU's memory: room for a block, and where its tensors go there.

Knows blocks; does not know what a matrix on a GPU is, nor when a block comes and goes. The backend has the
class behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from engine.tiers.blocks import Block
from engine.tiers.link import Located
from engine.tiers.placement import Place

SPARE = -2
"""As a slot, the memory that long passes compute in."""
M_co = TypeVar("M_co", bound=Located, covariant=True)
"""A layer block's matrices on the GPU."""


class GpuMemory(Protocol[M_co]):
    """Where a model's blocks go on a GPU."""

    @property
    def slot_bytes(self) -> int:
        """Of a slot that any layer block fits."""
        ...

    def places(self, block: Block) -> Mapping[str, Place]:
        """Where the tensors of a block that has memory there go."""
        ...

    def matrices(self, block: Block) -> M_co:
        """Those of a layer block that has memory there."""
        ...

    def in_slot(self, slot: int, block: Block) -> M_co:
        """Those of a layer block that is in this slot; -1 is the landing slot, `SPARE` none of the ring."""
        ...

    def add(self, block: Block) -> None:
        """Reserve memory for a block. Raises DeviceMemoryError."""
        ...

    def drop(self, block: Block) -> None:
        """Give the memory of a block back."""
        ...

    def make_ring(self, slots: int, slot_bytes: int, landing: bool) -> None:
        """Have at least these slots, if they are not there yet. Raises DeviceMemoryError."""
        ...
