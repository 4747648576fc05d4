"""All keys and commands, and where things are kept. Made from the registry, so that it cannot fall behind.

Knows the registry, the person's keys and places; does nothing but show and search them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Input, Static

from app import locations
from app.actions import ACTIONS, Action
from app.i18n import _
from app.keymap import shown_key
from app.sanitize import sanitize_line
from app.screens.dialog import Dialog

_ROOMY: Final = 60
"""Cells from which the keys get a wide column."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the help, and what it can be found by."""

    key: str
    text: str
    slash: str = ""
    id: str = ""
    """What the key map file calls it."""

    def matches(self, words: list[str]) -> bool:
        """Whether every word occurs in it."""
        everything = f"{self.key} {self.text} {self.slash} {self.id}".casefold()
        return all(word in everything for word in words)


class HelpScreen(Dialog[None]):
    """A list of keys over the chat, searched by typing."""

    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1", "dismiss", "Close"),
        Binding("up", "scroll('scroll_up')", "Up"),
        Binding("down", "scroll('scroll_down')", "Down"),
        Binding("pageup", "scroll('page_up')", "Page up"),
        Binding("pagedown", "scroll('page_down')", "Page down"),
        Binding("ctrl+home", "scroll('scroll_home')", "First line"),
        Binding("ctrl+end", "scroll('scroll_end')", "Last line"),
    ]

    def compose(self) -> ComposeResult:
        """Build the panel."""
        with Vertical(id="help-panel") as panel:
            panel.border_title = _("Keys and commands")
            panel.border_subtitle = _("Up Down scroll · Esc close")
            yield Input(
                placeholder=_("type to search; names for keymap.toml too"), id="help-search", compact=True
            )
            with VerticalScroll(id="help-scroll", can_focus=False):
                yield Static(id="help-text")

    def action_scroll(self, how: str) -> None:
        """Scroll the list."""
        getattr(self.query_one("#help-scroll"), f"action_{how}")()

    @on(Input.Changed)
    def _search(self) -> None:
        self._show()
        self.query_one("#help-scroll").scroll_home(animate=False)

    def on_resize(self, event: Resize) -> None:
        """Break the lines again."""
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        width = self.query_one("#help-scroll").scrollable_content_region.width
        words = self.query_one(Input).value.casefold().split()
        lines: list[Content] = []
        for title, rows in _sections():
            if found := [row for row in rows if row.matches(words)]:
                lines += [Content(""), Content.styled(title, "bold $accent")]
                lines += [line for row in found for line in _lines(row, width, named=bool(words))]
        self.query_one("#help-text", Static).update(
            Content("\n").join(lines[1:]) if lines else Content(_("nothing found"))
        )


def _sections() -> Iterator[tuple[str, list[Row]]]:
    for group in dict.fromkeys(action.group for action in ACTIONS):
        yield _(group), [_row(action) for action in ACTIONS if action.group == group]
    places = (
        (_("settings"), locations.settings_file()),
        (_("key map"), locations.config_dir() / "keymap.toml"),
        (_("own themes"), locations.config_dir() / "themes"),
        (_("conversations"), locations.data_dir()),
        (_("models"), locations.models_dir()),
        (_("logs"), locations.log_dir()),
    )
    yield _("Places"), [Row(what, sanitize_line(str(where))) for what, where in places]


def _row(action: Action) -> Row:
    key = shown_key(action)
    slash = f"/{action.slash}" if action.slash else ""
    if action.argument:
        slash += f" {_(action.argument)}"
    id = action.id if action.method else ""  # other keys cannot be changed
    return Row(key, _(action.help), slash, id) if key else Row(slash, _(action.help), "", id)


def _lines(row: Row, width: int, *, named: bool) -> Iterator[Content]:
    """Yield a row on as many lines as it needs, the text in a column of its own; `named` adds its id."""
    column = 18 if width >= _ROOMY else 11
    parts = [f"  {part}" for part in (row.slash, row.id if named else "") if part]
    text = Content.assemble(row.text, ("".join(parts), "$muted"))
    wrapped = text.wrap(max(width - column, 8))
    key = Content.styled(row.key, "bold $primary")
    if key.cell_length >= column:
        yield key
        key = Content("")
    for part in wrapped:
        yield Content.assemble(key, " " * (column - key.cell_length), part)
        key = Content("")
