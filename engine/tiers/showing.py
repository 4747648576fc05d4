"""What people are shown of a model on a GPU: where its blocks are, what is on its way, and the notices.

Knows how facts become a `TierSnapshot`; moves nothing. `snapshot` is for any thread, the rest for the
engine's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from engine.events import BlockPlace, Executor, GpuFacts, Tier, TierEventKind, TierSnapshot
from engine.tiers.budget import shown_bytes
from engine.tiers.link import Link
from engine.tiers.one_use import Stalls
from engine.tiers.placement import place_of
from engine.tiers.whereabouts import Whereabouts

_SHOW_S = 0.05
_PREDICTED_PROMPT = 512
"""Tokens of the prompt that a plan predicts the time of."""


class _Places(NamedTuple):
    """The blocks as they were shown last."""

    version: int
    below: tuple[BlockPlace, ...]
    blocks: tuple[BlockPlace, ...]
    vram_bytes: int
    copied_bytes: int
    """For every decode step."""


class Showing:
    """Shows one model to whoever looks."""

    def __init__(
        self,
        where: Whereabouts,
        link: Link,
        stalls: Stalls,
        gpu: GpuFacts,
        h2d_rate: float | None,
        on_change: Callable[[TierSnapshot], None],
    ) -> None:
        """Hand snapshots to `on_change`, in the engine's thread; `h2d_rate` is the link's where known."""
        self._where, self._link, self._stalls = where, link, stalls
        self._gpu, self._h2d_rate, self._on_change = gpu, h2d_rate, on_change
        self.active: int | None = None
        """The block that is waited for, or computed from a slot."""
        self.passes = 0
        """So far."""
        self._places: _Places | None = None
        self._shown_at = 0.0

    def show(self, *, now: bool = False) -> None:
        """Hand out a snapshot, unless one was only just."""
        if now or time.monotonic() - self._shown_at > _SHOW_S:
            self._shown_at = time.monotonic()
            self._on_change(self.snapshot())

    def note(self, text: str, kind: TierEventKind = TierEventKind.MOVE) -> None:
        """Tell a person of something that moved, or could not."""
        self._where.host.note(text, kind)
        self.show(now=True)

    def snapshot(self) -> TierSnapshot:
        """Where everything is now."""
        where, stalls, plan = self._where, self._stalls, self._where.plan
        below = where.host.snapshot()
        decode, prefill = plan.predicted_decode_s, plan.predicted_prefill_s
        places = self._placed(below.blocks)
        return replace(
            below,
            blocks=places.blocks,
            predicted_decode_tok_s=None if decode is None else 1 / decode,
            limited_by=plan.limited_by,
            active=self.active if self.active is not None else below.active,
            in_flight=(*self._arriving(), *below.in_flight),
            passes=self.passes,
            vram_bytes=places.vram_bytes,
            vram_used_bytes=plan.vram_bytes,
            vram_budget_bytes=where.budgets.vram,
            h2d_bytes=self._link.sent_bytes,
            h2d_rate=self._h2d_rate,
            gpu=self._gpu,
            pass_copy_bytes=places.copied_bytes,
            copy_s=stalls.copy_s,
            copy_stall_s=stalls.stall_s,
            pass_stalls=stalls.last_pass,
            vram_ring_bytes=plan.slots * plan.slot_bytes,
            predicted_prefill_tok_s=None if prefill is None else _PREDICTED_PROMPT / prefill,
            settled=where.settled,
            skipped=where.idle,
        )

    def _placed(self, below: tuple[BlockPlace, ...]) -> _Places:
        """The blocks with their tiers; made anew only when something has moved."""
        known, where = self._places, self._where
        if known is not None and known.version == where.version and known.below is below:
            return known
        version, in_vram, places = where.version, frozenset(where.in_vram), []
        copied_bytes = 0
        for block, place in zip(where.blocks, below, strict=True):
            if block.index in in_vram:
                places.append(place_of(block, Tier.VRAM, Executor.GPU))
            elif block.layer is None:
                places.append(place)
            else:
                executor = where.executor(block, prefill=False)
                if executor is Executor.STREAM and block.index not in where.idle:
                    copied_bytes += block.n_bytes
                places.append(replace(place, executor=executor))
        vram_bytes = sum(where.blocks[index].n_bytes for index in in_vram)
        self._places = _Places(version, below, tuple(places), vram_bytes, copied_bytes)
        return self._places

    def _arriving(self) -> list[tuple[int, float]]:
        """Blocks of which a part has been read, and how much."""
        return [
            (coming.block.index, 1 - max(0, coming.left) / coming.block.n_bytes)
            for coming in list(self._where.coming.values())
            if 0 < coming.left < coming.block.n_bytes
        ]


def notices(where: Whereabouts) -> tuple[str, ...]:
    """What a person should know about where the weights are to be."""
    plan, blocks = where.plan, where.blocks
    outside = sum(block.n_bytes for block in blocks if block.index not in plan.vram)
    if not outside:
        return ()
    executors = plan.executors()
    streamed = sum(blocks[index].n_bytes for index, who in executors.items() if who is Executor.STREAM)
    spare = 0 if plan.spare is None else blocks[plan.spare].n_bytes
    ways = []
    if streamed:
        ways.append(f"{shown_bytes(streamed)} are copied to the GPU for every token")
    if outside > streamed + spare:
        ways.append(f"the processor computes {shown_bytes(outside - streamed - spare)}")
    if spare:
        ways.append(f"{shown_bytes(spare)} are copied after each prompt, to memory that only prompts use")
    text = (
        f"{shown_bytes(outside)} of the weights do not fit the GPU's memory "
        f"({shown_bytes(where.budgets.vram)} for the model): {', and '.join(ways)} (--vram-budget changes "
        "that)"
    )
    return (text, *where.host.notices)
