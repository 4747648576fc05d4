"""The part of a reply that may still change: plain text, at most a screenful, with a caret.

Rendering it as Markdown would cost more with every token of a list or a code block; plain text does not.
"""

from __future__ import annotations

from typing import Final

from textual.content import Content
from textual.widgets import Static

MAX_LINES: Final = 40
MAX_CHARACTERS: Final = 4_000
_CARET: Final = "▌"


class StreamTail(Static):
    """Shows the open tail of a reply."""

    def show(self, tail: str, *, in_code: bool) -> None:
        """Show the tail, which is clean already; `in_code` gives it the look of a code block."""
        self.set_class(in_code, "-code")
        self.display = True
        self.update(Content.assemble(tail[-MAX_CHARACTERS:], (_CARET, "$accent")), layout=False)
        # Most tokens do not start a new line; only those that do cost a layout of the screen.
        width, height = self.content_size
        if not width or self.visual.get_height({}, width) != height:
            self.refresh(layout=True)

    def clear(self) -> None:
        """Take the tail away."""
        self.display = False
        self.update("")
