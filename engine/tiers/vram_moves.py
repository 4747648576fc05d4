"""Blocks that come to the GPU's memory to stay, and those that leave it.

    RAM  --link--> VRAM         promotion
    file ---------> VRAM        what is not in RAM is asked for (`arrivals`)

Knows which blocks wait for memory there, and which memory can be given back; does not know why a block is to
be there, nor what to do where there is no memory: it says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from typing import Any

from engine.tiers.arrivals import Arrivals
from engine.tiers.blocks import Block
from engine.tiers.gpu_memory import GpuMemory
from engine.tiers.link import Link, Sent
from engine.tiers.whereabouts import Whereabouts
from kernels.cuda.device import Device
from kernels.errors import DeviceMemoryError

_MOVING_BYTES = 1 << 30
"""Promoted at a time, so that what a pass needs does not wait long behind it on the link."""


class VramMoves:
    """The memory of one model on a GPU, block by block. One thread uses it."""

    def __init__(
        self, where: Whereabouts, arrivals: Arrivals, device: Device, memory: GpuMemory[Any], link: Link
    ) -> None:
        """Nothing comes until somebody says what to `want`."""
        self._where, self._arrivals, self._device = where, arrivals, device
        self._memory, self._link = memory, link
        self._to_promote: deque[int] = deque()
        """Blocks that have no memory on the GPU yet."""
        self._promoting: deque[tuple[int, Sent]] = deque()
        """Blocks that are being copied from RAM, and when they will be there."""

    @property
    def busy(self) -> bool:
        """Whether a block waits for memory, or is copied from RAM."""
        return bool(self._promoting or self._to_promote)

    @property
    def without_room(self) -> frozenset[int]:
        """Blocks that are to come and have no memory on the GPU yet."""
        return frozenset(self._to_promote)

    def is_to_come(self, block: Block) -> bool:
        """Whether a block will come, or is on its way."""
        index = block.index
        return index in self._to_promote or any(index == other for other, _ in self._promoting)

    # -- coming

    def want(self, indices: Set[int]) -> None:
        """Let these come, in order of use, and no others that have no memory yet."""
        self._to_promote = deque(sorted(indices))

    def promote(self, wait_s: float) -> DeviceMemoryError | None:
        """Let blocks come that have no memory there yet, a few at a time, once others have left.

        With `wait_s` those that are being copied are waited for. What the GPU answered where it has no memory
        for the next one.
        """
        while self._promoting and (wait_s or self._promoting[0][1].done):
            self._finish_first()
        if self._where.in_vram - self._where.plan.vram:
            return None
        under_way = sum(self._where.blocks[index].n_bytes for index, _ in self._promoting)
        under_way += self._arrivals.bytes_to_gpu
        while self._to_promote and under_way < _MOVING_BYTES:
            block = self._where.blocks[self._to_promote[0]]
            try:
                self._memory.add(block)
            except DeviceMemoryError as error:
                return error
            self._to_promote.popleft()
            under_way += block.n_bytes
            native = self._where.host.resident(block)
            if native is None:
                self._arrivals.ask(block, None)
            else:
                self._link.send_block(block.pieces, native, self._memory.places(block))
                self._promoting.append((block.index, self._link.record()))
        return None

    def finish(self) -> None:
        """Wait for what is being copied from RAM, so that its memory there may go."""
        while self._promoting:
            self._finish_first()

    def _finish_first(self) -> None:
        index, sent = self._promoting.popleft()
        sent.wait()
        self._where.came_to_vram(index)

    # -- leaving

    def can_leave(self) -> Set[int]:
        """Blocks that are to leave, and are in RAM by now or are not to come there."""
        coming = self._where.coming.keys()
        leaving = self._where.in_vram - self._where.plan.vram - coming
        heads = {block.index for block in self._where.head_blocks}
        return leaving - heads if heads & coming else leaving  # they are one matrix

    def leave(self) -> None:
        """Give back the memory of blocks that are not to stay."""
        self.drop(self.can_leave())

    def drop(self, indices: Set[int]) -> None:
        """Give the memory of blocks back, also of those that have not arrived."""
        for index in sorted(indices):
            self._arrivals.give_up(index)
            self._where.left_vram(index)
            self._device.synchronize()  # a pass may still use it
            self._memory.drop(self._where.blocks[index])
