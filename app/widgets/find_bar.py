"""One line to find words in the conversation on the screen. Knows words and counts, not turns."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from app.i18n import _
from app.sanitize import sanitize_line


class FindBar(Horizontal):
    """A field for words, and which of the places that have them is shown. Hidden until it is opened."""

    DEFAULT_CSS = """
    FindBar {
        display: none;
        height: 1;
        width: 100%;
        padding: 0 1;
        background: $surface;
        & > Static { width: auto; color: $muted; }
        & > Input { width: 1fr; height: 1; padding: 0 1; border: none; background: $panel; }
        & > Input:focus { background: $boost; background-tint: $primary 15%; border: none; }
    }
    """

    class Changed(Message):
        """Other words are searched for."""

        def __init__(self, words: str) -> None:
            """Carry them; '' for none."""
            super().__init__()
            self.words = words

    class Next(Message):
        """The next place is wanted."""

        def __init__(self, step: int) -> None:
            """Carry 1 for the one below and -1 for the one above."""
            super().__init__()
            self.step = step

    class Closed(Message):
        """The bar was left; the words are still those that were searched for."""

    def compose(self) -> ComposeResult:
        """Build the line."""
        yield Static(Content(_("Find")))
        yield Input(placeholder=_("words in this conversation"), compact=True, select_on_focus=False)
        yield Static(classes="count")

    def open(self, words: str = "") -> None:
        """Show the bar, with `words` if any, else with those of the last time, and go there."""
        self.display = True
        field = self.query_one(Input)
        if words:
            field.value = sanitize_line(words)
        elif field.value:
            self.post_message(self.Changed(field.value))
        field.cursor_position = len(field.value)
        field.focus()

    def close(self) -> None:
        """Hide the bar."""
        if self.display:
            self.display = False
            self.post_message(self.Closed())

    def show_count(self, place: int, count: int) -> None:
        """Show that the place `place` of `count` is in view."""
        words = self.query_one(Input).value.strip()
        text = f"  {place}/{count}" if count else "  " + _("nothing found")
        self.query_one(".count", Static).update(Content(text if words else ""))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search for what is typed."""
        event.stop()
        self.post_message(self.Changed(event.value))

    def on_key(self, event: events.Key) -> None:
        """Go on, back, or away."""
        match event.key:
            case "enter" | "down":
                self.post_message(self.Next(1))
            case "shift+enter" | "up":
                self.post_message(self.Next(-1))
            case "escape":
                self.close()
            case _:
                return
        event.stop()
        event.prevent_default()
