"""The whole map over the chat: every block with its details, the lanes, and all events.

Shows what the engine's snapshot says, ten times a second while it is open. Knows no engine: it is given a
function that returns the snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Region
from textual.widgets import Static

from app.i18n import _
from app.sanitize import sanitize_line
from app.screens.dialog import Dialog
from app.tiers.report import TierReport, TierWatch
from app.tiers.words import gpu_line, legend, row_legend, size, tier_name, why_no_map, why_there
from app.widgets.event_log import EventLog
from app.widgets.lanes import Lanes
from app.widgets.tier_bars import TierBars
from app.widgets.tier_map import TierMap
from engine import EngineSnapshot, TierEventKind

LOOK_S: Final = 0.1


class TiersScreen(Dialog[bool]):
    """Where every block is, why, and what moves."""

    CSS_PATH = "tiers.tcss"
    AUTO_FOCUS = ""  # it would scroll to the map, away from the bars
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(False)", "Close"),
        Binding("f4", "dismiss(True)", "Close, and the map with it"),
        Binding("up,k", "move(-1, 0)", "Row above"),
        Binding("down,j", "move(1, 0)", "Row below"),
        Binding("left,h", "move(0, -1)", "Block before"),
        Binding("right,l", "move(0, 1)", "Block after"),
        Binding("pageup", "page(-1)", "Page up"),
        Binding("pagedown", "page(1)", "Page down"),
        Binding("e", "filter", "Events"),
    ]

    def __init__(self, snapshot: Callable[[], EngineSnapshot], watch: TierWatch | None = None) -> None:
        """Show what `snapshot` returns; a watch that is shared has seen the last half minute."""
        super().__init__()
        self._look = snapshot
        self._watch = watch or TierWatch()
        self._report: TierReport | None = None
        self._only: TierEventKind | None = None

    def compose(self) -> ComposeResult:
        """Build the panel."""
        with VerticalScroll(id="tiers-panel", can_focus=False) as panel:
            panel.border_title = _("Tiers")
            panel.border_subtitle = _("Esc closes · arrows choose a block · e events")
            yield Static(id="tiers-missing")
            with Vertical(id="tiers-known"):
                yield Static(id="tiers-device")
                yield TierBars(detailed=True)
                yield TierMap(widest_cell=5, cursor=True)
                yield Static(id="tiers-legend")
                yield Static(id="tiers-block")
                with Vertical(id="tiers-below"):
                    yield Lanes()
                    with Vertical(id="tiers-events"):
                        yield Static(id="tiers-filter")
                        log = EventLog()
                        log.add_class("-all")
                        yield log

    def on_mount(self) -> None:
        """Look at once, and again while open."""
        self._show_filter()
        self.show(self._look())
        self.query_one(TierMap).focus(scroll_visible=False)
        self.set_interval(LOOK_S, lambda: self.show(self._look()))

    def show(self, snapshot: EngineSnapshot, now: float | None = None) -> None:
        """Show where everything is; `now` is `time.monotonic()`."""
        report = self._watch.feed(snapshot)
        self._show_age(report.age(time.monotonic() if now is None else now))
        if report is self._report:
            return
        self._report = report
        missing = why_no_map(report)
        self.query_one("#tiers-missing").display = bool(missing)
        self.query_one("#tiers-known").display = not missing
        self.query_one("#tiers-missing", Static).update(Content(missing))
        device = self.query_one("#tiers-device", Static)
        device.display = bool(gpu_line(report))
        device.update(Content(gpu_line(report)))
        self.query_one("#tiers-legend", Static).update(Content(f"{legend(report)}  {row_legend()}"))
        for widget in (
            *self.query(TierBars),
            *self.query(TierMap),
            *self.query(Lanes),
            *self.query(EventLog),
        ):
            widget.show(report)
        self._show_block()

    def action_move(self, rows: int, columns: int) -> None:
        """Go to another block."""
        self.query_one(TierMap).move(rows, columns)

    def action_page(self, pages: int) -> None:
        """Scroll where not everything has room."""
        panel = self.query_one("#tiers-panel")
        panel.scroll_relative(y=pages * max(1, panel.size.height - 2), animate=False)

    def action_filter(self) -> None:
        """Show all events, then moves, then warnings."""
        order = (None, TierEventKind.MOVE, TierEventKind.WARNING)
        self._only = order[(order.index(self._only) + 1) % len(order)]
        self.query_one(EventLog).filter(self._only)
        self._show_filter()

    @on(TierMap.Chosen)
    def _choose(self) -> None:
        self._show_block()
        # The line above it, which may be the numbers of the layers, and the next run stay in sight.
        top = self.query_one(TierMap).virtual_region.y + self.query_one(TierMap).cursor_line
        self.query_one("#tiers-panel").scroll_to_region(Region(0, top - 3, 1, 7), animate=False)

    def _show_block(self) -> None:
        """Say everything about the block at the cursor."""
        report, index = self._report, self.query_one(TierMap).chosen
        if report is None or index is None or index >= len(report.blocks):
            return
        block = report.blocks[index]
        whole = max(1, sum(each.n_bytes for each in report.blocks))
        facts = [
            sanitize_line(block.quantisation),
            size(block.n_bytes),
            _("{share} of the weights").format(share=f"{block.n_bytes / whole:.1%}"),
        ]
        self.query_one("#tiers-block", Static).update(
            Content.assemble(
                (sanitize_line(block.name), "bold"),
                ("  " + " · ".join(facts), "$muted"),
                "\n",
                (tier_name(block.tier), f"bold $tier-{block.tier.value}"),
                "  ",
                why_there(report, index),
            )
        )

    def _show_filter(self) -> None:
        names = ((None, _("all")), (TierEventKind.MOVE, _("moves")), (TierEventKind.WARNING, _("warnings")))
        parts = [(f"[{name}] " if only is self._only else f" {name}  ") for only, name in names]
        heading = Content.assemble((_("EVENTS") + "  ", "bold $muted"), ("".join(parts), "$muted"))
        self.query_one("#tiers-filter", Static).update(heading)

    def _show_age(self, age: float) -> None:
        panel = self.query_one("#tiers-panel")
        title = _("Tiers · {age} s old").format(age=f"{age:.0f}") if age else _("Tiers")
        if panel.border_title != title:
            panel.border_title = title
        for widget in (self.query_one(TierBars), self.query_one(TierMap), self.query_one(Lanes)):
            widget.set_class(age > 0, "-stale")
