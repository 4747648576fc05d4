"""The whole map over the chat: every block with its details, the lanes, and all events.

Shows what the engine's snapshot says, ten times a second while it is open. Knows no engine: it is given a
function that returns the snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Final, NamedTuple

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
from app.tiers.words import (
    gpu_line,
    legend,
    row_legend,
    settling_words,
    size,
    skipped_words,
    tier_name,
    wait_words,
    why_no_map,
    why_there,
)
from app.widgets.event_log import EventLog
from app.widgets.lanes import Lanes
from app.widgets.tier_bars import TierBars
from app.widgets.tier_map import TierMap
from engine import EngineSnapshot, Tier, TierEventKind

LOOK_S: Final = 0.1


class _Asked(NamedTuple):
    """A tier that was asked for and that nothing has been heard of since."""

    block: int
    tier: Tier | None
    n_events: int

    def answered(self, report: TierReport) -> bool:
        """Whether the block is there, or an event says what came of it."""
        there = self.block < len(report.blocks) and report.blocks[self.block].tier is self.tier
        return there or _n_events(report) != self.n_events

    @property
    def words(self) -> str:
        """What was asked for."""
        if self.tier is None:
            return _("left to the plan")
        return _("{tier} is asked for").format(tier=tier_name(self.tier))


def _n_events(report: TierReport) -> int:
    return report.events_dropped + len(report.events)


class _Panel(VerticalScroll, inherit_bindings=False):
    """Scrolls, but leaves the arrows to the map."""


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
        Binding("v", "pin('vram')", "Keep in video memory"),
        Binding("r", "pin('ram')", "Keep in memory"),
        Binding("n", "pin('nvme')", "Leave on disk"),
        Binding("u", "pin('')", "Leave to the plan"),
    ]

    def __init__(
        self,
        snapshot: Callable[[], EngineSnapshot],
        watch: TierWatch | None = None,
        *,
        pin: Callable[[int, Tier | None], None],
    ) -> None:
        """Show what `snapshot` returns; a watch that is shared has seen the last half minute.

        `pin` is told which block is to have which tier, None leaving it to the plan; not without a GPU.
        """
        super().__init__()
        self._look = snapshot
        self._pin = pin
        self._asked: _Asked | None = None
        self._watch = watch or TierWatch()
        self._report: TierReport | None = None
        self._only: TierEventKind | None = None

    def compose(self) -> ComposeResult:
        """Build the panel."""
        with _Panel(id="tiers-panel", can_focus=False) as panel:
            panel.border_title = _("Tiers")
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
        if self._asked is not None and self._asked.answered(report):
            self._asked = None
        self._show_keys()
        missing = why_no_map(report)
        self.query_one("#tiers-missing").display = bool(missing)
        self.query_one("#tiers-known").display = not missing
        self.query_one("#tiers-missing", Static).update(Content(missing))
        device = self.query_one("#tiers-device", Static)
        told = " · ".join(
            filter(
                None,
                (
                    gpu_line(report),
                    settling_words(settled=report.settled, progress=report.load_progress),
                    skipped_words(report),
                ),
            )
        )
        device.display = bool(told)
        device.update(Content(told))
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

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Have no keys for moving blocks where there is only one place for them."""
        return action != "pin" or (self._report is not None and self._report.gpu is not None)

    def action_pin(self, tier: str) -> None:
        """Keep the chosen block in a tier, or leave it to the plan again."""
        index = self.query_one(TierMap).chosen
        if index is None or self._report is None:
            return
        wanted = Tier(tier) if tier else None
        self._asked = _Asked(index, wanted, _n_events(self._report))
        self._pin(index, wanted)
        self._show_block()

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
            *filter(None, [wait_words(report, index)]),
        ]
        asked = self._asked.words if self._asked is not None and self._asked.block == index else ""
        self.query_one("#tiers-block", Static).update(
            Content.assemble(
                (sanitize_line(block.name), "bold"),
                ("  " + " · ".join(facts), "$muted"),
                "\n",
                (tier_name(block.tier), f"bold $tier-{block.tier.value}"),
                "  ",
                why_there(report, index),
                (f"  …{asked}" if asked else "", "$warning"),
            )
        )

    def _show_keys(self) -> None:
        keys = _("Esc closes · arrows choose a block · e events")
        if self._report is not None and self._report.gpu is not None:
            keys = _("Esc closes · arrows choose a block · v r n keep it there, u not · e events")
        panel = self.query_one("#tiers-panel")
        if panel.border_subtitle != keys:
            panel.border_subtitle = keys

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
