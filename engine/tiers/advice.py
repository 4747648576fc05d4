"""A plan in words: where everything goes and why, what limits the speed, and what one change would bring.

Knows plans and figures; does not plan (what is asked of it does) and reads no file. Called by previews.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from engine.errors import BudgetError
from engine.events import BlockPlace, Executor, Tier
from engine.tiers.blocks import Block, BlockKind
from engine.tiers.budget import shown_bytes
from engine.tiers.placement import place_of
from engine.tiers.tier_plan import GpuSizes, TierPlan

_MORE_VRAM, _MORE_RAM = 4 * 10**9, 8 * 10**9
_SMALLER = 0.8
"""Bytes of the next smaller quant type, by those of this one: Q4_K to Q3_K, Q5_K to Q4_K."""
_EIGHT_BITS = 34 / 64
"""Bytes of a cache of 8 bits and a scale for each 32, by those of one of 16 bits."""
_NO_FASTER = 1.01
_PATHS = {
    (Tier.VRAM, Executor.GPU): "in VRAM, computed by the GPU",
    (Tier.RAM, Executor.STREAM): "in page-locked RAM, copied to the GPU by DMA for every token",
    (Tier.RAM, Executor.GPU): "in page-locked RAM, copied after each prompt to VRAM that only prompts use",
    (Tier.RAM, Executor.CPU): "in RAM, computed by the CPU in place",
    (Tier.NVME, Executor.STREAM): "read from disk into a page-locked ring, then copied to the GPU by DMA",
    (Tier.NVME, Executor.CPU): "read from disk into a ring in RAM, computed by the CPU there",
}
_LOOKED_UP = {
    Tier.VRAM: "in VRAM, rows are looked up by the GPU",
    Tier.RAM: "in RAM, rows are looked up by the CPU",
    Tier.NVME: "on disk, single rows are read",
}
_KINDS = {
    BlockKind.EMBEDDING: "the embedding",
    BlockKind.ATTENTION: "attention of {} layers",
    BlockKind.FEED_FORWARD: "feed-forward of {} layers",
    BlockKind.HEAD: "the head",
}


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What a model that is not loaded would take, where it would be, and how fast it would be."""

    blocks: tuple[BlockPlace, ...]
    """In the order in which a pass uses them."""
    predicted_decode_tok_s: float | None
    """Tokens per second from an empty context; None until this machine has been measured."""
    predicted_prefill_tok_s: float | None
    """Of a prompt of 512 tokens; None until this machine has been measured."""
    limited_by: str
    """What a decode step would wait for, in words; empty without a prediction."""
    lines: tuple[str, ...]
    """Where everything goes and why, in words."""
    advice: tuple[str, ...]
    """What one change would bring, a line for each; empty without a prediction."""
    timeline: tuple[str, ...]
    """A chart of one decode step, line by line; empty without a prediction."""
    vram_bytes: int
    """GPU memory of everything; 0 without a GPU."""
    vram_budget_bytes: int
    ram_bytes: int
    """The computer's memory of everything."""
    ram_budget_bytes: int
    context: int
    """Tokens that would be reserved."""
    chunk: int
    """Prompt tokens per pass."""
    slots: int
    """Of the staging ring in GPU memory; 0 when no pass copies anything."""
    notices: tuple[str, ...] = ()
    """What a person should know."""


class Advice(NamedTuple):
    """One change and what it would bring."""

    change: str
    decode_tok_s: float
    faster: float
    """The new speed by the old one."""

    def __str__(self) -> str:
        """In a line."""
        if self.faster < _NO_FASTER:
            return f"{self.change}: no faster"
        return f"{self.change}: {self.decode_tok_s:.1f} tokens per second, {self.faster:.2f} times as fast"


def what_if(
    plan_with: Callable[[Sequence[Block], GpuSizes, int, int], TierPlan],
    blocks: Sequence[Block],
    sizes: GpuSizes,
    vram_budget: int,
    ram_room: int,
    *,
    eight_bit_kv: bool,
) -> tuple[Advice, ...]:
    """What more memory, a smaller cache and a smaller quant would bring, one at a time.

    `plan_with` is `plan_tiers` with everything else given. `eight_bit_kv`: whether the cache on the GPU has 8
    bits already. Nothing where nothing is predicted; a change that no plan is found for is left out.
    """
    now = plan_with(blocks, sizes, vram_budget, ram_room).predicted_decode_s
    if now is None:
        return ()
    changes: list[tuple[str, tuple[Sequence[Block], GpuSizes, int, int]]] = [
        (
            f"{shown_bytes(_MORE_VRAM)} more VRAM",
            (blocks, sizes, vram_budget + _MORE_VRAM, ram_room),
        ),
        (f"{shown_bytes(_MORE_RAM)} more RAM", (blocks, sizes, vram_budget, ram_room + _MORE_RAM)),
    ]
    if not eight_bit_kv:
        smaller = replace(sizes, kv_layer_bytes=int(sizes.kv_layer_bytes * _EIGHT_BITS))
        changes.append(("a KV cache of 8 bits (--kv-type q8_0)", (blocks, smaller, vram_budget, ram_room)))
    changes.append(
        (
            f"a quantisation of {_SMALLER:.0%} of the size",
            ([_smaller(block) for block in blocks], _smaller_sizes(sizes), vram_budget, ram_room),
        )
    )
    advice = []
    for change, inputs in changes:
        try:
            then = plan_with(*inputs).predicted_decode_s
        except BudgetError:
            continue
        if then is not None:
            advice.append(Advice(change, 1 / then, now / then))
    return tuple(advice)


