"""The conversation on the screen, with a cursor on one of its turns and a search for words.

Keys of a turn post the actions of the registry, which the screen carries out. Knows turns, not the engine.
"""

from __future__ import annotations

import re
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from app.actions import Scope
from app.bindings import bindings
from app.conversation import Conversation, Turn
from app.widgets.found_words import select_words
from app.widgets.turn import TurnView
from app.widgets.turn_window import TurnWindow


class Transcript(TurnWindow, can_focus=True):
    """Shows one conversation; one of its turns is the one that is meant."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(Scope.TURN),
        Binding("j", "move(1)", show=False),
        Binding("k", "move(-1)", show=False),
        Binding("g,home", "first", show=False),
        Binding("G,end", "scroll_end", show=False),
        Binding("space", "page_down", show=False),
        Binding("shift+space", "page_up", show=False),
        Binding("n", "find_next(1)", show=False),
        Binding("N", "find_next(-1)", show=False),
    ]

    class Found(Message):
        """A key here went on with the search."""

        def __init__(self, place: int, count: int) -> None:
            """Carry what `find_next` returned."""
            super().__init__()
            self.place, self.count = place, count

    def __init__(self, conversation: Conversation, welcome: Content) -> None:
        """Show `conversation`, which is empty yet; `welcome` stands where there is no turn."""
        super().__init__(conversation, welcome)
        self._cursor: Turn | None = None
        """The turn that was chosen; None is the newest, whichever it is."""
        self._words: re.Pattern[str] | None = None
        """What is searched for."""
        self._found: Turn | None = None
        """Where the search went last."""

    async def show(self, conversation: Conversation, at: Turn | None = None) -> None:
        """Show `conversation` from its newest turn, or around `at`, on which the cursor is then."""
        self._cursor, self._found = at, None
        await super().show(conversation, at)

    async def add(self, *turns: Turn) -> None:
        """Show turns that the conversation has just got, and follow them."""
        self._cursor = None
        await super().add(*turns)

    def follow(self) -> None:
        """Go to the newest line and stay there; the cursor goes to the newest turn."""
        self._cursor = None
        self._mark_cursor()
        super().follow()

    def action_scroll_end(self) -> None:
        """Go to the newest line."""
        self.follow()

    # -- the cursor

    @property
    def current(self) -> Turn | None:
        """The turn that is meant: the one under the cursor, or the newest."""
        turns = self._conversation.turns
        if self._cursor is not None and any(turn is self._cursor for turn in turns):
            return self._cursor
        return turns[-1] if turns else None

    def choose(self, turn: Turn) -> None:
        """Put the cursor on `turn` and bring it into view."""
        self._cursor = turn
        self._mark_cursor()
        self.run_worker(self._reveal(turn), group="cursor")

    def move_cursor(self, direction: int) -> None:
        """Choose the turn above (-1) or below (1); below the newest the newest line is followed again."""
        current, turns = self.current, self._conversation.turns
        if current is None:
            return
        place = self._index(current) + direction
        if place < len(turns):
            self.choose(turns[max(0, place)])
        else:
            self.follow()

    def action_move(self, direction: int) -> None:
        """Choose another turn."""
        self.move_cursor(direction)

    def action_first(self) -> None:
        """Choose the first turn."""
        if turns := self._conversation.turns:
            self.choose(turns[0])

    def on_click(self, event: events.Click) -> None:
        """Choose the turn that was clicked."""
        if event.widget is None:
            return
        if event.widget.id == "newer":
            self.follow()
        for view in event.widget.ancestors_with_self:
            if isinstance(view, TurnView):
                self._cursor = view.turn
                self._mark_cursor()

    def watch_has_focus(self, _has_focus: bool) -> None:
        """Show which turn the keys are for, or only one that was chosen."""
        super().watch_has_focus(_has_focus)
        self._mark_cursor()

    def _mark_cursor(self) -> None:
        current = self.current if self._cursor is not None or self.has_focus else None
        for view in self.query(TurnView):
            view.mark(view.turn is current)

    def _show_marks(self) -> None:
        super()._show_marks()
        self._mark_cursor()

    # -- finding words

    def find(self, words: str) -> tuple[int, int]:
        """Search for `words` from now on; go to the nearest turn from here upwards that has them.

        Returns which it is, from 1, of how many: both 0 for none. '' ends the search.
        """
        self.screen.clear_selection()
        self._words = re.compile(re.escape(words.strip()), re.IGNORECASE) if words.strip() else None
        self._found = None
        return self.find_next(-1)

    def find_next(self, step: int) -> tuple[int, int]:
        """Go to the next turn below (1) or above (-1) with the words, round and round; return as `find`."""
        matches, words, current = self._matches(), self._words, self.current
        if not matches or words is None or current is None:
            return 0, 0
        here = self._index(current)
        if current is not self._found and here in matches:  # where we are was not shown yet
            place = here
        elif step > 0:
            place = next((place for place in matches if place > here), matches[0])
        else:
            place = next((place for place in reversed(matches) if place < here), matches[-1])
        self._found = self._cursor = self._conversation.turns[place]
        self._mark_cursor()
        self.run_worker(self._show_found(self._found, words), group="cursor")
        return matches.index(place) + 1, len(matches)

    def action_find_next(self, step: int) -> None:
        """Go on with the search, if there is one."""
        if self._words is not None:
            self.post_message(self.Found(*self.find_next(step)))

    def _matches(self) -> list[int]:
        """Return the places of the turns with the words."""
        words = self._words
        if words is None:
            return []
        return [place for place, turn in enumerate(self._conversation.turns) if words.search(turn.text)]

    async def _show_found(self, turn: Turn, words: re.Pattern[str]) -> None:
        await self._reveal(turn)
        async with self._changing:
            view = self.view(turn)
            if view is None or turn is not self._found:  # the search has gone on
                return
            await view.unfold()
        self._all_placed = True
        self.refresh(layout=True)
        self.call_after_refresh(self._show_words, view, words)

    def _show_words(self, view: TurnView, words: re.Pattern[str]) -> None:
        """Select the words in `view` and bring the first of them into view."""
        self._all_placed = False  # from the next layout on
        if not view.is_attached or view.turn is not self._found:  # the search has gone on
            return
        if (found := select_words(view, words)) is not None:
            widget, row = found
            row += self._row_of(widget) + widget.gutter.top
        else:  # one widget for the whole text: about there
            match = words.search(view.turn.text)
            share = match.start() / len(view.turn.text) if match else 0
            row = self._row_of(view) + int(share * view.size.height)
        if not self.scroll_y <= row < self.scroll_y + self.size.height - 1:
            self.scroll_to(y=max(0, row - self.size.height // 3), animate=False, immediate=True)

    def _row_of(self, widget: Widget) -> int:
        """Return where in all that can be scrolled `widget` begins; unlike its region, this is never late."""
        row, node = 0, widget
        while node is not self and isinstance(node.parent, Widget):
            row += node.virtual_region.y
            node = node.parent
        return row
