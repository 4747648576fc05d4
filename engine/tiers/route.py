"""How a pass goes through the blocks: runs of blocks that one executor computes one after another.

Pure. Knows executors and order; the backend walks a route with kernels and copies, the simulator with a
clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from engine.events import Executor
from engine.tiers.blocks import Block


class Run(NamedTuple):
    """Blocks that follow each other and have one executor; of streamed blocks each is a run of its own."""

    executor: Executor
    blocks: tuple[Block, ...]

    @property
    def on_gpu(self) -> bool:
        """Whether hidden states have to be on the GPU for it."""
        return self.executor is not Executor.CPU


def route(blocks: Sequence[Block], executors: Mapping[int, Executor]) -> tuple[Run, ...]:
    """Cut the layer blocks of a pass, in order of use, into runs; `executors` by index of the block."""
    runs: list[Run] = []
    for executor, members in groupby(blocks, key=lambda block: executors[block.index]):
        if executor is Executor.STREAM:
            runs += [Run(executor, (block,)) for block in members]
        else:
            runs.append(Run(executor, tuple(members)))
    return tuple(runs)
