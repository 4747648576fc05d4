"""What leaving blocks out does, as measured, and the choice of what is left out.

Knows the engine's snapshots; hands what was chosen to whoever opened the screen. One field holds the choice:
the table fills it, and what is typed there is looked up in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Region
from textual.widgets import Input, Static

from app.decoding_words import effect_words
from app.i18n import _
from app.sanitize import sanitize_line
from app.screens.dialog import Dialog
from app.skip_rows import SkipRow, block_names, cells_of, chosen_set, skip_rows
from engine import EngineSnapshot, SkipChoice, SkipRule, parse_skip

_POLL_S: Final = 0.5
_GAP: Final = 2
_LEAST_RULE: Final = 8


class SkipScreen(Dialog[str]):
    """Closes with a rule as it is typed, for `parse_skip`; with "" where nothing was chosen."""

    CSS_PATH = "skip.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "move(-8)", show=False),
        Binding("pagedown", "move(8)", show=False),
    ]

    def __init__(self, snapshot: Callable[[], EngineSnapshot], present: SkipChoice | None) -> None:
        """Ask `snapshot` for what is known of the loaded model; `present` is chosen now."""
        super().__init__()
        self._snapshot = snapshot
        self._present = present
        self._rows: list[SkipRow] = []
        self._seen = -1

    def compose(self) -> ComposeResult:
        """Build the panel."""
        with Vertical(id="skip-panel") as panel:
            panel.border_title = _("Layer skip")
            yield Static(id="skip-about")
            yield Static(id="skip-heading")
            with VerticalScroll(id="skip-scroll", can_focus=False):
                yield Static(id="skip-rows")
            yield Input("off" if self._present is None else str(self._present), id="skip-rule", compact=True)
            yield Static(id="skip-told")
            yield Static(
                _("↑↓ choose, or type a rule · Enter apply · Esc back"), id="skip-keys", markup=False
            )

    def on_mount(self) -> None:
        """Show what is known, and what is found out while this is open."""
        self.query_one(Input).focus()
        self._refresh()
        self.set_interval(_POLL_S, self._refresh)

    def action_leave(self) -> None:
        """Close and change nothing."""
        self.dismiss("")

    def action_move(self, by: int) -> None:
        """Go to another row of the table."""
        if not self._rows:
            return
        place = self._place
        place = (0 if by > 0 else len(self._rows) - 1) if place is None else place + by
        row = self._rows[min(max(place, 0), len(self._rows) - 1)]
        field = self.query_one(Input)
        field.value = row.rule
        field.cursor_position = len(field.value)

    def on_click(self) -> None:
        """Leave the cursor where one types."""
        self.query_one(Input).focus()

    def on_resize(self) -> None:
        """Cut the table for the new width."""
        self.call_after_refresh(self._show)

    @on(Input.Changed)
    def _typed(self) -> None:
        self._show()

    @on(Input.Submitted)
    def _apply(self, event: Input.Submitted) -> None:
        try:
            parse_skip(event.value)
        except ValueError:
            return  # the line that says so is there already
        self.dismiss(event.value)

    @property
    def _place(self) -> int | None:
        """The row that the field means, if it is one of the table."""
        text = self.query_one(Input).value.strip().lower()
        same = (place for place, row in enumerate(self._rows) if row.rule == text)
        if (exact := next(same, None)) is not None:
            return exact
        try:
            skipped = chosen_set(self._snapshot().calibration, parse_skip(text))
        except ValueError:
            return None
        return next((place for place, row in enumerate(self._rows) if row.skipped == skipped), None)

    def _refresh(self) -> None:
        snapshot = self._snapshot()
        if snapshot.seq != self._seen:
            self._seen = snapshot.seq
            self._rows = skip_rows(snapshot.calibration, snapshot.tiers, self._present)
            self._show()

    def _show(self) -> None:
        if not self.is_attached:
            return
        snapshot, place = self._snapshot(), self._place
        self.query_one("#skip-about", Static).update(_about(snapshot))
        width = self.query_one("#skip-rows").size.width
        lines = _table(self._rows, place, _n_blocks(snapshot), width)
        self.query_one("#skip-heading", Static).update(lines[0])
        self.query_one("#skip-rows", Static).update(Content("\n").join(lines[1:]))
        self.query_one("#skip-told", Static).update(self._told(snapshot))
        if place is not None:
            region = Region(0, place, 1, 1)
            self.query_one("#skip-scroll").scroll_to_region(region, animate=False)

    def _told(self, snapshot: EngineSnapshot) -> Content:
        """Say what the field means."""
        try:
            choice = parse_skip(self.query_one(Input).value)
        except ValueError as error:
            return Content.assemble(("✗ ", "$error"), sanitize_line(str(error)))
        if choice is None:
            return Content(_("All blocks are used: the text is exact."))
        calibration = snapshot.calibration
        skipped = chosen_set(calibration, choice)
        if skipped is None:
            return Content(_("Which blocks that means is measured with the next reply, and kept."))
        if not skipped:
            return Content(_("No set keeps to that: nothing is left out."))
        effect = calibration.effect(skipped) if calibration is not None else None
        told = _("approximate, measured with the next reply")
        if effect is not None:
            told = _("approximate, {effect}").format(effect=effect_words(effect))
        return Content.assemble((told, "$warning"), "\n", (block_names(skipped), "$muted"))


def _n_blocks(snapshot: EngineSnapshot) -> int:
    if snapshot.calibration is not None:
        return snapshot.calibration.n_blocks
    return 2 * snapshot.model.n_layers if snapshot.model is not None else 0


def _about(snapshot: EngineSnapshot) -> Content:
    words = _("Every pass leaves blocks out, of prompt and reply: faster, approximate.")
    calibration = snapshot.calibration
    if calibration is None or not calibration.serves(SkipRule.KL):
        known = _("Not measured yet: the first reply by a kl or cos rule does it, or `tiercel calibrate`.")
    else:
        known = _("Measured on {tokens:,} tokens: {text}.").format(
            tokens=calibration.tokens, text=sanitize_line(calibration.text)
        )
    return Content.assemble(words, "\n", (known, "$muted"))


def _table(rows: list[SkipRow], chosen: int | None, n_blocks: int, width: int) -> list[Content]:
    """Return heading and rows as lines of `width` cells; what has no room goes from the right."""
    names = (_("blocks"), _("saved"), "KL", _("perplexity, %"), _("top-1"))
    cells = [cells_of(row, n_blocks) for row in rows]
    widths = [max(cell_len(line[column]) for line in (names, *cells)) for column in range(len(names))]
    longest = max([_LEAST_RULE, *(cell_len(row.rule) for row in rows)])
    rule = max(_LEAST_RULE, min(longest, width - 2 - sum(each + _GAP for each in widths)))
    heading = _line(_("rule"), names, rule, widths)
    lines = [Content.styled("  " + heading, "$muted")]
    for place, (row, line) in enumerate(zip(rows, cells, strict=True)):
        mark, style = ("▸ ", "bold on $primary 20%") if place == chosen else ("  ", "")
        lines.append(Content.styled(mark + _line(row.rule, line, rule, widths), style))
    return [line.truncate(width, ellipsis=True) for line in lines]


def _line(rule: str, cells: tuple[str, ...], wide: int, widths: list[int]) -> str:
    shown = rule if cell_len(rule) <= wide else rule[: wide - 1] + "…"
    parts = [shown + " " * (wide - cell_len(shown))]
    parts += [" " * (width - cell_len(cell)) + cell for cell, width in zip(cells, widths, strict=True)]
    return (" " * _GAP).join(parts)
