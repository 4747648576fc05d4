"""How a reply was computed, and what that gave, as JSON and back. Knows fields; runs no SQL.

A choice of blocks is kept as it is typed (`engine.parse_skip`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from engine import DecodingOptions, DraftKind, GenerationStats, SkipEffect, parse_skip

_NO_STATS: Final = GenerationStats()
_EFFECT: Final = "skip_effect"
_LARGEST: Final = 1 << 63
_MOST_BLOCKS: Final = 1 << 16


def decoding_facts(options: DecodingOptions) -> dict[str, Any]:
    """Return options as JSON has them."""
    return {
        "skip": None if options.skip is None else str(options.skip),
        "draft": str(options.draft),
        "draft_k": options.draft_k,
        "exit_layer": options.exit_layer,
    }


def decoding_of(stored: Mapping[str, Any]) -> DecodingOptions:
    """Return stored options, without fields that only a newer program knows. Raises ValueError, TypeError."""
    skip = stored.get("skip")
    if skip is not None and not isinstance(skip, str):
        raise TypeError(f"skip is {str(skip)[:40]!r}")
    numbers: dict[str, Any] = {name: stored.get(name) for name in ("draft_k", "exit_layer")}
    for name, value in numbers.items():
        if value is not None and type(value) is not int:
            raise TypeError(f"{name} is {str(value)[:40]!r}")
    return DecodingOptions(
        skip=None if skip is None else parse_skip(skip),
        draft=DraftKind(stored.get("draft", DraftKind.OFF)),
        **numbers,
    )


def stats_facts(stats: GenerationStats) -> dict[str, Any]:
    """Return statistics as JSON has them."""
    facts = asdict(stats)
    effect = stats.skip_effect
    facts[_EFFECT] = None
    if effect is not None:
        numbers = asdict(effect)
        skipped = sorted(numbers.pop("skipped"))
        # JSON has no infinity, which the perplexity of a model with too little left may well be.
        if all(math.isfinite(value) for value in numbers.values()):
            facts[_EFFECT] = {"skipped": skipped, **numbers}
    return facts


def stats_of(stored: Mapping[str, Any]) -> GenerationStats:
    """Return stored statistics, without fields that only a newer program knows. Raises ValueError."""
    names = {field.name for field in fields(GenerationStats)} - {_EFFECT}
    known = {name: value for name, value in stored.items() if name in names}
    for name, value in known.items():
        kinds = (int,) if isinstance(getattr(_NO_STATS, name), int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not abs(value) < _LARGEST:
            raise ValueError(f"{name} is {str(value)[:40]!r}")
    effect = stored.get(_EFFECT)
    return GenerationStats(**known, skip_effect=None if effect is None else _effect_of(effect))


def _effect_of(stored: object) -> SkipEffect:
    if not isinstance(stored, Mapping) or not isinstance(stored.get("skipped"), list):
        raise ValueError(f"{_EFFECT} is {str(stored)[:40]!r}")
    skipped = stored["skipped"]
    if any(type(number) is not int or not 0 <= number < _MOST_BLOCKS for number in skipped):
        raise ValueError(f"{_EFFECT} leaves out {str(skipped)[:40]}")
    names = [field.name for field in fields(SkipEffect) if field.name != "skipped"]
    numbers: dict[str, Any] = {name: stored.get(name) for name in names}
    for name, value in numbers.items():
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            raise ValueError(f"{name} of {_EFFECT} is {str(value)[:40]!r}")
    return SkipEffect(frozenset(skipped), **numbers)
