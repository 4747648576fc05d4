"""What happened to the weights: the last events with their times. Draws what it is given."""

from __future__ import annotations

from textual.content import Content
from textual.geometry import Size
from textual.visual import VisualType

from app.i18n import _
from app.live_reply import in_our_words
from app.sanitize import sanitize_line
from app.tiers.report import TierReport
from app.tiers.words import clock
from app.widgets.still import Still
from engine import TierEvent, TierEventKind


class EventLog(Still):
    """Events, the newest first; those that no longer fit below are the oldest."""

    DEFAULT_CSS = """
    EventLog { height: 1fr; width: 1fr; }
    EventLog.-all { height: auto; }
    """

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__()
        self._events: tuple[TierEvent, ...] = ()
        self._dropped = 0
        self._only: TierEventKind | None = None

    def show(self, report: TierReport) -> None:
        """Show the events of a report."""
        if (report.events, report.events_dropped) != (self._events, self._dropped):
            self._events, self._dropped = report.events, report.events_dropped
            self.refresh(layout=self.has_class("-all"))

    def filter(self, only: TierEventKind | None) -> None:
        """Show only events of one kind, or all."""
        self._only = only
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many lines as the events take."""
        return self._words(width).plain.count("\n") + 1

    def render(self) -> VisualType:
        """Draw the lines."""
        return self._words(self.content_size.width)

    def _words(self, width: int) -> Content:
        shown = (event for event in reversed(self._events) if self._only in (None, event.kind))
        lines = [_line(event, width) for event in shown]
        if not lines:
            lines = [Content.styled(_("nothing has happened yet"), "$muted")]
        if self._dropped:
            gone = _("{n} earlier events are gone").format(n=self._dropped)
            lines.append(Content.styled(gone, "$muted"))
        return Content("\n").join(lines)


def _line(event: TierEvent, width: int) -> Content:
    """One event; what does not fit goes on below its beginning."""
    mark = ("! ", "$warning") if event.kind is TierEventKind.WARNING else ("· ", "$muted")
    head = Content.assemble((clock(event), "$muted"), " ", mark)
    indent = head.cell_length
    text = Content(sanitize_line(in_our_words(event.text))).wrap(max(8, width - indent))
    return Content("\n" + " " * indent).join([Content.assemble(head, text[0]), *text[1:]])
