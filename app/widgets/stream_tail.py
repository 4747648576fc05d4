"""The part of a reply that may still change: plain text with a caret, all of it, so that one can scroll back.

Rendering it as Markdown would cost more with every token of a list or a code block. One plain text would be
wrapped anew for every token; so what lies well above the caret is set aside, in widgets that are drawn once.
"""

from __future__ import annotations

import time
from typing import Final

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from app.widgets.ground import Ground
from app.widgets.still import Still

SET_LINES: Final = 8
"""Lines that are set aside at a time; the widget that still grows has up to twice as many."""
SET_CHARACTERS: Final = 800
"""The same in characters, for a text without line breaks."""
MERGED: Final = 5
"""So many widgets become one, and so many of those again: every layout looks at each of them."""
LAYOUT_S: Final = 0.25
"""Seconds between two layouts: short lines come faster than that, and each costs as much as many tokens."""
_CARET: Final = "▌"


class _Open(Static, Still):
    """The lines that still grow."""


class _Set(Static):
    """Lines that are set aside."""

    def __init__(self, tail: str, start: int, end: int, merges: int) -> None:
        """Show the `tail` from `start` to `end`; `merges` were needed to have so much in one widget."""
        super().__init__(Content(tail[start:end].removesuffix("\n")), classes="set")
        self.start, self.merges = start, merges


class StreamTail(Vertical, Ground, Still):
    """Shows the open tail of a reply."""

    def __init__(self) -> None:
        """Show nothing."""
        super().__init__(classes="tail")
        self.display = False
        self._open = _Open()
        self._n_set = 0
        """Characters of the tail that are set aside."""
        self._parts: list[_Set] = []
        self._laid_out_at = 0.0
        """When a new line was shown last, on the monotonic clock."""

    def compose(self) -> ComposeResult:
        """Build the widget of the lines that still grow."""
        yield self._open

    def show(self, tail: str, *, in_code: bool) -> None:
        """Show `tail`, which is clean and only grows until `clear`; `in_code` gives it the look of code.

        A new line that comes too soon after another waits for the next call.
        """
        if in_code != self.has_class("-code") or len(tail) < self._n_set:
            self.clear()
        # Most tokens do not start a new line; only those that do cost a layout of the screen.
        width, height = self._open.content_size
        taller = not width or _with_caret(tail[self._n_set :]).get_height({}, width) != height
        if taller and time.monotonic() - self._laid_out_at < LAYOUT_S:
            return
        self.set_class(in_code, "-code")
        self.display = True
        while border := _border(tail, self._n_set):
            self._set_aside(tail, border)
        self._open.update(_with_caret(tail[self._n_set :]), layout=taller)
        if taller:
            self._laid_out_at = time.monotonic()

    def clear(self) -> None:
        """Take the tail away."""
        self.display = False
        self._laid_out_at = 0.0
        if self._n_set:
            self._n_set = 0
            self.remove_children(self._parts)
            self._parts.clear()
        self._open.update("")

    def _set_aside(self, tail: str, border: int) -> None:
        """Draw the tail up to `border` once, or with what is above it where that is many widgets."""
        start, merges, gone = self._n_set, 0, []
        while len(like := self._parts[1 - MERGED :]) == MERGED - 1 and like[0].merges == merges:
            start, merges = like[0].start, merges + 1
            gone += like
            del self._parts[1 - MERGED :]
        part = _Set(tail, start, border, merges)
        self.remove_children(gone)
        self.mount(part, before=self._open)
        self._parts.append(part)
        self._n_set = border


def _with_caret(text: str) -> Content:
    return Content.assemble(text, (_CARET, "$accent"))


def _border(tail: str, start: int) -> int:
    """Return where the next part to be set aside ends, or 0 while what follows `start` is short."""
    if tail.count("\n", start) >= 2 * SET_LINES:
        border = start
        for _ in range(SET_LINES):
            border = tail.index("\n", border) + 1
        return border
    if len(tail) - start < 2 * SET_CHARACTERS:
        return 0
    limit = start + SET_CHARACTERS
    return max(tail.rfind("\n", start, limit), tail.rfind(" ", start, limit)) + 1 or limit
