"""What a person wants of the placement: rules such as "blk.0-9.attn=vram,blk.70-79=nvme", as typed.

Knows the words; does not know sizes, and does not choose. Standard library only: the command line reads wishes
before anything is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass


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
