"""What each sampling parameter is called, does and ranges over, for whoever lets people set them.

Ranges are narrower than those of `SamplingParams`: they are what makes sense, not what can be computed.
Knows numbers and words; imports no widget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from app.i18n import _
from engine import SamplingParams

Number = int | float


@dataclass(frozen=True, slots=True)
class SamplingField:
    """One parameter: its range, its steps, and the value at which it does nothing."""

    name: str
    """As in `SamplingParams`."""
    low: float
    high: float
    step: float
    large_step: float
    decimals: int = 0
    """Digits after the point; 0 for whole numbers."""
    off: float | None = None
    """The value at which it does nothing; None where there is no such value."""
    root: bool = False
    """Whether sliders spread the low end: most people want 40 of 1,000."""
    begins: bool = False
    """Whether a group of parameters begins here."""

    def fraction(self, value: Number) -> float:
        """Return where on a slider `value` lies, from 0 to 1."""
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return math.sqrt(share) if self.root else share

    def value_at(self, fraction: float) -> Number:
        """Return the value at a place on a slider, to whole steps."""
        share = min(max(fraction, 0.0), 1.0)
        value = self.low + (share * share if self.root else share) * (self.high - self.low)
        return self._rounded(round(value / self.step) * self.step)

    def stepped(self, value: Number, direction: int, *, large: bool = False) -> Number:
        """Return `value` one step on (1) or back (-1), within the range."""
        step = self.large_step if large else self.step
        return self._rounded(min(max(value + direction * step, self.low), self.high))

    def parse(self, text: str) -> Number:
        """Return the number that was typed; ValueError says in a sentence what is accepted."""
        value: Number | None = None
        with suppress(ValueError):
            value = float(text) if self.decimals else int(text)
        if value is None or not self.low <= value <= self.high:
            words = _("{value} is not between {low} and {high}")
            if not self.decimals:
                words = _("{value} is no whole number between {low} and {high}")
            raise ValueError(words.format(value=text, low=f"{self.low:g}", high=f"{self.high:g}"))
        return value

    def shown(self, value: Number) -> str:
        """Return `value` for people; what was set more finely than the steps shows all its digits."""
        if isinstance(value, int):
            return str(value) if not self.decimals else f"{value:.{self.decimals}f}"
        return f"{value:.{self.decimals}f}" if value == self._rounded(value) else f"{value:.6g}"

    def _rounded(self, value: Number) -> Number:
        return round(value, self.decimals) if self.decimals else round(value)


FIELDS: Final = (
    SamplingField("temperature", 0, 5, 0.05, 0.25, decimals=2, root=True),
    SamplingField("top_k", 0, 1000, 1, 10, off=0, root=True, begins=True),
    SamplingField("top_p", 0, 1, 0.01, 0.1, decimals=2, off=1),
    SamplingField("min_p", 0, 1, 0.01, 0.1, decimals=2, off=0, root=True),
    SamplingField("typical_p", 0, 1, 0.01, 0.1, decimals=2, off=1),
    SamplingField("repeat_penalty", 0.5, 2, 0.01, 0.1, decimals=2, off=1, begins=True),
    SamplingField("presence_penalty", -2, 2, 0.05, 0.5, decimals=2, off=0),
    SamplingField("frequency_penalty", -2, 2, 0.05, 0.5, decimals=2, off=0),
    SamplingField("penalty_window", 0, 4096, 16, 256, off=0, root=True),
    SamplingField("seed", -(2**63), 2**63 - 1, 1, 1000, begins=True),
)
"""Every field of `SamplingParams`, in the order in which a token is drawn."""

SEED: Final = FIELDS[-1]
"""The one that may be None, "random", and that has no slider."""


def label(name: str) -> str:
    """Return what a parameter is called, in at most 14 cells."""
    return {
        "temperature": _("temperature"),
        "top_k": _("top-k"),
        "top_p": _("top-p"),
        "min_p": _("min-p"),
        "typical_p": _("typical"),
        "repeat_penalty": _("repetition"),
        "presence_penalty": _("presence"),
        "frequency_penalty": _("frequency"),
        "penalty_window": _("looks back"),
        "seed": _("seed"),
    }[name]


def help_text(name: str) -> str:
    """Return what a parameter does, in a sentence."""
    return {
        "temperature": _("Higher is bolder; 0 always takes the most probable token."),
        "top_k": _("Keeps the k most probable tokens; 0 keeps all."),
        "top_p": _("Keeps the most probable tokens that make up this share; 1 keeps all."),
        "min_p": _("Drops tokens below this share of the best one; 0 keeps all."),
        "typical_p": _("Keeps the tokens that surprise about as much as expected; 1 keeps all."),
        "repeat_penalty": _("Makes tokens that were just used less likely; 1 is off."),
        "presence_penalty": _("Lowers every token that was used, once; 0 is off."),
        "frequency_penalty": _("Lowers a token each time it was used; 0 is off."),
        "penalty_window": _("How many of the last tokens the three penalties look at."),
        "seed": _("The same seed gives the same reply; random draws a new one each time."),
    }[name]


def shown_value(field: SamplingField, params: SamplingParams) -> str:
    """Return the value for people: a number, or what it amounts to."""
    value: Number | None = getattr(params, field.name)
    if value is None:
        return _("random")
    if field.name == "temperature" and value == 0:
        return _("greedy")
    return _("off") if value == field.off else field.shown(value)


def has_effect(field: SamplingField, params: SamplingParams) -> bool:
    """Return whether a parameter takes part in drawing, as the others are."""
    if field.name == "penalty_window":
        return params.penalty_window > 0 and any(
            getattr(params, other.name) != other.off for other in FIELDS if other.name.endswith("_penalty")
        )
    if field.name.endswith("_penalty"):
        return params.penalty_window > 0 and getattr(params, field.name) != field.off
    if field.name == "temperature":
        return True
    return params.temperature > 0 and getattr(params, field.name) != field.off


def with_values(params: SamplingParams, values: Mapping[str, Any]) -> SamplingParams:
    """Return `params` with other values, by name. Raises ValueError for one that is out of range."""
    return replace(params, **values)


def checked_overrides(table: Mapping[str, object]) -> dict[str, Number]:
    """Return the parameters of a table from a file. Raises ValueError or TypeError naming the key."""
    known = {field.name: field for field in FIELDS}
    overrides: dict[str, Number] = {}
    for key, number in table.items():
        if key not in known:
            raise ValueError(f"unknown key {key!r}; known are {', '.join(known)}")
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise TypeError(f"{key} must be a number")
        overrides[key] = number
    with_values(SamplingParams(), overrides)  # checks the ranges, and which are whole
    return overrides
