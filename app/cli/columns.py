"""Tables of figures on the command line: aligned columns, and numbers with as many digits as they mean.

Knows texts and widths; does not know what the figures are of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Generic, NamedTuple, TypeVar

C = TypeVar("C")

NOT_MEASURED = "-"


class Column(NamedTuple, Generic[C]):
    """One column, aligned to the right."""

    heading: str
    width: int
    text: Callable[[C], str]


def heading_line(columns: Sequence[Column[C]]) -> str:
    """The headings, each over its column."""
    return " ".join(column.heading.rjust(column.width) for column in columns)


def row_line(columns: Sequence[Column[C]], cell: C) -> str:
    """What the columns say of one thing."""
    return " ".join(column.text(cell).rjust(column.width) for column in columns)


def spread(middle: float | None, low: float | None, high: float | None) -> str:
    """A median, and between which figures it lies."""
    return NOT_MEASURED if middle is None else f"{short(middle)} {short(low)}..{short(high)}"


def short(value: float | None) -> str:
    """Four digits or more, none after the point that say nothing."""
    if value is None:
        return NOT_MEASURED
    return f"{value:.{0 if value >= 1000 else 1 if value >= 100 else 2}f}"


def gigabytes(value: float | None) -> str:
    """One digit after the point where there are few before it."""
    return NOT_MEASURED if value is None else f"{value:.{0 if value >= 100 else 1}f}"


def percent(share: float | None, digits: int = 0) -> str:
    """A share of 1."""
    return NOT_MEASURED if share is None else f"{share:.{digits}%}"


def change(share: float | None) -> str:
    """How much more or less, in percent, such as +1.2%; three digits at most."""
    if share is None or not isfinite(share):
        return NOT_MEASURED
    digits = 0 if abs(share) >= 1 else 1 if abs(share) >= 0.1 else 2
    return f"{share:+.{digits}%}"


def milliseconds(value: float | None) -> str:
    """One digit after the point where there are few before it."""
    return NOT_MEASURED if value is None else f"{value:.{0 if value >= 100 else 1}f}"
