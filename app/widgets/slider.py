"""A slider drawn with characters: heavy where it is filled, so that it reads without colour. No widget."""

from __future__ import annotations

from textual.content import Content

KNOB = "●"


def slider(fraction: float, width: int, *, origin: float = 0.0, live: bool = True) -> Content:
    """Return `width` cells with a knob at `fraction`, filled from `origin`; dotted when not `live`."""
    knob, start = cell_at(fraction, width), cell_at(origin, width)
    if not live:
        return Content.styled("┄" * knob + "○" + "┄" * (width - knob - 1), "$rule")
    before, after = ("─" * min(knob, start), "$rule"), ("─" * (width - max(knob, start) - 1), "$rule")
    filled, mark = ("━" * abs(knob - start), "$primary"), (KNOB, "bold $primary")
    middle = (filled, mark) if knob >= start else (mark, filled)
    return Content.assemble(before, *middle, after)


def cell_at(fraction: float, width: int) -> int:
    """Return the cell of a slider of `width` cells that `fraction` falls on."""
    return round(min(max(fraction, 0.0), 1.0) * (width - 1))


def fraction_at(cell: int, width: int) -> float:
    """Return the fraction that a cell of a slider of `width` cells stands for."""
    return min(max(cell / max(1, width - 1), 0.0), 1.0)
