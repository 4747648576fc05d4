"""The box where a message is written: Enter sends, ctrl+j makes a new line. Knows text only."""

from __future__ import annotations

from typing import Final
from unicodedata import category

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from app.sanitize import sanitize

_NEWLINE: Final = ("ctrl+j", "shift+enter", "alt+enter")


class Prompt(TextArea):
    """A text area that grows with its text and is sent with Enter."""

    class Submitted(Message):
        """Enter was pressed on a text that is not blank. The box keeps it until it is cleared."""

        def __init__(self, text: str) -> None:
            """Carry the text as written."""
            super().__init__()
            self.text = text

    class Scrolled(Message):
        """A key was pressed here that scrolls the conversation."""

        def __init__(self, direction: int) -> None:
            """Carry -1 for up and 1 for down."""
            super().__init__()
            self.direction = direction

    def __init__(self) -> None:
        """Create an empty box."""
        super().__init__(placeholder="Message", compact=True, highlight_cursor_line=False)

    async def _on_key(self, event: events.Key) -> None:
        """Take our keys before the text area sees them."""
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            if self.text.strip():
                self.post_message(self.Submitted(self.text))
        elif event.key in _NEWLINE:
            event.stop()
            event.prevent_default()
            self.insert("\n")
        elif event.character and category(event.character) == "Cf":
            # Textual takes no character without a picture of its own; emoji and Persian are joined by such.
            event.stop()
            event.prevent_default()
            self.insert(sanitize(event.character))

    async def _on_paste(self, event: events.Paste) -> None:
        """Clean what is pasted: it may come from anywhere."""
        event.prevent_default()
        event.stop()
        self.insert(sanitize(event.text.replace("\r\n", "\n").replace("\r", "\n")))

    def action_cursor_page_up(self) -> None:
        """Scroll the conversation: a message seldom has pages."""
        self.post_message(self.Scrolled(-1))

    def action_cursor_page_down(self) -> None:
        """Scroll the conversation."""
        self.post_message(self.Scrolled(1))
