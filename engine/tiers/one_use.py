"""Blocks that come to a GPU for one use: from RAM through the staging ring, from disk to the landing slot.

    RAM  --link--> slot of the staging ring
    file --disk threads--> host ring --link--> landing slot

Knows slots, and how the blocks of a pass come through them; does not know which block is computed by whom,
nor what moves to stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from engine.cancel import CancelToken
from engine.events import Executor
from engine.tiers.blocks import Block
from engine.tiers.gpu_memory import GpuMemory
from engine.tiers.link import Link, Located
from engine.tiers.route import Run
from engine.tiers.staging import Staging
from engine.tiers.whereabouts import Bytes, Whereabouts
from kernels.cuda.device import Device, Event

M = TypeVar("M", bound=Located)
"""A layer block's matrices on the GPU."""


@dataclass(slots=True)
class Stalls:
    """Of copies; seconds."""

    copy_s: float = 0.0
    """That they took."""
    copied_bytes: int = 0
    """What was copied meanwhile."""
    stall_s: float = 0.0
    """That the GPU waited for them."""
    last_pass: tuple[tuple[int, float], ...] = ()
    """Blocks that it waited for, by index, and for how long."""


class OneUse(Generic[M]):
    """The slots of one model. One thread uses it."""

    def __init__(self, where: Whereabouts, device: Device, memory: GpuMemory[M], link: Link) -> None:
        """Without slots until `make_ring`."""
        self._where, self._device, self._memory, self._link = where, device, memory, link
        self._staging: Staging[M] | None = None
        self._runs: Sequence[Run] = ()
        """The way of the pass that is under way."""
        self._landed: Event | None = None
        """After the last use of the landing slot."""
        self._waits: tuple[tuple[int, float], ...] = ()
        """Of the pass that is under way, as in `Stalls`."""
        self.stalls = Stalls()

    def make_ring(self) -> None:
        """Have the slots that the plan wants. Raises DeviceMemoryError."""
        plan = self._where.plan
        if not plan.slots:
            return
        self._memory.make_ring(plan.slots, plan.slot_bytes, plan.landing)
        if self._staging is None:
            host = self._where.host

            def bytes_of(block: Block) -> Sequence[Bytes]:
                native = host.resident(block)
                assert native is not None, "only blocks that are in RAM are staged"
                return native

            self._staging = Staging(self._device, self._link, plan.slots, self._memory.in_slot, bytes_of)

    def follow(self, runs: Sequence[Run]) -> None:
        """Copy what the runs of the next pass need, ahead of its use, and of the pass after it.

        One that needs nothing leaves alone what is there for a pass that does: drafts are often such passes.
        """
        self._runs = runs
        staged = self._to_stage()
        if self._staging is not None and staged:
            self._staging.follow(staged)

    def stop(self) -> None:
        """Copy nothing more until `follow`, and wait for what is being copied from RAM."""
        if self._staging is not None:
            self._staging.follow(())
            self._staging.settle()

    def take(self, block: Block, cancel: CancelToken) -> M:
        """The matrices of a block that does not stay; `release` it once its kernels are on the GPU.

        One that is not read from disk has to be in RAM. Raises CancelledError, StreamError, and what the
        device raises.
        """
        if self._where.is_read(block):
            return self._land(block, cancel)
        assert self._staging is not None, "a plan with streamed blocks has a ring"
        if not self._staging.has(block):
            self._staging.follow(self._to_stage(), at=block)
        return self._staging.take(block)

    @property
    def can_copy(self) -> bool:
        """Whether there is room for copies that have not been put on the way."""
        return self._staging is not None and self._staging.can_fill

    def copy_on(self) -> None:
        """Put on the way what there is room for."""
        if self._staging is not None and self._staging.can_fill:
            self._staging.fill()
            self._look_at_times()  # here nobody waits for it

    def release(self, block: Block) -> None:
        """Let the slot of a taken block be filled again, by `copy_on`."""
        if self._where.is_read(block):
            self._landed = self._device.record()
        else:
            assert self._staging is not None, "it was taken from the ring"
            self._staging.release(block)

    def note_times(self) -> None:
        """A pass is over: add up what copies and waits took that are over by now."""
        self._look_at_times()
        if self._waits:
            self.stalls.last_pass, self._waits = self._waits, ()

    def _look_at_times(self) -> None:
        if self._staging is not None:
            times = self._staging.times()
            self.stalls.copy_s += times.copy_s
            self.stalls.copied_bytes += times.copied_bytes
            self.stalls.stall_s += sum(seconds for _, seconds in times.stalls)
            self._waits += times.stalls

    def _to_stage(self) -> list[Block]:
        """The blocks that pass through the ring in a pass, as far as they are in RAM."""
        return [
            run.blocks[0]
            for run in self._runs
            if run.executor is Executor.STREAM and self._where.host.resident(run.blocks[0]) is not None
        ]

    def _land(self, block: Block, cancel: CancelToken) -> M:
        """Bring a block from the disk's ring to the landing slot."""
        host, plan = self._where.host, self._where.plan
        native = host.acquire(block, cancel)
        try:
            self._memory.make_ring(plan.slots, plan.slot_bytes, landing=True)
            if self._landed is not None:
                self._link.wait_for(self._landed)
            matrices = self._memory.in_slot(-1, block)
            self._link.send_block(block.pieces, native, matrices.places)
            sent = self._link.record()
            for event in sent.events:
                self._device.wait_for(event)
            sent.wait()  # the ring's memory is copied from until then
        finally:
            host.release(block)
        return matrices
