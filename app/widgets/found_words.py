"""Show words that were searched for inside a turn, by selecting them. Knows widgets with text, not turns."""

from __future__ import annotations

import re

from textual.content import Content
from textual.geometry import Offset
from textual.selection import Selection
from textual.widget import Widget


def select_words(place: Widget, words: re.Pattern[str]) -> tuple[Widget, int] | None:
    """Select the first `words` of every widget in `place`; return the first such widget and the row in it.

    A selection needs no change of the content, and can be copied. Widgets whose text is not Textual's own
    content are left out.
    """
    found: dict[Widget, Selection] = {}
    first: tuple[Widget, int] | None = None
    for widget in place.query("*"):
        content = widget.render()
        if not isinstance(content, Content) or not (match := words.search(content.plain)):
            continue
        found[widget] = Selection(_offset(content.plain, match.start()), _offset(content.plain, match.end()))
        if first is None:
            before = Content(content.plain[: match.end()])
            first = widget, before.get_height({}, max(1, widget.content_size.width)) - 1
    place.screen.selections = found
    return first


def _offset(text: str, index: int) -> Offset:
    """Return where in its line, and in which line, `index` is."""
    return Offset(index - (text.rfind("\n", 0, index) + 1), text.count("\n", 0, index))
