"""The box where a message is written: Enter sends, ctrl+j makes a new line, up brings back what was sent.

Large pastes are folded into a chip such as `[paste 214 lines]`. Knows text, names of files and of commands;
who sends the message reads the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from unicodedata import category

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import TextArea

from app.attachments import (
    complete_path,
    is_large,
    mention_of,
    names_file,
    pack_draft,
    paste_name,
    unpack_draft,
)
from app.background import in_thread
from app.conversation import Attachment
from app.i18n import _
from app.sanitize import sanitize
from app.slash import complete
from app.widgets.completion_list import Choice, CompletionList

_NEWLINE: Final = ("ctrl+j", "shift+enter", "alt+enter")
_PATH: Final = re.compile(r'(?<!\S)@"?([^\s"]*)\Z')
"""The path that is being typed at the end of a text."""


class Prompt(TextArea):
    """A text area that grows with its text and is sent with Enter."""

    class Submitted(Message):
        """Enter was pressed on a text that is not blank. The box keeps it until it was sent."""

        def __init__(self, text: str, attachments: Sequence[Attachment] = ()) -> None:
            """Carry the text as written and what is here of what goes with it; files are not read yet."""
            super().__init__()
            self.text = text
            self.attachments = tuple(attachments)

    class Scrolled(Message):
        """A key was pressed here that scrolls the conversation."""

        def __init__(self, direction: int) -> None:
            """Carry -1 for up and 1 for down."""
            super().__init__()
            self.direction = direction

    def __init__(self) -> None:
        """Create an empty box."""
        super().__init__(placeholder=_("Message"), compact=True, highlight_cursor_line=False)
        self.cursor_blink = False  # nearly all that an idle application does would be blinking
        self.completions = CompletionList(self._accept)
        """Stands above the box."""
        self._parts: dict[str, Attachment] = {}
        """Pastes, and files of a message that is edited, by name; those whose name is gone do not count."""
        self._sent: list[str] = []
        """Drafts of what was sent, newest first."""
        self._place = 0
        """Where in `_sent` we are, from 1; 0 is what was not sent yet."""
        self._edited: dict[int, str] = {}
        """Drafts as they were left, by place."""
        self._recalled: tuple[str, tuple[int, int]] | None = None
        """Text and cursor as they were brought back: while unchanged, up and down go on."""
        self._word = ""
        """What completions were offered for last, or were closed for."""

    def on_mount(self) -> None:
        """Give the completions their place."""
        if isinstance(self.parent, Widget):
            self.parent.mount(self.completions, before=self)

    # -- the message

    @property
    def attachments(self) -> list[Attachment]:
        """What goes with the text and is here already: pastes, and files of a message that is edited."""
        text = self.text
        here = [
            part
            for part in self._parts.values()
            if (names_file(text, part.name) if part.kind == "file" else part.name in text)
        ]
        return sorted(here, key=lambda part: text.index(part.name))

    @property
    def pastes(self) -> list[Attachment]:
        """The pastes that stand folded in the text."""
        return [part for part in self.attachments if part.kind == "paste"]

    @property
    def draft(self) -> str:
        """What is not sent yet, pastes included, as one string for `restore`."""
        here = pack_draft(self.text, self.attachments)
        if self._place and here == self._sent[self._place - 1]:  # only looked at
            return self._edited.get(0, "")
        return here

    def restore(self, draft: str) -> None:
        """Show what `draft` was made of."""
        if draft != self.draft:  # else the cursor stays where it is
            self.load_message(*unpack_draft(draft))

    def load_message(self, text: str, attachments: Iterable[Attachment]) -> None:
        """Show a message to be edited; files that came with it go again as they were."""
        self._place = 0
        self._edited.clear()
        self._fill(text, attachments)

    def sent(self, text: str) -> None:
        """Empty the box: its message was sent as `text` and joins those before it."""
        draft = pack_draft(text, self.attachments)
        self._sent = [draft, *(other for other in self._sent if other != draft)]
        self.load_message("", ())

    def set_history(self, sent: Sequence[str]) -> None:
        """Take the messages that were sent in earlier runs, newest first."""
        known = set(self._sent)
        self._sent += [text for text in map(sanitize, sent) if text not in known]

    def show_cost(self, cost: str) -> None:
        """Show what the message will take of the context, in the lower border."""
        self.border_subtitle = Content(cost) if cost else None

    def _fill(self, text: str, attachments: Iterable[Attachment]) -> None:
        self._parts = {part.name: part for part in attachments}
        self._word = ""
        self.completions.offer([])
        self.load_text(sanitize(text))
        self.move_cursor(self.document.end)

    # -- keys

    async def _on_key(self, event: events.Key) -> None:
        """Take our keys before the text area sees them."""
        if self._steer(event.key):
            event.stop()
            event.prevent_default()
        elif event.key == "enter":
            event.stop()
            event.prevent_default()
            if self.text.strip():
                self.post_message(self.Submitted(self.text, self.attachments))
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
        """Clean what is pasted: it may come from anywhere. Fold what is large."""
        event.prevent_default()
        event.stop()
        text = sanitize(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        if is_large(text):
            name = paste_name(text, self._parts)
            self._parts[name] = Attachment("paste", name, text)
            text = name
        if self.selected_text:
            self.delete(*self.selection)
        self.insert(text)

    def action_delete_left(self) -> None:
        """Delete the character before the cursor, or the whole chip."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        chip = next((part.name for part in self.pastes if before.endswith(part.name)), "")
        if chip and self.selection.is_empty:
            self.delete((row, column - len(chip)), (row, column))
        else:
            super().action_delete_left()

    def action_cursor_up(self, select: bool = False) -> None:
        """Move up; from the first line to the message sent before."""
        at_edge = self.wrapped_document.location_to_offset(self.cursor_location).y == 0
        if select or not (at_edge or self._walking) or not self._recall(1):
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Move down; from the last line to the message sent after, and at last to what was not sent."""
        offset = self.wrapped_document.location_to_offset(self.cursor_location)
        at_edge = offset.y == self.wrapped_document.height - 1
        if select or not (at_edge or self._walking) or not self._recall(-1):
            super().action_cursor_down(select)

    def action_cursor_page_up(self) -> None:
        """Scroll the conversation: a message seldom has pages."""
        self.post_message(self.Scrolled(-1))

    def action_cursor_page_down(self) -> None:
        """Scroll the conversation."""
        self.post_message(self.Scrolled(1))

    # -- messages sent before

    @property
    def _walking(self) -> bool:
        """Whether nothing was touched since a message was brought back."""
        return self._recalled == (self.text, self.cursor_location)

    def _recall(self, step: int) -> bool:
        """Show the message `step` places further back; False when there is none."""
        place = self._place + step
        if not 0 <= place <= len(self._sent):
            return False
        self._edited[self._place] = pack_draft(self.text, self.attachments)
        self._place = place
        self._fill(*unpack_draft(self._edited.get(place) or (self._sent[place - 1] if place else "")))
        self._recalled = (self.text, self.cursor_location)
        return True

    # -- completion

    async def on_text_area_changed(self) -> None:
        """Offer completions of the word that was typed."""
        await self._offer()

    async def on_text_area_selection_changed(self) -> None:
        """Offer completions of the word at which the cursor arrived."""
        await self._offer()

    async def _offer(self) -> None:
        word = self._word_at_cursor()
        if word == self._word or self._walking:
            return
        self._word = word
        if word.startswith("@"):
            self.run_worker(self._offer_paths(word), group="complete", exclusive=True)
        else:
            known = complete(word) if word else []
            choices = [Choice(f"/{action.slash}", _(action.help)) for action in known]
            self.completions.offer(choices)

    async def _offer_paths(self, word: str) -> None:
        typed = word[1:].lstrip('"')
        paths = await in_thread(lambda: complete_path(typed, Path.cwd()))
        if word == self._word:  # else another one is typed by now
            choices = [Choice(mention_of(path), done=not path.endswith("/")) for path in paths]
            self.completions.offer([] if typed in paths else choices)

    def _word_at_cursor(self) -> str:
        """Return the beginning of a command or a path that ends at the cursor, or ''."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        if not self.selection.is_empty:
            return ""
        if row == 0 and before.startswith("/"):
            return "" if " " in before else before
        match = _PATH.search(before)
        return match[0] if match else ""

    def _steer(self, key: str) -> bool:
        """Use `key` for the completions; False when it is not for them."""
        choice = self.completions.choice
        if choice is None:
            return False
        match key:
            case "up" | "down":
                self.completions.move(1 if key == "down" else -1)
            case "escape":
                self.completions.offer([])
            case "tab":
                self._accept(choice)
            case "enter" if self._word == self._word_at_cursor() != choice.insert:  # else typed too quickly
                self._accept(choice)
            case _:
                return False
        return True

    def _accept(self, choice: Choice) -> None:
        """Put `choice` in the place of the word at the cursor."""
        row, column = self.cursor_location
        start = (row, column - len(self._word_at_cursor()))
        inserted = choice.insert.removesuffix('"') if not choice.done else choice.insert + " "
        self.completions.offer([])
        self.replace(inserted, start, (row, column), maintain_selection_offset=False)
        self.focus()
