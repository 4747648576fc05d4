"""The map of weight blocks: one widget, one cell a block, drawn line by line.

Knows cells, lines and the cursor; what a cell means comes from the report. Lines are made once for each of
their states and only those that changed are drawn again, so that the map costs little ten times a second.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from app.tiers.layout import (
    EIGHTHS,
    GUTTER,
    SKIPPED,
    Activity,
    Cell,
    MapLine,
    Use,
    map_lines,
    strip_groups,
    tier_of,
    worst,
)
from app.tiers.report import TierReport
from app.widgets.still import Still
from engine import BlockPlace, Tier

_STYLES: Final = {
    "V": "tier-map--vram",
    "R": "tier-map--ram",
    "S": "tier-map--ram-copied",
    "N": "tier-map--nvme",
    "D": "tier-map--nvme-copied",
}
_STAGED: Final = {"N": "R", "S": "V", "D": "V"}
"""The letters whose colours staged blocks have."""


class TierMap(Still):
    """Cells for all blocks; as a strip one line of layers, otherwise two lines for each run of layers."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "tier-map--label",
        "tier-map--ram",
        "tier-map--ram-copied",
        "tier-map--nvme",
        "tier-map--nvme-copied",
        "tier-map--vram",
        "tier-map--mixed",
        "tier-map--mixed-vram",
        "tier-map--moving",
        "tier-map--active",
        "tier-map--skipped",
        "tier-map--cursor",
    }
    DEFAULT_CSS = """
    TierMap { height: auto; width: 1fr; }
    TierMap > .tier-map--label { color: $muted; }
    TierMap > .tier-map--ram { color: $tier-ram; background: $tier-ram 16%; }
    TierMap > .tier-map--ram-copied { color: $tier-move; background: $tier-ram 16%; }
    TierMap > .tier-map--nvme-copied { color: $tier-move; background: $tier-nvme 12%; }
    TierMap > .tier-map--nvme { color: $tier-nvme; background: $tier-nvme 12%; }
    TierMap > .tier-map--vram { color: $tier-vram; background: $tier-vram 16%; }
    TierMap > .tier-map--mixed { color: $tier-nvme; background: $tier-ram 16%; }
    TierMap > .tier-map--mixed-vram { color: $tier-ram; background: $tier-vram 16%; }
    TierMap > .tier-map--moving { color: $tier-move; background: $tier-move 16%; text-style: bold; }
    TierMap > .tier-map--active { color: $background; background: $tier-active; text-style: bold; }
    TierMap > .tier-map--skipped { color: $tier-skip; background: $tier-skip 12%; }
    TierMap > .tier-map--cursor { color: $background; background: $primary; text-style: bold underline; }
    TierMap.-stale { opacity: 50%; }
    TierMap:ansi {
        & > .tier-map--ram, & > .tier-map--ram-copied, & > .tier-map--nvme, & > .tier-map--nvme-copied,
        & > .tier-map--vram, & > .tier-map--mixed, & > .tier-map--mixed-vram,
        & > .tier-map--skipped, & > .tier-map--moving { background: $background; }
        & > .tier-map--active { color: $foreground; background: $background; text-style: bold reverse; }
        & > .tier-map--cursor {
            color: $primary;
            background: $background;
            text-style: bold reverse underline;
        }
    }
    """

    class Chosen(Message):
        """The cursor is at another block."""

        def __init__(self, index: int) -> None:
            """Name the block by its index."""
            super().__init__()
            self.index = index

    def __init__(
        self, shape: Literal["strip", "map"] = "map", *, widest_cell: int = 1, cursor: bool = False
    ) -> None:
        """Draw nothing yet. Cells may be `widest_cell` columns wide; with `cursor` one can be chosen."""
        super().__init__()
        self.can_focus = cursor
        self._strip = shape == "strip"
        self._widest_cell = widest_cell
        self._blocks: tuple[BlockPlace, ...] = ()
        self._cells: tuple[Cell, ...] = ()
        self._lines: tuple[MapLine, ...] = ()
        self._laid_out: tuple[tuple[BlockPlace, ...], int] = ((), 0)
        self._keys: list[tuple[Cell | None, ...]] = []
        """What each line shows."""
        self._strips: dict[tuple[int, tuple[Cell | None, ...], int], Strip] = {}
        self._cursor: tuple[int, int] | None = None
        """Line and column of the chosen cell."""

    # -- what others say

    def show(self, report: TierReport) -> None:
        """Draw the lines that changed."""
        if report.cells is self._cells:
            return
        other = report.blocks is not self._blocks
        self._blocks, self._cells = report.blocks, report.cells
        if other:
            n_lines = len(self._lines)
            self._lay_out()
            self.refresh(layout=len(self._lines) != n_lines)
            return
        before, self._keys = self._keys, self._all_keys()
        for y, (old, new) in enumerate(zip(before, self._keys, strict=True)):
            if old != new:
                self.refresh(Region(0, y, self.content_size.width, 1))

    @property
    def chosen(self) -> int | None:
        """Index of the block at the cursor."""
        if self._cursor is None:
            return None
        line, column = self._cursor
        group = self._lines[line].groups[column]
        return group[0] if group else None

    @property
    def cursor_line(self) -> int:
        """Line of the chosen cell."""
        return 0 if self._cursor is None else self._cursor[0]

    def move(self, rows: int, columns: int) -> None:
        """Move the cursor; sideways it goes on in the run before or after, on the same kind of block."""
        if self._cursor is None:
            self._start_cursor()
            return
        line, column = self._cursor
        with_cells = [number for number, candidate in enumerate(self._lines) if candidate.groups]
        place = with_cells.index(line)
        if rows:
            place = min(max(place + rows, 0), len(with_cells) - 1)
            line = with_cells[place]
            column = min(column, len(self._lines[line].groups) - 1)
        column += columns
        if not 0 <= column < len(self._lines[line].groups):
            onward = with_cells[place + 1 :] if columns > 0 else with_cells[:place][::-1]
            kind = self._lines[line].label.strip()[-1:]
            same = [number for number in onward if self._lines[number].label.strip()[-1:] == kind]
            if not same:
                return
            line = same[0]
            column = 0 if columns > 0 else len(self._lines[line].groups) - 1
        self._put_cursor(line, column)

    # -- Textual

    def get_content_width(self, container: Size, viewport: Size) -> int:
        """As wide as there is room."""
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many lines as the map has at this width."""
        self._lay_out(width)
        return len(self._lines)

    def on_resize(self) -> None:
        """Cut the map into other lines."""
        self._lay_out()
        if self.can_focus and self._cursor is None:
            self._start_cursor()
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Choose the block under the pointer."""
        offset = event.get_content_offset(self)
        if not self.can_focus or offset is None or offset.y >= len(self._lines):
            return
        line = self._lines[offset.y]
        column = (offset.x - GUTTER) // line.cell_width
        if 0 <= column < len(line.groups) and line.groups[column]:
            self._put_cursor(offset.y, column)

    def notify_style_update(self) -> None:
        """Forget lines in the colours of another theme."""
        super().notify_style_update()
        self._strips.clear()

    def render_line(self, y: int) -> Strip:
        """Draw one line."""
        width = self.content_size.width
        if y >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        line, key = self._lines[y], self._keys[y]
        cursor = self._cursor[1] if self._cursor is not None and self._cursor[0] == y else -1
        known = self._strips.get((y, key, cursor))
        if known is None:
            if len(self._strips) > _MOST_STRIPS:
                self._strips.clear()
            known = self._draw(line, key, cursor, width)
            self._strips[y, key, cursor] = known
        return known

    # -- inside

    def _lay_out(self, width: int | None = None) -> None:
        width = self.content_size.width if width is None else width
        if (self._blocks, width) == self._laid_out:
            self._keys = self._all_keys()
            return
        at = self.chosen
        self._laid_out = (self._blocks, width)
        if self._strip:
            self._lines = (MapLine("", strip_groups(self._blocks, width)),) if self._blocks else ()
        else:
            self._lines = map_lines(self._blocks, width, self._widest_cell)
        self._keys = self._all_keys()
        self._strips.clear()
        self._cursor = None if at is None else self._find(at)

    def _all_keys(self) -> list[tuple[Cell | None, ...]]:
        cells = self._cells
        return [
            tuple(
                cells[group[0]] if len(group) == 1 else worst([cells[i] for i in group]) if group else None
                for group in line.groups
            )
            for line in self._lines
        ]

    def _draw(self, line: MapLine, key: tuple[Cell | None, ...], cursor: int, width: int) -> Strip:
        segments: list[Segment] = []
        if not self._strip:
            before = " " * (GUTTER - 1 - cell_len(line.label))
            label = set_cell_size(before + line.label, GUTTER - 1) + " "
            segments.append(Segment(label + line.ruler, self.get_component_rich_style("tier-map--label")))
        for column, one in enumerate(key):
            if one is None:
                segments.append(Segment(" " * line.cell_width, self.rich_style))
                continue
            style = self._style_of(one) if column != cursor else self._cursor_style()
            segments.append(Segment(_text_of(one, line.cell_width), style))
        return Strip(segments).adjust_cell_length(width, self.rich_style).simplify()

    def _style_of(self, one: Cell) -> Style:
        if one.activity is Activity.ACTIVE:
            return self.get_component_rich_style("tier-map--active")
        if one.activity is Activity.MOVING:
            return self.get_component_rich_style("tier-map--moving")
        if one.use is not Use.ALL:
            return self.get_component_rich_style("tier-map--skipped")
        if one.mixed and one.activity is Activity.STILL:
            style = "tier-map--mixed-vram" if tier_of(one.letter) is Tier.RAM else "tier-map--mixed"
            return self.get_component_rich_style(style)
        # What is staged is where it is computed, if only for a moment.
        letter = _STAGED.get(one.letter, one.letter) if one.activity is Activity.STAGED else one.letter
        return self.get_component_rich_style(_STYLES[letter])

    def _cursor_style(self) -> Style:
        return self.get_component_rich_style("tier-map--cursor")

    def _start_cursor(self) -> None:
        first = next((number for number, line in enumerate(self._lines) if line.groups), None)
        if first is not None:
            self._put_cursor(first, 0)

    def _put_cursor(self, line: int, column: int) -> None:
        self._cursor = (line, column)
        self.refresh()
        if (index := self.chosen) is not None:
            self.post_message(self.Chosen(index))

    def _find(self, index: int) -> tuple[int, int] | None:
        for number, line in enumerate(self._lines):
            for column, group in enumerate(line.groups):
                if index in group:
                    return number, column
        return None


_MOST_STRIPS: Final = 512
"""Kept lines; a pass repeats its states, so that most are met again."""


def _text_of(one: Cell, width: int) -> str:
    """A cell's text: its character, and where there is room the level of what moves beside its arrow."""
    if width == 1:
        return one.glyph
    if one.activity is Activity.MOVING:
        return ("↑" + EIGHTHS[one.eighths]).ljust(width)
    if one.skipped:
        return f"{SKIPPED}{one.letter}{SKIPPED}"[:width].center(width)
    return one.glyph.center(width) if width > 2 else one.glyph.ljust(width)
