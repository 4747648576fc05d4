"""What calibration has found out about leaving blocks of a model out, and which set a choice means.

Pure data. Knows sets and their measured effects; does not know models or files (`calibrate` measures,
`calibration_file` keeps). See `skip_choice` for what a skip set holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.skipping.skip_choice import NOTHING, SkipChoice, SkipRule, SkipSet


@dataclass(frozen=True, slots=True)
class SkipEffect:
    """What leaving a set of blocks out does to the next token's distribution, on the calibration's text."""

    skipped: SkipSet
    kl: float
    """Mean KL64 (see `evaluate.kl64`) from the whole model, nats."""
    perplexity_change: float
    """Perplexity / that of the whole model - 1."""
    perplexity_low: float
    """Lower end of its 95 % confidence interval."""
    perplexity_high: float
    top1: float
    """Share of positions with the same most probable token."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of one model."""

    n_blocks: int
    """Layer blocks of the model."""
    tokens: int
    """Scored ids of the text."""
    text: str
    """Where the text came from, in words."""
    perplexity: float
    """Of the whole model."""
    cosines: tuple[float, ...]
    """For each layer, mean cosine between its input and its output, attention and feed-forward together;
    empty where they were not measured."""
    effects: tuple[SkipEffect, ...]
    """Of all sets that were measured: each block alone, grown sets, and sets asked for."""
    grown: tuple[SkipSet, ...]
    """Greedily grown sets, each within the next one; empty where none were measured, or each block alone
    changes too much."""

    def serves(self, rule: SkipRule) -> bool:
        """Whether what a rule means can be told without measuring more."""
        if rule is SkipRule.KL:
            # Each block alone may change too much: then no set was grown, and none ever will be.
            alone = {block for effect in self.effects if len(effect.skipped) == 1 for block in effect.skipped}
            return bool(self.grown) or len(alone) == self.n_blocks
        return rule is SkipRule.BLOCKS or bool(self.cosines)

    def choose(self, choice: SkipChoice) -> SkipSet:
        """The set that a choice means; NOTHING where none reaches the threshold."""
        if choice.rule is SkipRule.BLOCKS:
            return choice.blocks
        if choice.rule is SkipRule.COSINE:
            n_layers = self.n_blocks // 2
            middle = range(n_layers // 4, 3 * n_layers // 4)
            alike = [layer for layer in middle if self.cosines[layer] > choice.threshold]
            return frozenset(number for layer in alike for number in (2 * layer, 2 * layer + 1))
        chosen = NOTHING
        for skipped in self.grown:
            effect = self.effect(skipped)
            if effect is not None and effect.kl <= choice.threshold:
                chosen = skipped
        return chosen

    def effect(self, skipped: SkipSet) -> SkipEffect | None:
        """What was measured of this very set; None where nothing was."""
        return next((effect for effect in self.effects if effect.skipped == skipped), None)

    def with_effect(self, effect: SkipEffect) -> Calibration:
        """The same, and one more measured set."""
        return replace(self, effects=(*self.effects, effect))
