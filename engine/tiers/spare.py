"""A block that decode steps find in the memory that long passes compute in, which is free between them.

    RAM --link--> working memory of long passes, once after each

It takes no memory of its own: a long pass overwrites it, and the first step that uses it afterwards copies it
there again. Knows the order of copy, steps and long passes; does not know which block it is (the plan says),
nor what is computed. The engine's thread waits for no copy, but for one whose source is to go: the GPU does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from engine.events import Executor
from engine.tiers.blocks import Block
from engine.tiers.gpu_memory import SPARE, GpuMemory
from engine.tiers.link import Link, Located, Sent
from engine.tiers.route import Run
from engine.tiers.tier_clock import LONGEST_STEP
from engine.tiers.whereabouts import Whereabouts
from kernels.cuda.device import Device

M = TypeVar("M", bound=Located)
"""A layer block's matrices on the GPU."""


class Spare(Generic[M]):
    """That memory of one model. One thread uses it."""

    def __init__(self, where: Whereabouts, device: Device, memory: GpuMemory[M], link: Link) -> None:
        """Nothing is there yet."""
        self._where, self._device, self._memory, self._link = where, device, memory, link
        self._there: Block | None = None
        """What is in it, or on its way."""
        self._sent: Sent | None = None
        """Behind the last copy; None once its source may go."""
        self._joined = True
        """Whether what is put on the GPU from now on comes after that copy."""

    def begin_pass(self, n_tokens: int, runs: Sequence[Run]) -> None:
        """Leave the memory to a long pass, or put the copy on its way that a step needs."""
        if n_tokens > LONGEST_STEP:
            self._there = None
            self._join()
            return
        if self._where.plan.spare is None:
            return
        for run in runs:
            # Who is longer than steps, and short all the same, takes it from the staging ring.
            for block in run.blocks if run.executor is Executor.GPU else ():
                if self._where.is_spare(block) and self._where.host.resident(block) is not None:
                    self._bring(block)

    def take(self, block: Block) -> M:
        """The matrices of the block, which is in RAM; what is put on the GPU from now on finds them there."""
        self._bring(block)
        self._join()
        return self._memory.in_slot(SPARE, block)

    def stop(self) -> None:
        """Wait for what is being copied from RAM, which may go then; the next step copies anew."""
        self._there = None
        if self._sent is not None:
            self._sent.wait()
            self._sent = None

    def _bring(self, block: Block) -> None:
        """Have a block there that is in RAM, or on its way."""
        if self._there is block:
            return
        native = self._where.host.resident(block)
        assert native is not None, "a spare block stays in RAM"
        self._there = None
        self._join()  # what was dropped may be on its way still
        self._link.wait_for(self._device.record())  # a long pass may be under way
        try:
            self._link.send_block(block.pieces, native, self._memory.in_slot(SPARE, block).places)
        finally:
            self._sent, self._joined = self._link.record(), False
        self._there = block

    def _join(self) -> None:
        """Let what is put on the GPU from now on come after the last copy."""
        if self._sent is not None and not self._joined:
            for event in self._sent.events:
                self._device.wait_for(event)
        self._joined = True