def places(plan: TierPlan, blocks: Sequence[Block]) -> tuple[BlockPlace, ...]:
    """Tier and executor of every block in a decode step, in the order of use."""
    executors = plan.executors()
    return tuple(
        replace(
            place_of(block, _tier(plan, block.index)),
            executor=executors.get(block.index, Executor.GPU if block.index in plan.vram else Executor.CPU),
        )
        for block in blocks
    )


def explain(plan: TierPlan, blocks: Sequence[Block], sizes: GpuSizes) -> list[str]:
    """Where everything goes and why, by which path its bytes are reached, and what limits the speed."""
    lines = [*_groups(places(plan, blocks)), _kv(plan, sizes), _order(plan)]
    if plan.slots:
        lines.append(_long_passes(plan, blocks))
    if plan.predicted_decode_s is not None:
        lines.append(
            f"a token takes {plan.predicted_decode_s * 1e3:.1f} ms ({1 / plan.predicted_decode_s:.1f} per "
            f"second), and what limits it is {plan.limited_by}"
        )
    return lines


def _tier(plan: TierPlan, index: int) -> Tier:
    if index in plan.vram:
        return Tier.VRAM
    return Tier.RAM if index in plan.host.resident else Tier.NVME


def _groups(shown: Sequence[BlockPlace]) -> Iterable[str]:
    """A line for all blocks of one kind that take one path."""

    def path(block: BlockPlace) -> tuple[str, Tier, Executor]:
        return block.kind, block.tier, block.executor

    kinds = list(_KINDS)
    ordered = sorted(
        shown, key=lambda block: (kinds.index(BlockKind(block.kind)), block.tier, block.executor)
    )
    for (kind, tier, executor), group in groupby(ordered, key=path):
        members = list(group)
        words = _LOOKED_UP[tier] if kind == BlockKind.EMBEDDING else _PATHS[tier, executor]
        n_bytes = shown_bytes(sum(block.n_bytes for block in members))
        yield f"{_KINDS[BlockKind(kind)].format(len(members))} ({n_bytes}): {words}"


def _kv(plan: TierPlan, sizes: GpuSizes) -> str:
    n_host = len(plan.cpu_attention)
    n_vram = len(plan.layer_blocks) // 2 - n_host
    in_vram = f"KV cache of {n_vram} layers ({shown_bytes(n_vram * sizes.kv_layer_bytes)}): in VRAM"
    if not n_host:
        return in_vram
    in_ram = f"of {n_host} layers ({shown_bytes(n_host * sizes.host_kv_layer_bytes)}) in RAM"
    return f"{in_vram}; {in_ram}, as VRAM does not hold it, and their attention is computed by the CPU"


def _order(plan: TierPlan) -> str:
    if plan.vram.issuperset(plan.layer_blocks):
        return "all layers fit VRAM, so that nothing is copied or read for a token"
    return (
        "VRAM goes to the KV cache first, which never moves, then to attention, which reads it, to the head, "
        "and what is left to feed-forward blocks, spread evenly so that copies go on all along a pass"
    )


def _long_passes(plan: TierPlan, blocks: Sequence[Block]) -> str:
    copied = [index for index, executor in plan.prefill_executors().items() if executor is Executor.STREAM]
    n_bytes = sum(block.n_bytes for block in blocks if block.index in copied)
    landing = " and one for blocks from disk" if plan.landing else ""
    n_cpu = len(plan.cpu_attention)
    all_but = f"all but attention of {n_cpu} layers" if n_cpu else "everything"
    return (
        f"prompts go in passes of {plan.chunk} tokens; in those of more than {plan.crossover} the GPU "
        f"computes {all_but}, and {len(copied)} blocks ({shown_bytes(n_bytes)}) pass through {plan.slots} "
        f"slots of {shown_bytes(plan.slot_bytes)}{landing}"
    )


def _smaller(block: Block) -> Block:
    pieces = tuple(piece._replace(n_bytes=int(piece.n_bytes * _SMALLER)) for piece in block.pieces)
    return replace(block, pieces=pieces)


def _smaller_sizes(sizes: GpuSizes) -> GpuSizes:
    return replace(
        sizes,
        block_bytes={index: int(n_bytes * _SMALLER) for index, n_bytes in sizes.block_bytes.items()},
        slot_bytes={index: int(n_bytes * _SMALLER) for index, n_bytes in sizes.slot_bytes.items()},
    )
