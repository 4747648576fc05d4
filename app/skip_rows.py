"""Which sets of blocks can be left out of the present model, and what is known of each: rows of a table.

Knows a calibration and the blocks of the map; does not know the screen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.decoding_words import per_cent
from app.i18n import _
from engine import (
    DEFAULT_COSINE,
    MOST_KL,
    Calibration,
    SkipChoice,
    SkipEffect,
    SkipRule,
    SkipSet,
    TierSnapshot,
)

_PLACES: Final = 4
"""After the point, of a threshold that is offered."""


@dataclass(frozen=True, slots=True)
class SkipRow:
    """One set."""

    choice: SkipChoice | None
    """What has to be asked for to get it; None uses all blocks."""
    skipped: SkipSet
    effect: SkipEffect | None
    """None where it was not measured."""
    saved: float
    """Share of the bytes of a pass that it does without."""

    @property
    def rule(self) -> str:
        """As it is typed."""
        return "off" if self.choice is None else str(self.choice)


def skip_rows(
    calibration: Calibration | None, tiers: TierSnapshot | None, present: SkipChoice | None
) -> list[SkipRow]:
    """Return all blocks, the sets that were grown, the cosine rule, and what is chosen now if it differs."""
    rows = [_row(None, frozenset(), calibration, tiers)]
    if calibration is None:
        return rows
    rows += [
        _row(choice_of(calibration, grown), grown, calibration, tiers) for grown in calibration.grown if grown
    ]
    others = [present]
    if calibration.cosines:
        others.append(SkipChoice(SkipRule.COSINE, DEFAULT_COSINE))
    for choice in others:
        skipped = chosen_set(calibration, choice)
        if choice is not None and skipped and all(row.skipped != skipped for row in rows):
            rows.append(_row(choice, skipped, calibration, tiers))
    return rows


def choice_of(calibration: Calibration, skipped: SkipSet) -> SkipChoice:
    """Return what means this set: the largest effect that it may have, else the blocks themselves."""
    effect = calibration.effect(skipped)
    if effect is not None and effect.kl <= MOST_KL:
        near = round(effect.kl, _PLACES)
        choice = SkipChoice(SkipRule.KL, near if near >= effect.kl else round(near + 10**-_PLACES, _PLACES))
        if calibration.choose(choice) == skipped:
            return choice
    return SkipChoice(SkipRule.BLOCKS, blocks=skipped)


def chosen_set(calibration: Calibration | None, choice: SkipChoice | None) -> SkipSet | None:
    """Return the set that a choice means; None where only measuring can tell."""
    if choice is None:
        return frozenset()
    if choice.rule is SkipRule.BLOCKS:
        return choice.blocks
    serves = calibration is not None and calibration.serves(choice.rule)
    return calibration.choose(choice) if calibration is not None and serves else None


def block_names(skipped: SkipSet) -> str:
    """Return which blocks these are, as they are typed."""
    return str(SkipChoice(SkipRule.BLOCKS, blocks=skipped)).replace(",", " ")


def saved_share(skipped: SkipSet, tiers: TierSnapshot | None, n_blocks: int) -> float:
    """Return the share of a pass's bytes that a set does without; of its blocks where no map is known."""
    if tiers is None:
        return len(skipped) / n_blocks if n_blocks else 0.0
    needed = [0 if block.kind == "embedding" else block.n_bytes for block in tiers.blocks]
    layers = [index for index, block in enumerate(tiers.blocks) if block.layer is not None]
    left_out = sum(needed[layers[number]] for number in skipped if number < len(layers))
    return left_out / max(1, sum(needed))


def cells_of(row: SkipRow, n_blocks: int) -> tuple[str, str, str, str, str]:
    """Return what stands in the columns after the rule: blocks, saved, KL, perplexity, same best token."""
    effect = row.effect
    count, saved = f"{len(row.skipped)}/{n_blocks}", f"{row.saved:.0%}"
    if not row.skipped:
        return "0", "", "0", _("exact"), "100%"
    if effect is None:
        return count, saved, "?", _("not measured"), "?"
    interval = f"[{per_cent(effect.perplexity_low)}, {per_cent(effect.perplexity_high)}]"
    return (
        count,
        saved,
        f"{effect.kl:.3g}",
        f"{per_cent(effect.perplexity_change)} {interval}",
        f"{effect.top1:.0%}",
    )


def _row(
    choice: SkipChoice | None, skipped: SkipSet, calibration: Calibration | None, tiers: TierSnapshot | None
) -> SkipRow:
    n_blocks = calibration.n_blocks if calibration is not None else 0
    effect = calibration.effect(skipped) if calibration is not None and skipped else None
    return SkipRow(choice, skipped, effect, saved_share(skipped, tiers, n_blocks))
