"""One line with the open conversations. Knows titles and marks, not conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from textual import events
from textual.content import Content
from textual.message import Message
from textual.visual import VisualType

from app.i18n import _
from app.sanitize import sanitize_line
from app.widgets.still import Still

_LEAST: Final = 6
"""Cells of a title below which it says nothing any more."""


@dataclass(frozen=True, slots=True)
class Tab:
    """What the bar shows of an open conversation."""

    title: str
    busy: bool = False
    """Whether a reply grows in it."""
    draft: bool = False
    """Whether something is written in it that is not sent."""


class TabBar(Still):
    """Shows the tabs, the active one in brackets; a click goes to one."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    TabBar { height: 1; width: 100%; }
    """

    class Chosen(Message):
        """A tab was clicked."""

        def __init__(self, index: int) -> None:
            """Carry its place, from 0."""
            super().__init__()
            self.index = index

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__()
        self._tabs: tuple[Tab, ...] = ()
        self._active = 0
        self._ends: list[int] = []
        """The column after each tab, as drawn; empty where there is no room for all."""

    def show(self, tabs: Sequence[Tab], active: int) -> None:
        """Show these."""
        if (tuple(tabs), active) != (self._tabs, self._active):
            self._tabs, self._active = tuple(tabs), active
            self.refresh()

    def render(self) -> VisualType:
        """Draw the line."""
        width = self.content_size.width
        self._ends = []
        if not self._tabs:
            return Content("")
        overhead = 6  # number, mark, brackets and spaces
        longest = max(_title(tab).cell_length for tab in self._tabs)
        room = min(longest, width // len(self._tabs) - overhead)
        if room < min(_LEAST, longest) and len(self._tabs) > 1:
            return self._narrow(width)
        line = Content("")
        for place, tab in enumerate(self._tabs):
            title = _title(tab).truncate(max(1, room), ellipsis=True)
            text = Content.assemble(f"{place + 1} ", title, _mark(tab))
            if place == self._active:
                line += Content.assemble("[", text, "]").stylize("bold")
            else:
                line += Content.assemble(" ", text, " ")
            self._ends.append(line.cell_length)
        return line.truncate(width, ellipsis=True)

    def on_click(self, event: events.Click) -> None:
        """Say which tab was clicked; without room for all of them it is the next one."""
        if self._ends:
            column = event.get_content_offset_capture(self).x
            index = next((n for n, end in enumerate(self._ends) if column < end), self._active)
        else:
            index = (self._active + 1) % max(1, len(self._tabs))
        if index != self._active:
            self.post_message(self.Chosen(index))

    def _narrow(self, width: int) -> Content:
        """Return the active tab and how many there are."""
        tab = self._tabs[self._active]
        count = f"{self._active + 1}/{len(self._tabs)} "
        others = [other for other in self._tabs if other is not tab]
        marks = ("●" if any(t.busy for t in others) else "") + ("✎" if any(t.draft for t in others) else "")
        end = _mark(tab) + (f"  +{marks}" if marks else "")
        room = width - len(count) - Content(end).cell_length
        title = _title(tab).truncate(max(1, room), ellipsis=True)
        return Content.assemble(count, (title.plain, "bold"), end)


def _title(tab: Tab) -> Content:
    return Content(sanitize_line(tab.title) or _("New conversation"))


def _mark(tab: Tab) -> str:
    return (" ●" if tab.busy else "") + (" ✎" if tab.draft else "")
