"""Find a message in everything that was ever said: words, filters, results with their surroundings.

Knows the store's searches and the keys. Opening what was chosen is left to whoever opened the screen.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.background import in_thread
from app.i18n import _
from app.sanitize import sanitize, sanitize_line
from app.screens.dialog import Dialog
from app.store import SearchHit, Store, found_at
from app.widgets.option_list import SteadyOptionList

_DEBOUNCE_S: Final = 0.12
"""A pause in typing after which the search begins."""
_SAVING_S: Final = 1.0
"""How long to wait for what is still being saved; on a full disk it never is."""
_LIMIT: Final = 200
"""Results listed; who wants others types another word."""
_PREVIEW: Final = 4000
"""Characters of a message that are shown beside the list."""
_FOUND: Final = "bold underline"
_ROLES: Final = ("", "user", "assistant")


class _When(IntEnum):
    """How old a message may be, in days."""

    ANY = 0
    WEEK = 7
    MONTH = 30
    YEAR = 365


class HistoryScreen(Dialog[tuple[int, int] | None]):
    """Closes with the ids of the conversation and the message that were chosen, or None."""

    CSS_PATH = "history.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-beside")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back"),
        *(
            Binding(keys, f"move('{move}')", show=False, priority=True)
            for keys, move in (
                ("up", "cursor_up"),
                ("down", "cursor_down"),
                ("pageup", "page_up"),
                ("pagedown", "page_down"),
            )
        ),
        Binding("ctrl+r", "next_role", "Who", priority=True),
        Binding("ctrl+o", "this_model", "Model", priority=True),
        Binding("ctrl+t", "next_time", "When", priority=True),
        Binding("ctrl+e", "export", "Export", priority=True),
        Binding("ctrl+d", "delete", "Delete", priority=True),
        Binding("ctrl+z", "undo", "Undo", priority=True),
    ]

    def __init__(self, store: Store, query: str = "") -> None:
        """Search in `store`, beginning with `query`."""
        super().__init__()
        self._store = store
        self._wanted = query
        self._role = ""
        self._model = ""
        self._when = _When.ANY
        self._hits: list[SearchHit] = []
        self._deleted: list[SearchHit] = []
        """What was deleted here, one of each conversation, the last at the end."""

    @property
    def deleted(self) -> frozenset[int]:
        """The conversations that were deleted here and not brought back."""
        return frozenset(hit.conversation_id for hit in self._deleted)

    def compose(self) -> ComposeResult:
        """Build the panel."""
        with Vertical(id="history-panel") as panel:
            panel.border_title = _("History")
            yield Input(
                self._wanted,
                _("words to find; the last may be a beginning"),
                id="history-words",
                compact=True,
                select_on_focus=False,
            )
            yield Static(id="history-filters")
            with Horizontal(id="history-columns"):
                results = SteadyOptionList(id="history-results", markup=False)
                results.can_focus = False  # what is typed is always meant for the words
                yield results
                with VerticalScroll(id="history-side", can_focus=False):
                    yield Static(id="history-preview")
            yield Static(id="history-message")
            yield Static(Content(_keys()), id="history-keys")

    def on_mount(self) -> None:
        """Show the newest conversations, or what the first words find; what was just said is among it."""
        self._look(saving_s=_SAVING_S)

    @property
    def _results(self) -> OptionList:
        return self.query_one("#history-results", OptionList)

    @property
    def _words(self) -> str:
        return self.query_one("#history-words", Input).value

    @property
    def _chosen(self) -> SearchHit | None:
        place = self._results.highlighted
        return self._hits[place] if place is not None and place < len(self._hits) else None

    # -- keys

    def action_move(self, move: str) -> None:
        """Move in the results."""
        getattr(self._results, f"action_{move}")()

    def action_next_role(self) -> None:
        """Look at messages of everybody, of the person, of models."""
        self._role = _ROLES[(_ROLES.index(self._role) + 1) % len(_ROLES)]
        self._look()

    def action_this_model(self) -> None:
        """Look at replies of the model that wrote the highlighted one, or of any model again."""
        hit = self._chosen
        if self._model:
            self._model = ""
        elif hit is not None and hit.model:
            self._model = hit.model
        else:
            self._say(_("choose a reply first: then only replies of its model are listed"))
            return
        self._look()

    def action_next_time(self) -> None:
        """Look at messages of any time, of a week, a month, a year."""
        every = list(_When)
        self._when = every[(every.index(self._when) + 1) % len(every)]
        self._look()

    async def action_export(self) -> None:
        """Write the highlighted conversation to a new file in the folder where the program was started."""
        from app.store.export import export_beside_others

        hit = self._chosen
        if hit is None:
            return
        try:
            path = await in_thread(
                lambda: export_beside_others(self._store.load(hit.conversation_id), Path.cwd())
            )
        except (OSError, sqlite3.Error) as error:
            self._say(_("not exported: {error}").format(error=error), "✗ ")
            return
        self._say(_("exported to {path}").format(path=path), "✓ ")

    def action_delete(self) -> None:
        """Delete the highlighted conversation."""
        hit = self._chosen
        if hit is None:
            return
        self._store.delete_conversation(hit.conversation_id)
        self._deleted.append(hit)
        self._show(self._hits, self._results.highlighted or 0)  # the next one takes its place
        self._say(_("deleted: {title}; ^Z brings it back").format(title=hit.title))

    async def action_undo(self) -> None:
        """Bring back the conversation that was deleted last."""
        if not self._deleted:
            return
        hit = self._deleted.pop()
        self._store.delete_conversation(hit.conversation_id, deleted=False)
        await in_thread(lambda: self._store.flush(_SAVING_S))
        self._say(_("back again: {title}").format(title=hit.title), "✓ ")
        self._look()

    @on(Input.Submitted, "#history-words")
    def _choose(self) -> None:
        if (hit := self._chosen) is not None:
            self.dismiss((hit.conversation_id, hit.message_id))

    @on(OptionList.OptionSelected)
    def _choose_clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._choose()

    # -- looking

    @on(Input.Changed, "#history-words")
    def _typed(self) -> None:
        self._say("")
        self._look(_DEBOUNCE_S)

    def _look(self, pause: float = 0.0, saving_s: float = 0.0) -> None:
        # Exclusive: of two searches the first is given up, so its results cannot come later.
        self.run_worker(self._search(pause, saving_s), exclusive=True, group="look")

    async def _search(self, pause: float, saving_s: float) -> None:
        await asyncio.sleep(pause)
        words, role, model = self._words, self._role, self._model
        since = int((time.time() - self._when * 86_400) * 1000) if self._when else 0

        def search() -> list[SearchHit]:
            self._store.flush(saving_s)
            if not words.strip():
                return self._store.recent(role=role, model=model, since_ms=since, limit=_LIMIT)
            return self._store.search(
                words, role=role, model=model, since_ms=since, limit=_LIMIT, per_message=True
            )

        try:
            hits = await in_thread(search)
        except sqlite3.Error as error:
            self._say(_("the search failed: {error}").format(error=error), "✗ ")
            return
        self._show(hits)

    def _show(self, hits: list[SearchHit], place: int = 0) -> None:
        gone = self.deleted
        self._hits = [hit for hit in hits if hit.conversation_id not in gone]
        results = self._results
        width = max(20, results.size.width - 5)
        results.set_options([Option(_described(hit, self._words, width)) for hit in self._hits])
        results.highlighted = min(place, len(self._hits) - 1) if self._hits else None
        self.query_one("#history-filters", Static).update(self._filters())
        if not self._hits:
            self._preview(Content(""))

    @on(OptionList.OptionHighlighted)
    def _highlighted(self) -> None:
        if self.has_class("-beside"):
            self.run_worker(self._read(), exclusive=True, group="preview")

    def on_resize(self) -> None:
        """Fill the preview where there is room for one now."""
        self._highlighted()

    async def _read(self) -> None:
        hit = self._chosen
        if hit is None:
            return
        try:
            text = sanitize(await in_thread(lambda: self._store.text(hit.message_id)))
        except sqlite3.Error as error:
            text = str(error)
        found = found_at(text, self._words)
        start = max(0, found[0][0] - _PREVIEW // 4) if found else 0
        head = Content.assemble(
            (sanitize_line(hit.title), "bold"), "\n", (f"{_day(hit)} {_who(hit)}", "$muted"), "\n\n"
        )
        dots = "…" if start else ""
        self._preview(head + dots + _emphasised(text[start : start + _PREVIEW], self._words))
        self.query_one("#history-side").scroll_home(animate=False)

    # -- words

    def _filters(self) -> Content:
        who = {"": _("anybody"), "user": _("you"), "assistant": _("models")}[self._role]
        when = {
            _When.ANY: _("any time"),
            _When.WEEK: _("the last week"),
            _When.MONTH: _("the last month"),
            _When.YEAR: _("the last year"),
        }[self._when]
        model = sanitize_line(self._model) if self._model else _("any model")
        conversations = len({hit.conversation_id for hit in self._hits})
        counts = _("{messages} messages in {conversations} conversations")
        if not self._hits:
            counts = _("nothing found")
        elif not self._words.strip():
            counts = _("{conversations} conversations")
        elif len(self._hits) == _LIMIT:
            counts = _("the newest {messages} messages in {conversations} conversations")
        parts = [
            Content.styled(text, "bold $primary" if chosen else "$muted")
            for text, chosen in ((who, self._role), (model, self._model), (when, self._when))
        ]
        count = counts.format(messages=len(self._hits), conversations=conversations)
        return Content(" · ").join([*parts, Content.styled(count, "$muted")])

    def _say(self, text: str, mark: str = "") -> None:
        message = self.query_one("#history-message", Static)
        message.display = bool(text)
        message.update(
            Content.assemble((mark, "$error" if mark == "✗ " else "$success"), sanitize_line(text))
        )

    def _preview(self, content: Content) -> None:
        self.query_one("#history-preview", Static).update(content)


def _described(hit: SearchHit, words: str, width: int) -> Content:
    """Return two lines: where it is, and the words with what is around them."""
    text = sanitize_line(hit.snippet)
    found = found_at(text, words)
    start = found[0][0] - width // 3 if found else 0
    text = "…" + text[start:].removeprefix("…") if start > 0 else text
    where = Content.assemble(
        (_day(hit), "$muted"), "  ", sanitize_line(hit.title), ("  " + _who(hit), "$muted")
    )
    return where + "\n  " + _emphasised(text[:width], words)


def _day(hit: SearchHit) -> str:
    return datetime.fromtimestamp(hit.created_at / 1000).strftime("%Y-%m-%d")


def _who(hit: SearchHit) -> str:
    return _("you") if hit.role == "user" else sanitize_line(hit.model) or _("a model")


def _emphasised(text: str, words: str) -> Content:
    """Return a clean text with the words in it made to stand out, without colour too."""
    content = Content(text)
    for start, end in found_at(text, words):
        content = content.stylize(_FOUND, start, end)
    return content


def _keys() -> str:
    keys = (
        ("Enter", _("open")),
        ("^R", _("who")),
        ("^O", _("its model")),
        ("^T", _("when")),
        ("^E", _("export")),
        ("^D", _("delete")),
        ("Esc", _("back")),
    )
    return " · ".join(f"{key} {what}" for key, what in keys)
