"""What a model may take, what its parts take on a GPU, and a plan that shares blocks out over three tiers.

Knows bytes and indices of blocks; does not choose (`gpu_planner` does).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.events import Executor
from engine.tiers.planner import Plan


class Budgets(NamedTuple):
    """What a model may take; bytes."""

    vram: int
    """Of the GPU, everything counted."""
    ram: int
    """For weights and ring in RAM, and what `GpuSizes.host_bytes` says."""


@dataclass(frozen=True, slots=True)
class GpuSizes:
    """GPU memory that a model takes by its parts; bytes, the driver's rounding included."""

    block_bytes: Mapping[int, int]
    """Of every block while it stays, by index of the block."""
    slot_bytes: Mapping[int, int]
    """Of every layer block in a slot of the staging ring, by index."""
    kv_layer_bytes: int
    """Keys and values of one layer at the context that is wanted."""
    host_kv_layer_bytes: int
    """The same in the computer's memory, where that layer's attention is the processor's."""
    host_fixed_bytes: Mapping[int, int]
    """Page-locked memory beside the weights, by prompt tokens per pass: what blocks pass through on their way
    to the GPU, and hidden states."""
    host_rows_bytes: Mapping[int, int]
    """What computing takes beyond `Room.scratch`, by the same, where the processor attends in a layer."""
    fixed_bytes: Mapping[int, int]
    """Everything else, by prompt tokens per pass: computing, small buffers, norms, and what CUDA takes."""
    spare_bytes: Mapping[int, int]
    """Of it, by the same: what long passes compute in, in one piece, and is free between them."""
    head: tuple[int, ...]
    """Indices of the head's blocks: all of them are in GPU memory or none."""
    embedding: int | None
    """Index of the embedding; None where it is the head's matrix."""

    def host_bytes(self, chunk: int, n_cpu_layers: int) -> int:
        """Of `Budgets.ram`, what is not for weights where the processor attends in so many layers."""
        rows = self.host_rows_bytes[chunk] if n_cpu_layers else 0
        return self.host_fixed_bytes[chunk] + rows + n_cpu_layers * self.host_kv_layer_bytes


@dataclass(frozen=True, slots=True)
class TierPlan:
    """Where every block of a model is, who computes it, and what that costs. Blocks are named by index."""

    layer_blocks: tuple[int, ...]
    """Every layer's attention and feed-forward, in order of use: 2 * layer, and 1 more."""
    vram: frozenset[int]
    """Blocks that stay in GPU memory."""
    host: Plan
    """All others: in memory, or read from disk for every pass."""
    streamed: frozenset[int]
    """Blocks that are copied to the GPU for every decode step."""
    spare: int | None
    """A block in memory of which decode steps find a copy where long passes compute; None where none is."""
    cpu_attention: frozenset[int]
    """Layers whose KV is in memory and whose attention is the processor's in every pass."""
    slots: int
    """Of the staging ring in GPU memory; 0 when no pass copies anything."""
    slot_bytes: int
    landing: bool
    """Whether there is one slot more, for blocks that come from disk."""
    chunk: int
    """Prompt tokens per pass."""
    crossover: int
    """Longest pass, in tokens, that is computed as a decode step is."""
    vram_bytes: int
    """GPU memory of everything: blocks, slots, KV, computing; never above the budget."""
    predicted_decode_s: float | None
    """Seconds of a decode step from an empty context; None without rates."""
    predicted_prefill_s: float | None
    """Seconds of a prompt of 512 tokens; None without rates."""
    limited_by: str
    """What a decode step waits for, in words; empty without a prediction."""

    @property
    def ring_bytes(self) -> int:
        """GPU memory of the slots, that for blocks from disk included."""
        return (self.slots + self.landing) * self.slot_bytes

    @property
    def not_of_processor(self) -> frozenset[int]:
        """Blocks outside GPU memory that it computes in decode steps."""
        return self.streamed if self.spare is None else self.streamed | {self.spare}

    def executors(self) -> dict[int, Executor]:
        """Who computes each layer block in a decode step, by index."""
        executors = {index: self._executor(index, index in self.streamed) for index in self.layer_blocks}
        if self.spare is not None:
            executors[self.spare] = Executor.GPU
        return executors

    def prefill_executors(self) -> dict[int, Executor]:
        """Who computes each layer block in a pass of more than `crossover` tokens, by index."""
        on_cpu = {self.layer_blocks[2 * layer] for layer in self.cpu_attention}
        return {index: self._executor(index, index not in on_cpu) for index in self.layer_blocks}

    def above(self, host: Plan) -> TierPlan:
        """The same with another plan for memory and disk: a spare block that does not stay is streamed."""
        if self.spare is None or self.spare in host.resident:
            return replace(self, host=host)
        return replace(self, host=host, spare=None, streamed=self.not_of_processor)

    def _executor(self, index: int, copied: bool) -> Executor:
        if index in self.vram:
            return Executor.GPU
        return Executor.STREAM if copied else Executor.CPU
