"""What calibration might find out about a model that does not exist, for the interface's tests."""

from __future__ import annotations

from engine import Calibration, SkipEffect


def calibration(n_layers: int = 30, grown: int = 6) -> Calibration:
    """Sets of one to `grown` feed-forward blocks of the middle, each twice as bad as the one before."""
    blocks = [2 * (n_layers // 2 + place) + 1 for place in range(grown)]
    sets = [frozenset(blocks[: n + 1]) for n in range(grown)]
    effects = tuple(_effect(skipped, 0.004 * 2**n) for n, skipped in enumerate(sets))
    return Calibration(
        n_blocks=2 * n_layers,
        tokens=512,
        text="a text of ours",
        perplexity=12.5,
        cosines=tuple(0.99 if n == n_layers // 2 else 0.9 for n in range(n_layers)),
        effects=effects,
        grown=tuple(sets),
    )


def _effect(skipped: frozenset[int], kl: float) -> SkipEffect:
    return SkipEffect(
        skipped=skipped,
        kl=kl,
        perplexity_change=kl,
        perplexity_low=kl * 0.8,
        perplexity_high=kl * 1.2,
        top1=1 - kl,
    )
