"""Where the weights are, beside the conversation: a pane for wide terminals, three lines for narrow ones.

Both are given the engine's snapshot and nothing else; a watch that is shared keeps their past when one takes
the other's place. They have no timers: at idle nothing runs.
"""

from __future__ import annotations

import time

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from app.i18n import _
from app.tiers.report import TierReport, TierWatch
from app.tiers.words import (
    legend,
    limit_words,
    rate,
    row_legend,
    size,
    size_of,
    skipped_words,
    why_no_map,
)
from app.widgets.event_log import EventLog
from app.widgets.lanes import Lanes
from app.widgets.still import Words
from app.widgets.tier_bars import TierBars
from app.widgets.tier_map import TierMap
from engine import EngineSnapshot, EngineState, Tier


class TierPanel(Vertical):
    """The pane: bars, map, lanes, words, events."""

    DEFAULT_CSS = """
    TierPanel { width: 39; height: 100%; padding: 1 1 0 1; background: $surface; overflow: hidden; }
    TierPanel > Static { height: auto; width: 1fr; }
    TierPanel > .title { height: 1; }
    TierPanel > .gap { margin-top: 1; }
    TierPanel > .missing, TierPanel > .legend { color: $muted; }
    .-short TierPanel > .gap { margin-top: 0; }
    """

    def __init__(self, watch: TierWatch | None = None, *, id: str | None = None) -> None:
        """Show nothing yet."""
        super().__init__(id=id)
        self._watch = watch or TierWatch()
        self._shown: tuple[EngineSnapshot, float | None] = (EngineSnapshot(), None)
        self._missing = "?"

    def compose(self) -> ComposeResult:
        """Build the pane."""
        yield Words(classes="title")
        yield Words(classes="missing gap")
        for widget in (TierBars(), TierMap()):
            yield widget.add_class("gap")
        yield Words(classes="legend", id="tier-legend")
        yield Lanes().add_class("gap")
        yield Static(Content(_("EVENTS")), classes="legend gap")
        yield EventLog()

    def show(self, snapshot: EngineSnapshot, now: float | None = None) -> None:
        """Show where everything is; `now` is `time.monotonic()`."""
        self._shown = (snapshot, now)
        report = self._watch.feed(snapshot)
        age = report.age(time.monotonic() if now is None else now)
        missing = why_no_map(report)
        title = _title(report, age, self.content_size.width)
        self.query_one(".title", Words).update(title, layout=False)
        if missing != self._missing:
            self._missing = missing
            self.query_one(".missing", Words).update(Content(missing))
            for child in self.children[1:]:
                child.display = bool(missing) == child.has_class("missing")
        lines = filter(None, (legend(report), row_legend(), skipped_words(report)))
        self.query_one("#tier-legend", Words).update(Content("\n".join(lines)))
        for widget in (self.query_one(TierBars), self.query_one(TierMap), self.query_one(Lanes)):
            widget.set_class(age > 0, "-stale")
            widget.show(report)
        self.query_one(EventLog).show(report)

    def on_resize(self) -> None:
        """Show the same in the new width; nothing else may come for a while."""
        self.show(*self._shown)


class TierStrip(Vertical):
    """A line for the map and a line of numbers."""

    DEFAULT_CSS = """
    TierStrip { height: auto; width: 100%; padding: 0 1; }
    TierStrip > Static { height: 1; width: 1fr; }
    """

    def __init__(self, watch: TierWatch | None = None, *, id: str | None = None) -> None:
        """Show nothing yet."""
        super().__init__(id=id)
        self._watch = watch or TierWatch()
        self._shown: tuple[EngineSnapshot, float | None] = (EngineSnapshot(), None)

    def compose(self) -> ComposeResult:
        """Build the lines."""
        yield TierMap("strip")
        yield Words()

    def show(self, snapshot: EngineSnapshot, now: float | None = None) -> None:
        """Show where everything is; `now` is `time.monotonic()`."""
        self._shown = (snapshot, now)
        report = self._watch.feed(snapshot)
        age = report.age(time.monotonic() if now is None else now)
        tier_map = self.query_one(TierMap)
        tier_map.display = report.known
        tier_map.set_class(age > 0, "-stale")
        tier_map.show(report)
        self.query_one(Words).update(_numbers(report, age, self.content_size.width), layout=False)

    def on_resize(self) -> None:
        """Show the same in the new width; nothing else may come for a while."""
        self.show(*self._shown)


def _title(report: TierReport, age: float, width: int) -> Content:
    left = Content.styled(_("TIERS"), "bold $muted")
    if age > 0:
        right = Content.styled(_("x {age} s old").format(age=f"{age:.0f}"), "$warning")
    elif report.known and not report.settled:
        share = _("moving") if report.load_progress >= 1 else f"{report.load_progress:.0%}"
        words = _("● live") if report.generating else "◐"
        right = Content.assemble((words, "$success" if report.generating else "$warning"), f" {share}")
    elif report.generating:
        right = Content.styled(_("● live"), "$success")
    elif report.state is EngineState.LOADING:
        right = Content.styled(_("◐ loading"), "$warning")
    else:
        right = Content.styled(_("○ idle") if report.known else "", "$muted")
    return Content.assemble(left, " " * max(1, width - left.cell_length - right.cell_length), right)


def _numbers(report: TierReport, age: float, width: int) -> Content:
    """As many numbers as one line holds, the most telling ones first."""
    if missing := why_no_map(report):
        return Content.styled(missing, "$muted").truncate(width, ellipsis=True)
    parts: list[Content] = []
    if age > 0:
        parts.append(Content.styled(_("x {age} s old").format(age=f"{age:.0f}"), "$warning"))
    for total in report.tiers:
        amount = size(total.used) if total.tier is Tier.NVME else size_of(total.used, total.total)
        letter = (total.letter, f"bold $tier-{total.tier.value}")
        parts.append(Content.assemble(letter, f" {amount} {total.blocks}"))
    if report.skipped:
        parts.append(Content.assemble((_("skip "), "$muted"), f"{len(report.skipped)}"))
    parts += _link_numbers(report)
    parts.append(Content.styled(limit_words(report), "$muted"))
    line = Content("")
    for part in parts:
        longer = Content.assemble(line, "  " if line else "", part)
        if longer.cell_length <= width:
            line = longer
    return line


def _link_numbers(report: TierReport) -> list[Content]:
    """What comes over the links and how long it is waited for, the most telling ones first."""
    disk, copies, waits = [], [], []
    if report.streams:
        speed = rate(report.link.rate) if report.link.rate else _("idle")
        disk.append(Content.assemble(("n→r ", "$muted"), speed))
        if report.hit_rate is not None:
            disk.append(Content.assemble((_("hit "), "$muted"), f"{report.hit_rate:.0%}"))
    if report.copies is not None and report.copies.rate:
        copies.append(Content.assemble(("r→v ", "$muted"), rate(report.copies.rate)))
    if report.generating and report.stall_share is not None:
        waits.append(Content.assemble((_("waits "), "$muted"), f"{report.stall_share:.0%}"))
    # Where a GPU computes, what comes to it says more than what comes from the disk.
    return [*disk, *waits] if report.copies is None else [*copies, *waits, *disk]
