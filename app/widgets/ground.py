"""A widget that is only what its children lie on, and that grows: the parts of a reply.

A line more is another size, for which Textual would draw all lines anew, lay out all children anew and place
those that are out of sight as well. Knows no text.
"""

from __future__ import annotations

from textual.geometry import Region, Size
from textual.layout import DockArrangeResult
from textual.strip import Strip
from textual.widget import Widget

from app.widgets.in_sight import Rows, in_sight


class Ground(Widget):
    """To be mixed into a container without content, and without a border above or below.

    Named after the container: Textual takes style rules and names from the first base class.
    """

    rows: Rows | None = None
    """Where children are placed; None for everywhere."""

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As tall as the children, whatever they stand in: a layout is found again by that size."""
        return super().get_content_height(container.with_height(0), viewport, width)

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """Place what is near what is seen."""
        return in_sight(super().arrange(size, optimal), self.rows)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw a line, and hand it out for each."""
        return super().render_lines(Region(crop.x, crop.y, crop.width, 1)) * crop.height
