"""What a person wants of the placement: rules such as "blk.0-9.attn=vram,blk.70-79=nvme", as typed.

Knows the words and which blocks they mean; does not know sizes, and does not choose. Light: the command line
reads wishes before anything is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import BudgetError

if TYPE_CHECKING:  # blocks bring NumPy with them, and events read the options, which hold rules
    from engine.events import Tier
    from engine.tiers.blocks import Block

_RULE = re.compile(
    r"(?:blk\.(?P<first>[0-9]{1,4})(?:-(?P<last>[0-9]{1,4}))?(?:\.(?P<kind>attn|ffn))?|(?P<name>head|embedding))"
    r" ?= ?(?P<tier>vram|ram|nvme)"
)
_KINDS = {"attn": "attention", "ffn": "feed_forward", None: ""}
_SHORT = {"attention": ".attn", "feed_forward": ".ffn", "": ""}


@dataclass(frozen=True, slots=True)
class PlaceRule:
    """Some blocks and the tier that they are to have."""

    name: str
    """"blk", "head" or "embedding"."""
    first: int = 0
    """Of the layers, for "blk"."""
    last: int = 0
    """The last of the layers, itself included."""
    kind: str = ""
    """"attention", "feed_forward", or both where empty."""
    tier: str = "vram"
    """"vram", "ram" or "nvme"."""

    def __str__(self) -> str:
        """As `parse_place` reads it."""
        if self.name != "blk":
            return f"{self.name}={self.tier}"
        layers = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"blk.{layers}{_SHORT[self.kind]}={self.tier}"

    def means(self, block: Block) -> bool:
        """Whether it is about this block."""
        if self.name != "blk":
            return block.kind == self.name
        in_layers = block.layer is not None and self.first <= block.layer <= self.last
        return in_layers and self.kind in ("", block.kind)


def parse_place(text: str) -> tuple[PlaceRule, ...]:
    """Read rules with commas between them, as typed; ValueError says what is accepted."""
    return tuple(_rule(part.strip()) for part in text.split(","))


def _rule(text: str) -> PlaceRule:
    match = _RULE.fullmatch(text.lower())
    if match:
        name, tier = match["name"], match["tier"]
        if name:
            return PlaceRule(name, tier=tier)
        first = int(match["first"])
        last = int(match["last"] or first)
        if first <= last:
            return PlaceRule("blk", first, last, _KINDS[match["kind"]], tier)
    raise ValueError(
        f"{text!r} is no rule for a place: give layers (blk.3 or blk.0-9), with .attn or .ffn for a part of "
        "them, or head, or embedding, then = and vram, ram or nvme, such as blk.0-9.attn=vram,head=ram"
    )


def wanted_tiers(rules: Sequence[PlaceRule], blocks: Sequence[Block]) -> dict[int, Tier]:
    """The tiers that rules give to blocks, by index; later rules win, and other blocks are not in it.

    Raises BudgetError naming a rule that is about no block of this model.
    """
    from engine.events import Tier

    wanted: dict[int, Tier] = {}
    for rule in rules:
        meant = [block.index for block in blocks if rule.means(block)]
        if not meant:
            n_layers = len({block.layer for block in blocks} - {None})
            hint = (
                f"its layers are 0 to {n_layers - 1}"
                if rule.name == "blk"
                else f"its embedding and its head are one matrix: say head={rule.tier}"
            )
            raise BudgetError(f"{rule} (--place) is about no block of this model: {hint}")
        wanted |= dict.fromkeys(meant, Tier(rule.tier))
    return wanted
