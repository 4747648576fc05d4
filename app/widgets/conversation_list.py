"""The list of conversations, newest first, in groups by day. Knows titles and dates, not SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta

from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.sanitize import sanitize_line
from app.store import ConversationInfo, SearchHit
from app.widgets.option_list import SteadyOptionList


class ConversationList(SteadyOptionList):
    """Shows conversations; Enter or a click opens one."""

    class Opened(Message):
        """A conversation was chosen."""

        def __init__(self, conversation_id: int) -> None:
            """Carry its id."""
            super().__init__()
            self.conversation_id = conversation_id

    def __init__(self) -> None:
        """Create an empty list."""
        super().__init__(markup=False)
        self._open_id = 0

    def show(self, entries: Sequence[ConversationInfo], open_id: int, today: date) -> None:
        """Show `entries`, with the open one marked."""
        self._open_id = open_id
        options: list[Option] = []
        group = ""
        for entry in entries:
            if (name := _group(entry.updated_at, today)) != group:
                group = name
                options.append(Option(Content.styled(name, "$muted"), disabled=True))
            options.append(self._option(entry.id, entry.title))
        self._replace(options, "no conversations yet")

    def show_hits(self, hits: Iterable[SearchHit], open_id: int) -> None:
        """Show what a search found, with the words around it."""
        self._open_id = open_id
        options = [self._option(hit.conversation_id, hit.title, sanitize_line(hit.snippet)) for hit in hits]
        self._replace(options, "nothing found")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Say which conversation was chosen."""
        event.stop()
        self.post_message(self.Opened(int(event.option.id or 0)))

    def _option(self, conversation_id: int, title: str, snippet: str = "") -> Option:
        is_open = conversation_id == self._open_id
        mark, style = ("▌", "bold") if is_open else (" ", "")
        line = Content.assemble((mark, "$primary"), (sanitize_line(title), style))
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
        return "Today"
    if day == today - timedelta(days=1):
        return "Yesterday"
    return "This week" if day > today - timedelta(days=7) else day.strftime("%B %Y")
