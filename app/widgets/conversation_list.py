"""The list of conversations, newest first, in groups by day. Knows titles and dates, not SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.i18n import _
from app.sanitize import sanitize_line
from app.store import ConversationInfo, SearchHit
from app.widgets.option_list import SteadyOptionList


class ConversationList(SteadyOptionList):
    """Shows conversations; Enter or a click opens one, d deletes it, r gives it another title."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d,delete", "delete", show=False),
        Binding("r", "rename", show=False),
    ]

    class Opened(Message):
        """A conversation was chosen."""

        def __init__(self, conversation_id: int) -> None:
            """Carry its id."""
            super().__init__()
            self.conversation_id = conversation_id

    class Deleted(Message):
        """A conversation is to be deleted."""

        def __init__(self, conversation_id: int) -> None:
            """Carry its id."""
            super().__init__()
            self.conversation_id = conversation_id

    class RenameAsked(Message):
        """A conversation is to have another title."""

        def __init__(self, conversation_id: int) -> None:
            """Carry its id."""
            super().__init__()
            self.conversation_id = conversation_id

    def __init__(self) -> None:
        """Create an empty list."""
        super().__init__(markup=False)
        self._open_id = 0
        self._marks: Mapping[int, str] = {}

    def show(
        self,
        entries: Sequence[ConversationInfo],
        open_id: int,
        today: date,
        marks: Mapping[int, str] | None = None,
    ) -> None:
        """Show `entries`, with the open one marked; `marks` by id: ● a reply grows, ✎ a draft waits."""
        self._open_id = open_id
        self._marks = marks or {}
        options: list[Option] = []
        group = ""
        for entry in entries:
            if (name := _group(entry.updated_at, today)) != group:
                group = name
                options.append(Option(Content.styled(name, "$muted"), disabled=True))
            options.append(self._option(entry.id, entry.title, persona=entry.persona))
        self._replace(options, _("no conversations yet"))

    def show_hits(self, hits: Iterable[SearchHit], open_id: int) -> None:
        """Show what a search found, with the words around it."""
        self._open_id = open_id
        options = [self._option(hit.conversation_id, hit.title, sanitize_line(hit.snippet)) for hit in hits]
        self._replace(options, _("nothing found"))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Say which conversation was chosen."""
        event.stop()
        self.post_message(self.Opened(int(event.option.id or 0)))

    def action_delete(self) -> None:
        """Ask for the highlighted conversation to be deleted."""
        if (conversation_id := self._highlighted_id) is not None:
            self.post_message(self.Deleted(conversation_id))

    def action_rename(self) -> None:
        """Ask for another title of the highlighted conversation."""
        if (conversation_id := self._highlighted_id) is not None:
            self.post_message(self.RenameAsked(conversation_id))

    @property
    def _highlighted_id(self) -> int | None:
        option = self.highlighted_option
        return int(option.id) if option is not None and option.id is not None else None

    def _option(self, conversation_id: int, title: str, snippet: str = "", persona: str = "") -> Option:
        is_open = conversation_id == self._open_id
        mark, style = ("▌", "bold") if is_open else (" ", "")
        # Before the title, where a narrow pane does not cut it off.
        waits = f"{self._marks[conversation_id]} " if conversation_id in self._marks else ""
        line = Content.assemble(
            (mark, "$primary"), (waits, "$accent"), (sanitize_line(title) or _("New conversation"), style)
        )
        if persona:
            line = Content.assemble(line, (f" · {sanitize_line(persona)}", "$muted"))
        if snippet:
            line = Content.assemble(line, "\n ", (snippet, "$muted"))
        return Option(line, id=str(conversation_id))

    def _replace(self, options: list[Option], if_empty: str) -> None:
        """Put `options` in place of the present ones.

        The highlight stays on its conversation for who moves in the list, else it is on the open one.
        """
        kept = self.highlighted_option if self.has_focus else None
        self.set_options(options or [Option(Content.styled(f" {if_empty}", "$muted"), disabled=True)])
        places = {option.id: place for place, option in enumerate(options) if option.id is not None}
        wanted = (kept.id if kept is not None else None, str(self._open_id), *places)
        self.highlighted = next((places[key] for key in wanted if key in places), None)


def _group(updated_at: int, today: date) -> str:
    day = datetime.fromtimestamp(updated_at / 1000).date()
    if day >= today:
        return _("Today")
    if day == today - timedelta(days=1):
        return _("Yesterday")
    return _("This week") if day > today - timedelta(days=7) else f"{day:%Y-%m}"
