"""A scrolling window on the turns of a conversation, which has the newest line or any other place in view.

Bounded, because every mounted Markdown block slows each layout and style pass: the newest replies are full
Markdown, older ones are folded to one widget each, and what is far from the window is taken away until
someone goes there. Knows turns and scrolling; the cursor and keys are the transcript's.
"""

from __future__ import annotations

import asyncio
from typing import Final

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.reactive import Reactive
from textual.widget import Widget

from app.conversation import Conversation, Turn
from app.i18n import _
from app.widgets.in_sight import Rows
from app.widgets.still import Words
from app.widgets.turn import TurnView

UNFOLDED: Final = 6
"""Newest turns shown as full Markdown."""
PAGE: Final = 16
"""Turns mounted at first, and added at either end at a time."""
MOST: Final = 48
"""Turns mounted at most."""


class TurnWindow(VerticalScroll):
    """Shows a part of one conversation, and follows its newest line."""

    # See `Still`, which is no base of a widget that scrolls; the scroll bar looks at the size by itself.
    virtual_size = Reactive(Size(0, 0), layout=False, repaint=False)
    BLANK = True
    DEFAULT_CSS = """
    TurnWindow {
        layers: turns marks;
        & > #unseen, & > #later { width: 100%; height: 1; color: $muted; text-align: center; }
        & > #unseen { margin-bottom: 1; }
        & > #newer { layer: marks; dock: bottom; width: 100%; height: 1; text-align: center; }
    }
    """

    def __init__(self, conversation: Conversation, welcome: Content) -> None:
        """Show `conversation`, which is empty yet; `welcome` stands where there is no turn."""
        super().__init__()
        self._welcome = welcome
        self._conversation = conversation
        self._first = 0
        """Index of the first turn that is mounted."""
        self._last = 0
        """Index after the last turn that is mounted."""
        self._seen_from = 0
        """Id of the first turn that the model is told; 0 if it is told all."""
        self._new_lines = 0
        """Lines that came while they were out of view."""
        self._loading = False
        self._arranged: DockArrangeResult | None = None
        """The last layout of the turns."""
        self._starts: dict[Widget, int] = {}
        """In which row each of them begins."""
        self._all_placed = False
        """Whether widgets out of sight have places as well: who looks for one of them needs that."""
        self._changing = asyncio.Lock()
        """One change at a time: a message may be sent while another conversation is being taken away."""

    def compose(self) -> ComposeResult:
        """Build the lines around the turns."""
        yield Words(id="earlier")
        for name in ("unseen", "later", "newer"):
            line = Words(id=name)
            line.display = False
            yield line

    def on_mount(self) -> None:
        """Follow the newest line."""
        self._show_marks()
        self.anchor()
        self.watch(self, "virtual_size", self._count_new, init=False)

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """Place the turns, all of them, and note where they are."""
        arranged = super().arrange(size, optimal)
        if arranged is not self._arranged:
            self._arranged = arranged
            self._starts = {placed.widget: placed.region.y for placed in arranged.placements}
        return arranged

    def rows_near(self, view: Widget) -> Rows | None:
        """Return the rows of `view` that are seen or a screen away; None for all of them."""
        start, height = self._starts.get(view), self.size.height
        if start is None or not height or self._all_placed or self.screen.selections:
            return None  # what is between two ends of a selection is found by its place
        seen = int(self.scroll_y) - start
        return seen - height, seen + 2 * height

    # -- which turns are here

    async def show(self, conversation: Conversation, at: Turn | None = None) -> None:
        """Show `conversation` from its newest turn, or around `at`.

        What stays of the conversation that is shown already is not drawn anew. Another conversation that is
        asked for before this one's turn comes is shown instead.
        """
        same = conversation is self._conversation
        self._conversation = conversation
        if not same:
            self._seen_from = self._new_lines = 0
        async with self._changing:
            if self._conversation is not conversation:
                return
            mounted = list(self.query(TurnView))
            kept = self._n_kept(mounted) if same else 0
            self._last = len(conversation.turns)
            if not kept or self._first + kept < self._last - PAGE:
                kept = 0
                self._first = self._start_of_page(at)
                if at is not None:
                    self._last = min(self._last, self._first + PAGE)
            await self._replace(mounted[kept:], self._first + kept)
        if at is None:
            self.anchor()
        else:
            await self._reveal(at)

    async def add(self, *turns: Turn) -> None:
        """Show turns that the conversation has just got, and follow them."""
        async with self._changing:
            ours = [turn for turn in turns if turn in self._conversation.turns and self.view(turn) is None]
            if not ours:
                return
            start, self._last = self._last, len(self._conversation.turns)
            self.anchor()
            if start < self._last - len(ours):  # the window is far above
                self._first = self._start_of_page(None)
                await self._replace(list(self.query(TurnView)), self._first)
            else:
                await self._replace([], start)
                await self._bound()

    def view(self, turn: Turn) -> TurnView | None:
        """Return the widget that shows `turn`, if it is mounted."""
        views = (child for child in reversed(self.children) if isinstance(child, TurnView))
        return next((view for view in views if view.turn is turn), None)

    def show_border(self, turn_id: int | None) -> None:
        """Draw a line before the turn of this id: the model does not see what is above it."""
        if self._seen_from != (turn_id or 0):
            self._seen_from = turn_id or 0
            self._show_marks()

    def _n_kept(self, mounted: list[TurnView]) -> int:
        """Return how many of the widgets, from the first, show what is still there."""
        line = self._conversation.turns[self._first :]
        pairs = enumerate(zip(mounted, line, strict=False))
        return next((n for n, (view, turn) in pairs if view.turn is not turn), min(len(mounted), len(line)))

    def _start_of_page(self, at: Turn | None) -> int:
        newest = max(0, len(self._conversation.turns) - PAGE)
        return newest if at is None else max(0, min(newest, self._index(at) - PAGE // 2))

    async def _replace(self, gone: list[TurnView], start: int) -> None:
        """Take `gone` away and mount what the window has from `start` on."""
        self._loading = True  # the place moves, but nobody scrolls
        views = [self._view(index) for index in range(start, self._last)]
        async with self.batch():
            if gone:
                await self.remove_children(gone)
            await self.mount_all(views, before="#later")
        for view in self.query(TurnView):
            view.show_place(self._place(view.turn))
        self._show_marks()
        self.call_after_refresh(self._loaded)

    def _loaded(self) -> None:
        self._loading = False

    async def _reveal(self, turn: Turn) -> None:
        """Mount `turn` if it is not, and scroll to it."""
        index = self._index(turn)
        if self._first - PAGE <= index < self._first:
            await self._extend(-1)
        elif self._last <= index < self._last + PAGE:
            await self._extend(1)
        if not self._first <= index < self._last:
            async with self._changing:
                self._first = self._start_of_page(turn)
                self._last = min(len(self._conversation.turns), self._first + PAGE)
                await self._replace(list(self.query(TurnView)), self._first)
                self.release_anchor()

        def bring() -> None:
            # Not before: a line that has just come below, the find bar, would have pushed the end away.
            self.release_anchor()
            if view := self.view(turn):
                tall = view.size.height > self.size.height
                self.scroll_to_widget(view, animate=False, immediate=True, top=tall)

        self.call_after_refresh(bring)

    async def _extend(self, direction: int) -> None:
        """Mount the page above or below the window, take away what is then too far, and stay in place."""
        async with self._changing:
            mounted = list(self.query(TurnView))
            n_turns = len(self._conversation.turns)
            if not mounted or (self._first == 0 if direction < 0 else self._last >= n_turns):
                self._loading = False
                return
            stays = mounted[0] if direction < 0 else mounted[-1]
            distance = stays.virtual_region.y - self.scroll_y
            self.release_anchor()
            too_many = max(0, len(mounted) + PAGE - MOST)
            if direction < 0:
                indices = range(max(0, self._first - PAGE), self._first)
                gone = mounted[len(mounted) - too_many :]
                self._first, self._last = indices.start, self._last - len(gone)
            else:
                indices = range(self._last, min(n_turns, self._last + PAGE))
                gone = mounted[:too_many]
                self._first, self._last = self._first + len(gone), indices.stop
            views = [self._view(index) for index in indices]
            where = {"after": "#earlier"} if direction < 0 else {"before": "#later"}
            await self.mount_all(views, **where)
            if gone:
                await self.remove_children(gone)
            self._show_marks()

        def keep_place() -> None:
            self.scroll_to(y=stays.virtual_region.y - distance, animate=False, immediate=True)
            self._loaded()

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
            self._show_marks()

    def _view(self, index: int) -> TurnView:
        turns = self._conversation.turns
        turn = turns[index]
        folded = index < len(turns) - UNFOLDED
        return TurnView(turn, folded=folded, place=self._place(turn), rows=self.rows_near)

    def _place(self, turn: Turn) -> str:
        """Return which of how many versions `turn` is, or ''."""
        ids = [sibling.id for sibling in self._conversation.siblings(turn)]
        return f"‹{ids.index(turn.id) + 1}/{len(ids)}›" if len(ids) > 1 and turn.id in ids else ""

    def _index(self, turn: Turn) -> int:
        return next((n for n, other in enumerate(self._conversation.turns) if other is turn), 0)

    # -- scrolling

    def follow(self) -> None:
        """Go to the newest line and stay there."""
        if self._last < len(self._conversation.turns):
            self.run_worker(self.show(self._conversation), group="follow", exclusive=True)
        else:
            self.anchor()
            self.scroll_end(animate=False)

    def watch_scroll_y(self, old: float, new: float) -> None:
        """Fetch turns when their place comes into view."""
        super().watch_scroll_y(old, new)
        cut = self._last < len(self._conversation.turns)
        if cut:
            self.release_anchor()  # Textual follows the end of what is mounted
        direction = -1 if new <= 0 < self._first and old > new else 0
        if cut and new >= self.max_scroll_y and new > old:
            direction = 1
        if direction and not self._loading:
            self._loading = True
            self.call_later(self._extend, direction)
        if self._new_lines and self.is_vertical_scroll_end:
            self._show_newer()

    def _count_new(self, old: Size, new: Size) -> None:
        if old.width == new.width and not self._loading and self._conversation.streaming is not None:
            self._new_lines = max(0, self._new_lines + new.height - old.height)
            self.call_after_refresh(self._show_newer)

    # -- lines around the turns

    def _show_marks(self) -> None:
        """Show what stands above, between and below the turns that are mounted."""
        if not self.query("#earlier"):  # the application is closing
            return
        n_turns = len(self._conversation.turns)
        earlier, later = self.query_one("#earlier", Words), self.query_one("#later", Words)
        earlier.set_class(not n_turns, "-welcome")
        earlier.display = not n_turns or self._first > 0
        words = _("▲ {n} earlier messages").format(n=self._first)
        earlier.update(Content(words) if n_turns else self._welcome)
        later.display = self._last < n_turns
        later.update(Content(_("▼ {n} later messages (^End)").format(n=n_turns - self._last)))
        self._show_unseen()
        self._show_newer()

    def _show_unseen(self) -> None:
        """Draw the line above which the model sees nothing, if it is in the window."""
        unseen = self.query_one("#unseen", Words)
        not_first = self._conversation.turns[1:]  # above the first there is nothing to see
        seen = next((turn for turn in not_first if turn.id == self._seen_from), None)
        views = [view for view in self.query(TurnView) if view.turn is seen]
        unseen.display = bool(views)
        if views:
            unseen.update(Content(_("▲ the model no longer sees what is above")))
            self.move_child(unseen, before=views[0])

    def _show_newer(self) -> None:
        """Show how many lines have come out of view."""
        if self.is_vertical_scroll_end:
            self._new_lines = 0
        newer = self.query_one("#newer", Words)
        newer.display = self._new_lines > 0
        if self._new_lines:
            text = _("▼ {n} new lines (^End)").format(n=self._new_lines)
            newer.update(Content.styled(f" {text} ", "$foreground on $panel"))
