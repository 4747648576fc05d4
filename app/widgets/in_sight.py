"""Layouts that leave out what is out of sight.

Textual places every mounted widget anew whenever a line is added, and places only what is seen when one
scrolls. The first costs more with every block of a long reply; so what holds them hands out the places near
what is seen, and the size of all. Knows rows and places, not turns.
"""

from __future__ import annotations

from textual.geometry import Region
from textual.layout import DockArrangeResult

Rows = tuple[int, int]
"""The first row that is near what is seen, and the row after the last, counted from a widget's own first."""


def in_sight(arranged: DockArrangeResult, rows: Rows | None) -> DockArrangeResult:
    """Return the places that are in `rows`, None for all, within the same total size."""
    if rows is None:
        return arranged
    first, end = max(0, rows[0]), rows[1]
    whole = arranged.total_region
    seen = Region(whole.x, first, whole.width, end - first)
    placements = arranged.get_visible_placements(seen) if end > first else []
    return DockArrangeResult(placements, arranged.widgets, arranged.scroll_spacing, arranged.spatial_map)


def below(rows: Rows | None, row: int) -> Rows | None:
    """Return the same rows as counted from `row`, where an inner widget begins."""
    return None if rows is None else (rows[0] - row, rows[1] - row)
