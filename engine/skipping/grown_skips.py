"""Sets of blocks to leave out, grown greedily by what each more of them does to the output.

Knows effects; does not know models: who measures is a function. See `skip_choice` for what a set holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.skipping.calibrated import SkipEffect
from engine.skipping.skip_choice import MOST_KL, NOTHING, SkipSet

_TRIED = 3
"""Sets measured for each block that is added: the blocks that seem to matter least are nearly always it."""


class Grown(NamedTuple):
    """What growing has found."""

    effects: tuple[SkipEffect, ...]
    """Of every set measured: each block alone, then those tried."""
    sets: tuple[SkipSet, ...]
    """Each within the next one."""


def leaves_too_little(skip: SkipSet, n_blocks: int) -> bool:
    """Whether no attention block, or no block at all, is left of a model: then no id knows of another."""
    return frozenset(range(0, n_blocks, 2)) <= skip


def likely_measured(n_blocks: int) -> int:
    """About how many sets `grow` measures; never more than half as many again."""
    return n_blocks + _TRIED * n_blocks // 4


def grow(
    costs: Sequence[float],
    measure: Callable[[SkipSet], SkipEffect],
    on_step: Callable[[float], None] = lambda share: None,
) -> Grown:
    """Measure each block alone, then add one at a time, until half of them are left out or `MOST_KL` is met.

    The first is the block that changes least. After it comes what saves most for the nats it adds, by the
    `costs` of the blocks in any unit, as long as that does not more than double the nats: large blocks would
    otherwise leave low thresholds nothing to choose. What each adds is known from when it was tried last, at
    first alone: blocks that do the same work matter more once one of them is gone, so that the best few are
    tried again each time. `on_step` is told how far all this is, above 0 to 1, as soon as there is a set.
    """
    n_blocks, half = len(costs), len(costs) // 2
    alone = [measure(frozenset((block,))) for block in range(n_blocks)]
    added = {block: effect.kl for block, effect in enumerate(alone)}
    effects, sets = list(alone), list[SkipSet]()
    present, present_kl = NOTHING, 0.0

    def price(block: int) -> float:
        return added[block] / costs[block]

    while len(present) < half:
        rest = [block for block in added if not leaves_too_little(present | {block}, n_blocks)]
        least = sorted(rest, key=added.__getitem__)[:1]
        tried = {}
        for block in [*least, *(block for block in sorted(rest, key=price) if block not in least)][:_TRIED]:
            effect = measure(present | {block}) if present else alone[block]
            effects += [effect] * bool(present)
            tried[block] = effect
            added[block] = effect.kl - present_kl
        if not tried:
            break
        near = [block for block in tried if tried[block].kl <= 2 * present_kl]
        best = min(near, key=price) if near else min(tried, key=added.__getitem__)
        if tried[best].kl > MOST_KL:
            break
        present, present_kl = tried[best].skipped, tried[best].kl
        del added[best]
        sets.append(present)
        steps = len(present) / max(len(present) / half, present_kl / MOST_KL)
        on_step((n_blocks + _TRIED * len(present)) / (n_blocks + _TRIED * steps))
    return Grown(tuple(effects), tuple(sets))
