"""Which layer blocks a person wants left out, as typed: a rule with its threshold, or the blocks themselves.

Knows the words; does not know models, and does not choose (`calibrated` does). Light: the command line reads
choices before anything is loaded.

A skip set holds numbers of layer blocks: 2i is the attention of layer i, 2i + 1 its feed-forward block.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

SkipSet: TypeAlias = frozenset[int]
"""Layer blocks that a pass leaves out: their input is their output."""
NOTHING: SkipSet = frozenset()

DEFAULT_COSINE = 0.98
"""NTransformer's threshold."""
DEFAULT_KL = 0.05
"""Nats."""
MOST_KL = 1.0
"""Nats: beyond it a set is of no use, neither for replies nor for drafts."""

_BLOCKS = re.compile(r"blk\.(?P<first>[0-9]{1,4})(?:-(?P<last>[0-9]{1,4}))?(?:\.(?P<kind>attn|ffn))?")


class SkipRule(StrEnum):
    """How blocks are chosen that are left out."""

    COSINE = "cos"
    """Layers of the middle half whose output points where their input does, as in NTransformer: those with a
    mean cosine above the threshold."""
    KL = "kl"
    """The largest calibrated set that moves the distribution of the next token by no more nats than that."""
    BLOCKS = "blocks"
    """Those named."""


@dataclass(frozen=True, slots=True)
class SkipChoice:
    """A wish; which blocks it means is known once the model has been calibrated."""

    rule: SkipRule
    threshold: float = 0.0
    """Of COSINE and KL."""
    blocks: SkipSet = NOTHING
    """Of BLOCKS."""

    def __str__(self) -> str:
        """As `parse_skip` reads it."""
        if self.rule is not SkipRule.BLOCKS:
            return f"{self.rule}={self.threshold}"
        parts = []
        for layer in sorted({number // 2 for number in self.blocks}):
            both = {2 * layer, 2 * layer + 1} <= self.blocks
            parts.append(f"blk.{layer}" + ("" if both else ".attn" if 2 * layer in self.blocks else ".ffn"))
        return ",".join(parts)


def parse_skip(text: str) -> SkipChoice | None:
    """Read 'off', 'cos=0.98', 'kl=0.05' or 'blk.10-12,blk.20.attn'; ValueError says what is accepted."""
    text = text.strip().lower()
    if text == "off":
        return None
    rule, _, threshold = text.partition("=")
    if rule in (SkipRule.COSINE, SkipRule.KL):
        return _by_threshold(SkipRule(rule), threshold)
    numbers: set[int] = set()
    for part in text.split(","):
        match = _BLOCKS.fullmatch(part.strip())
        if match is None or int(match["last"] or match["first"]) < int(match["first"]):
            raise ValueError(
                f"{part.strip()!r} says nothing that can be skipped: give off, cos=0.98 (how alike a layer's "
                "input and output must be), kl=0.05 (nats that the output may move), or blocks such as "
                "blk.10-12,blk.20.attn"
            )
        for layer in range(int(match["first"]), int(match["last"] or match["first"]) + 1):
            numbers |= {2 * layer + part for part in (0, 1) if match["kind"] in (None, ("attn", "ffn")[part])}
    return SkipChoice(SkipRule.BLOCKS, blocks=frozenset(numbers))


def _by_threshold(rule: SkipRule, text: str) -> SkipChoice:
    low, high = (-1.0, 1.0) if rule is SkipRule.COSINE else (0.0, 10.0)
    try:
        threshold = float(text)
    except ValueError:
        threshold = float("nan")
    if not low <= threshold <= high:
        raise ValueError(f"{text!r} is no threshold for {rule}: give a number from {low:g} to {high:g}")
    return SkipChoice(rule, threshold)
