"""Where the blocks of a model on a GPU are, where they are to be, and so who computes each of them now.

Knows facts, and what follows from them; moves nothing and does not choose. Those who read, move and plan note
here what they have done, so that none of them has to know the others. All else only reads. The engine's
thread changes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.events import Executor
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.tiers.blocks import Block, BlockKind
from engine.tiers.route import Run, route
from engine.tiers.store import TieredWeights
from engine.tiers.tier_plan import Budgets, TierPlan
from engine.tiers.wishes import PlaceRule

Bytes = npt.NDArray[np.uint8]
_MOST_WAYS = 64
"""Routes that are kept; when there are more, all are found anew."""


@dataclass(slots=True)
class Coming:
    """A block that is being read."""

    block: Block
    into: list[Bytes] | None
    """Memory in RAM; None where it goes on to the GPU."""
    left: int
    """Bytes that have not arrived."""
    attempt: int
    """In which it was asked for."""
    error: Exception | None = None

    @property
    def failed(self) -> bool:
        """Whether nothing more comes of it, and it is not whole."""
        return self.error is not None and self.left <= 0


class Whereabouts:
    """Facts about the blocks of one model."""

    def __init__(
        self, host: TieredWeights, plan: TierPlan, budgets: Budgets, rules: tuple[PlaceRule, ...]
    ) -> None:
        """Nothing is anywhere yet but in the file. `host` has been planned for what is not on the GPU."""
        self.host = host
        self.blocks = host.blocks
        self.head_blocks = [block for block in host.blocks if block.kind is BlockKind.HEAD]
        self.plan, self.budgets, self.rules = plan, budgets, rules
        """What is wanted, and the budgets and wishes that it was made for."""
        self.in_vram: set[int] = set()
        """Blocks that are in the GPU's memory, whole."""
        self.coming: dict[int, Coming] = {}
        """What is being read, by index of the block."""
        self.copied: frozenset[int] = frozenset()
        """Blocks that the GPU computed before, and copies for every step until they have been promoted."""
        self.idle: frozenset[int] = frozenset()
        """Blocks that passes leave out for now, by index: the plan was made for it."""
        self.settled = False
        """Whether every block is where the plan wants it."""
        self.version = 0
        """Counts what may change a route."""
        self.arrangement = 0
        """Counts what does: who computes a block, or from which memory of the GPU."""
        self._known_of: tuple[object, ...] = ()
        """What routes and `holds_all_but` follow from; they are found anew when it has changed."""
        self._routes: dict[tuple[bool, SkipSet], tuple[Run, ...]] = {}
        self._enough: dict[SkipSet, bool] = {}

    # -- what has happened

    def aim(self, plan: TierPlan, budgets: Budgets) -> None:
        """Note that this is wanted from now on."""
        before = self.plan
        if (plan.vram, plan.streamed, plan.spare, plan.cpu_attention) != (
            before.vram,
            before.streamed,
            before.spare,
            before.cpu_attention,
        ):
            self.arrangement += 1
        self.plan, self.budgets = plan, budgets
        self.version += 1

    def came_to_vram(self, index: int) -> None:
        """Note that a block is in the GPU's memory."""
        self.in_vram.add(index)
        self.version += 1
        self.arrangement += 1

    def left_vram(self, index: int) -> None:
        """Note that a block is not there, or will not come."""
        self.in_vram.discard(index)
        self.version += 1
        self.arrangement += 1

    def came_to_ram(self, index: int) -> None:
        """Note that a block is in the memory that `host` has reserved for it."""
        self.host.arrived(index)
        self.version += 1

    # -- what follows

    @property
    def whole(self) -> bool:
        """Whether all blocks are in the GPU's memory."""
        return len(self.in_vram) == len(self.blocks)

    @property
    def wants_whole(self) -> bool:
        """Whether all blocks are to be in the GPU's memory."""
        return len(self.plan.vram) == len(self.blocks)

    @property
    def in_ram(self) -> set[int]:
        """Blocks that are in RAM to stay."""
        return {block.index for block in self.blocks if self.host.resident(block) is not None}

    @property
    def head_on_gpu(self) -> bool:
        """Whether the output matrix is in the GPU's memory, or is nowhere else and has to be waited for."""
        return all(block.index in self.in_vram for block in self.head_blocks) or any(
            self._only_on_gpu(block) for block in self.head_blocks
        )

    def is_read(self, block: Block) -> bool:
        """Whether a block is read from disk for every use."""
        return block.index in self.host.plan.streamed

    def is_spare(self, block: Block) -> bool:
        """Whether decode steps find a copy of a block where long passes compute."""
        index = block.index
        return index == self.plan.spare and index not in self.in_vram and not self.is_read(block)

    def executor(self, block: Block, prefill: bool) -> Executor:
        """Who computes a layer block now."""
        index = block.index
        if self._attends_here(block):
            return Executor.CPU
        if index in self.in_vram or self._only_on_gpu(block):
            return Executor.GPU
        if not prefill and self.is_spare(block):
            return Executor.GPU
        if prefill or block.kind is BlockKind.ATTENTION:
            return Executor.STREAM
        copied = index in self.plan.not_of_processor or index in self.copied
        return Executor.STREAM if copied else Executor.CPU

    def route(self, n_tokens: int, skip: SkipSet = NOTHING) -> tuple[Run, ...]:
        """The way of a pass of so many tokens through the layer blocks but `skip`, as they lie now."""
        self._forget_if_changed()
        prefill = n_tokens > self.plan.crossover
        known = self._routes.get((prefill, skip))
        if known is None:
            blocks = [block for number, block in enumerate(self.host.layer_blocks) if number not in skip]
            known = route(blocks, {block.index: self.executor(block, prefill) for block in blocks})
            self._routes[prefill, skip] = known
        return known

    def holds_all_but(self, skip: SkipSet) -> bool:
        """Whether all that a pass without these layer blocks needs is in the GPU's memory."""
        if self.whole or not skip:
            return self.whole
        self._forget_if_changed()
        enough = self._enough.get(skip)
        if enough is None:
            left_out = {self.host.layer_blocks[number].index for number in skip}
            enough = self._enough[skip] = all(
                block.index in left_out or (block.index in self.in_vram and not self._attends_here(block))
                for block in self.blocks
            )
        return enough

    def _forget_if_changed(self) -> None:
        state = (self.version, self.host.plan)
        if self._known_of != state or max(len(self._routes), len(self._enough)) > _MOST_WAYS:
            self._known_of = state
            self._routes.clear()
            self._enough.clear()

    def _attends_here(self, block: Block) -> bool:
        """Whether a block is attention of which the processor has the keys and values."""
        return block.kind is BlockKind.ATTENTION and block.layer in self.plan.cpu_attention

    def _only_on_gpu(self, block: Block) -> bool:
        """Whether a block is to be in the GPU's memory and is not in RAM meanwhile."""
        return block.index in self.plan.vram and self.host.resident(block) is None
