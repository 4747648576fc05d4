"""Widgets that nobody scrolls and that are told the same again and again: a layout only where it shows.

Textual lays the whole screen out a second time when the size of a widget has changed, for the sake of its
scrollbars, and each time that a text is replaced, be it by the same one. Knows no text.
"""

from __future__ import annotations

from textual.geometry import Size
from textual.reactive import Reactive
from textual.visual import VisualType
from textual.widget import Widget
from textual.widgets import Static


class Still(Widget):
    """A widget without scrollbars. Mixed in, it comes after the class that gives the style."""

    virtual_size = Reactive(Size(0, 0), layout=False, repaint=False)


class Words(Static, Still):
    """A text that is replaced often, mostly by the same."""

    def update(self, content: VisualType = "", *, layout: bool = True) -> None:
        """Show `content`, if something else is shown; `layout` as in `Static.update`."""
        if content != self.content:
            super().update(content, layout=layout)
