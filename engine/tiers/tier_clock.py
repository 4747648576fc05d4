"""How long passes of a plan take on the simulator's clock: decode steps, prompts, and what they wait for.

Knows plans and rates; does not choose. Attention over what is in the cache is not counted: times are those of
an empty context.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from engine.events import Executor
from engine.tiers.blocks import Block, BlockKind
from engine.tiers.rates import LinkRates, Rates
from engine.tiers.simulator import Pass, Resource, Timeline, cpu_seconds, gpu_seconds, simulate
from engine.tiers.step_pace import StepTimes
from engine.tiers.tier_plan import TierPlan

LONGEST_STEP = 8
"""Tokens that the kernels of a decode step take at most."""
_NEAR_MEMORY = 0.75
"""Products that reach this share of plain reads wait for memory; below it they wait for their arithmetic."""


class TierClock:
    """Times of plans for one model on one machine."""

    def __init__(
        self,
        blocks: Sequence[Block],
        rates: Rates,
        link: LinkRates,
        link_limit: float | None,
        idle: frozenset[int] = frozenset(),
    ) -> None:
        """`link_limit`: bytes per second that copies are held to; passes leave blocks in `idle` out."""
        self._rates = rates
        self._link = link
        if link_limit is not None:
            self._link = slowed(link, link_limit)
        self._layers = [block for block in blocks if block.layer is not None and block.index not in idle]
        self._n_bytes = {block.index: block.n_bytes for block in self._layers}
        self._head = [block for block in blocks if block.kind is BlockKind.HEAD]

    def decode(self, plan: TierPlan) -> Timeline:
        """Decode steps one after another."""
        executors = plan.executors()
        for block in self._head:
            executors[block.index] = Executor.GPU if block.index in plan.vram else Executor.CPU
        shape = Pass(
            [*self._layers, *self._head],
            executors,
            plan.slots,
            frozenset(plan.host.streamed),
            plan.host.slots,
        )
        return simulate(shape, self._rates, self._link)

    def step_times(self, plan: TierPlan) -> StepTimes:
        """What a decode step takes: in all, of the processor for layer blocks, and of copies from memory."""
        timeline, layers = self.decode(plan), {block.index for block in self._layers}
        begin, end = timeline.last_pass
        computed = [
            span.end - span.start
            for span in timeline.spans
            if span.resource is Resource.CPU and span.block in layers and begin <= span.start < end
        ]
        # Copies run ahead across the end of a pass: those of several count.
        copies = [s for s in timeline.spans if s.resource is Resource.LINK and s.slot >= 0]
        copies = [span for span in copies if span.end > timeline.ends[0]]
        n_bytes = sum(self._n_bytes[span.block] for span in copies)
        copy_s = sum(span.end - span.start for span in copies)
        # What is in the cache makes the processor's attention slower with every token, and is in no rate.
        known = computed and not plan.cpu_attention
        return StepTimes(
            timeline.seconds, sum(computed) if known else None, n_bytes / copy_s if copies else None
        )

    def prompt_s(self, plan: TierPlan, n_tokens: int) -> float:
        """Seconds of a prompt, in passes of the plan's chunk; the rings are empty at first."""
        n_passes = -(-n_tokens // plan.chunk)
        timeline = self._long_passes(plan, min(n_tokens, plan.chunk), min(n_passes, 2))
        return timeline.ends[0] + (n_passes - 1) * timeline.seconds + self._head_s(plan)

    def crossover(self, plan: TierPlan) -> int:
        """The longest pass, in tokens, that is not faster with all that is copied computed by the GPU."""

        def copies_pay(n_tokens: int) -> bool:
            shape = self._shape(plan, plan.executors())
            as_a_step = simulate(shape, self._rates, self._link, n_tokens=n_tokens, n_passes=1)
            return self._long_passes(plan, n_tokens, 1).ends[0] < as_a_step.ends[0]

        lengths = range(2, min(LONGEST_STEP, plan.chunk) + 1)
        return 1 + bisect_left(lengths, True, key=copies_pay)

    def limited_by(self, plan: TierPlan, timeline: Timeline) -> str:
        """What a decode step waits for, in words."""
        times = {
            "the link to the GPU": timeline.link_wait_s,
            "the disk": timeline.disk_wait_s,
            "the GPU": timeline.busy(Resource.GPU),
            "the processor": timeline.busy(Resource.CPU),
        }
        longest = max(times, key=lambda words: times[words])
        if longest != "the processor":
            return longest
        executors = plan.executors()
        computed = [block for block in self._layers if executors[block.index] is Executor.CPU]
        computed += [block for block in self._head if block.index not in plan.vram]
        memory_s = sum(block.n_bytes for block in computed) / self._rates.dram
        products_s = sum(cpu_seconds(block, self._rates, 1) for block in computed)
        return "memory bandwidth" if memory_s > _NEAR_MEMORY * products_s else longest

    def _long_passes(self, plan: TierPlan, n_tokens: int, n_passes: int) -> Timeline:
        shape = self._shape(plan, plan.prefill_executors())
        return simulate(shape, self._rates, self._link, n_tokens=n_tokens, n_passes=n_passes)

    def _shape(self, plan: TierPlan, executors: dict[int, Executor]) -> Pass:
        """A pass over the layers alone."""
        on_disk = frozenset(plan.host.streamed) & executors.keys()
        return Pass(self._layers, executors, plan.slots, on_disk, plan.host.slots)

    def _head_s(self, plan: TierPlan) -> float:
        return sum(
            gpu_seconds(block, self._link, 1)
            if block.index in plan.vram
            else cpu_seconds(block, self._rates, 1)
            for block in self._head
        )


def slowed(link: LinkRates, limit: float) -> LinkRates:
    """With copies that are held to so many bytes per second: they take as much less from the processor.

    What is within the limit stays as it is.
    """
    beside = min(link.h2d_beside_cpu, limit)
    lost = (1 - link.cpu_beside_h2d) * beside / link.h2d_beside_cpu
    return replace(link, h2d=min(link.h2d, limit), h2d_beside_cpu=beside, cpu_beside_h2d=1 - lost)
