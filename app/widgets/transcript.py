"""The conversation on the screen: a scrolling window on its newest turns.

Bounded, because every mounted Markdown block slows each layout and style pass: the newest replies are full
Markdown, older ones are folded to one widget each, and the oldest are taken away until someone scrolls up
to them. Knows turns and scrolling, not the engine.
"""

from __future__ import annotations

import asyncio
from typing import Final

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app.conversation import Conversation, Turn
from app.widgets.turn import TurnView

UNFOLDED: Final = 6
"""Newest turns shown as full Markdown."""
PAGE: Final = 16
"""Turns mounted at first, and added at the top at a time."""
MOST: Final = 48
"""Turns mounted at most while the newest line is in view."""


class Transcript(VerticalScroll, can_focus=True):
    """Shows one conversation and follows its newest line."""

    BLANK = True

    def __init__(self, conversation: Conversation, welcome: Content) -> None:
        """Show `conversation`, which is empty yet; `welcome` stands where there is no turn."""
        super().__init__()
        self._welcome = welcome
        self._conversation = conversation
        self._first = 0
        """Index of the first turn that is mounted."""
        self._loading = False
        self._changing = asyncio.Lock()
        """One change at a time: a message may be sent while another conversation is being taken away."""

    def compose(self) -> ComposeResult:
        """Build the line above the first turn."""
        yield Static(id="earlier")

    def on_mount(self) -> None:
        """Follow the newest line."""
        self._show_marker()
        self.anchor()

    async def show(self, conversation: Conversation) -> None:
        """Show `conversation` from its newest turn, unless another one is asked for before its turn comes."""
        self._conversation = conversation
        async with self._changing:
            if self._conversation is not conversation:
                return
            turns = conversation.turns
            self._first = max(0, len(turns) - PAGE)
            views = [self._view(index) for index in range(self._first, len(turns))]
            async with self.batch():
                await self.remove_children(TurnView)
                await self.mount_all(views)
            self._show_marker()
            self.anchor()

    async def add(self, *turns: Turn) -> None:
        """Show turns that the conversation has just got, and follow them."""
        async with self._changing:
            ours = [turn for turn in turns if turn in self._conversation.turns and self.view(turn) is None]
            if not ours:
                return
            self.anchor()
            await self.mount_all([TurnView(turn) for turn in ours])
            self._show_marker()
            await self._bound()

    def view(self, turn: Turn) -> TurnView | None:
        """Return the widget that shows `turn`, if it is mounted."""
        return next((view for view in self.query(TurnView) if view.turn is turn), None)

    def follow(self) -> None:
        """Go to the newest line and stay there."""
        self.anchor()
        self.scroll_end(animate=False)

    def watch_scroll_y(self, old: float, new: float) -> None:
        """Fetch earlier turns when their place comes into view."""
        super().watch_scroll_y(old, new)
        if new <= 0 < self._first and old > new and not self._loading:
            self._loading = True
            self.call_later(self._show_earlier)

    async def _show_earlier(self) -> None:
        async with self._changing:
            height = self.virtual_size.height
            first = max(0, self._first - PAGE)
            views = [self._view(index) for index in range(first, self._first)]
            self._first = first
            await self.mount_all(views, after="#earlier")
            self._show_marker()

        def keep_place() -> None:
            self.scroll_to(y=self.virtual_size.height - height, animate=False)
            self._loading = False

        self.call_after_refresh(keep_place)

    async def _bound(self) -> None:
        """Fold what is no longer new and take away what is far above."""
        views = list(self.query(TurnView))
        for view in views[:-UNFOLDED]:
            await view.fold()
        if len(views) > MOST:
            gone = views[: len(views) - MOST + PAGE]
            self._first += len(gone)
            await self.remove_children(gone)
            self._show_marker()

    def _show_marker(self) -> None:
        """Show what stands above the first turn that is mounted."""
        marker = self.query_one("#earlier", Static)
        empty = not self._conversation.turns
        marker.set_class(empty, "-welcome")
        marker.display = empty or self._first > 0
        marker.update(self._welcome if empty else Content(f"▲ {self._first} earlier messages"))

    def _view(self, index: int) -> TurnView:
        turns = self._conversation.turns
        return TurnView(turns[index], folded=index < len(turns) - UNFOLDED)
