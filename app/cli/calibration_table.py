"""The figures of `tiercel calibrate` as lines for people, at most 80 columns wide.

Knows which figures stand side by side; does not measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from app.cli.columns import NOT_MEASURED, Column, change, heading_line, percent, row_line, short
from app.sanitize import sanitize_line
from engine import Calibration, SkipChoice, SkipEffect, SkipRule, SkipSet

if TYPE_CHECKING:  # numpy
    from engine import CalibrationReport


class _OfSet(NamedTuple):
    added: SkipSet
    """Beyond the set before."""
    effect: SkipEffect
    tok_s: float
    speed_up: float


class _OfLayer(NamedTuple):
    layer: int
    cosine: float
    attention: SkipEffect | None
    feed_forward: SkipEffect | None


def calibration_lines(path: Path, report: CalibrationReport) -> Iterator[str]:
    """What was measured on, the layers, then the sets with what they bring."""
    found = report.calibration
    yield f"{sanitize_line(path.stem)}, {found.n_blocks} blocks of {found.n_blocks // 2} layers"
    yield (
        f"on {sanitize_line(found.text)}: {found.tokens} tokens, perplexity {found.perplexity:.3f}; "
        f"{short(report.tok_s)} tok/s"
    )
    yield ""
    yield "each block alone: KL in nats and top-1"
    yield heading_line(_LAYER_COLUMNS)
    for layer, cosine in enumerate(found.cosines):
        alone = (found.effect(frozenset((2 * layer + part,))) for part in (0, 1))
        yield row_line(_LAYER_COLUMNS, _OfLayer(layer, cosine, *alone))
    yield ""
    if not found.grown:
        yield "no block can be left out: each of them changes too much"
        return
    yield "sets, each with the block named and those above it"
    yield heading_line(_SET_COLUMNS)
    before: SkipSet = frozenset()
    for effect, tok_s in zip(grown_effects(found), report.grown_tok_s, strict=True):
        yield row_line(_SET_COLUMNS, _OfSet(effect.skipped - before, effect, tok_s, tok_s / report.tok_s))
        before = effect.skipped


def grown_effects(calibration: Calibration) -> list[SkipEffect]:
    """Of the grown sets, all of which are measured."""
    effects = (calibration.effect(skipped) for skipped in calibration.grown)
    return [effect for effect in effects if effect is not None]


def _kl(effect: SkipEffect | None) -> str:
    return NOT_MEASURED if effect is None else f"{effect.kl:.4f}"


def _top1(effect: SkipEffect | None) -> str:
    return NOT_MEASURED if effect is None else percent(effect.top1, 1)


_LAYER_COLUMNS: tuple[Column[_OfLayer], ...] = (
    Column("layer", 5, lambda row: str(row.layer)),
    Column("cosine", 7, lambda row: f"{row.cosine:.4f}"),
    Column("attention KL", 13, lambda row: _kl(row.attention)),
    Column("top-1", 6, lambda row: _top1(row.attention)),
    Column("feed-forward KL", 16, lambda row: _kl(row.feed_forward)),
    Column("top-1", 6, lambda row: _top1(row.feed_forward)),
)
_SET_COLUMNS: tuple[Column[_OfSet], ...] = (
    Column("blocks", 6, lambda row: str(len(row.effect.skipped))),
    Column("added".ljust(12), 12, lambda row: str(SkipChoice(SkipRule.BLOCKS, blocks=row.added)).ljust(12)),
    Column("KL", 7, lambda row: f"{row.effect.kl:.4f}"),
    Column("top-1", 6, lambda row: percent(row.effect.top1, 1)),
    Column("perplexity", 10, lambda row: change(row.effect.perplexity_change)),
    Column(
        "95 % interval",
        17,
        lambda row: f"{change(row.effect.perplexity_low)}..{change(row.effect.perplexity_high)}",
    ),
    Column("tok/s", 6, lambda row: short(row.tok_s)),
    Column("speed", 5, lambda row: f"{row.speed_up:.2f}"),
)
"""perplexity is its change; speed is against all blocks."""
