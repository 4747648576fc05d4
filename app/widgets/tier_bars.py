"""A bar for each tier: what is used, of how much, and how many blocks. Draws what it is given."""

from __future__ import annotations

from typing import Final

from rich.cells import cell_len
from textual.content import Content
from textual.geometry import Size
from textual.visual import VisualType

from app.i18n import _
from app.tiers.report import TierReport, TierTotal
from app.tiers.words import bar_parts, size, tier_name, tier_numbers
from app.widgets.still import Still
from engine import Tier

_NAME: Final = 5
"""Columns of a tier's name."""
_WIDE: Final = 80
"""From this width on there is room for details."""


class TierBars(Still):
    """One line for each tier of this machine."""

    DEFAULT_CSS = """
    TierBars { height: auto; width: 1fr; }
    TierBars.-stale { opacity: 50%; }
    """

    def __init__(self, *, detailed: bool = False) -> None:
        """Draw nothing yet; `detailed` tells more where there is room."""
        super().__init__()
        self._detailed = detailed
        self._totals: tuple[TierTotal, ...] = ()

    def show(self, report: TierReport) -> None:
        """Draw these tiers."""
        if report.tiers != self._totals:
            other = len(report.tiers) != len(self._totals)
            self._totals = report.tiers
            self.refresh(layout=other)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """A line for each tier: none is wrapped, whatever width the lines were made for."""
        return len(self._totals)

    def render(self) -> VisualType:
        """Draw the lines."""
        width = self.content_size.width
        numbers = [self._numbers(total, width) for total in self._totals]
        # One room for all bars, with some to spare: numbers that grow do not move them.
        least = 50 if self._detailed and width >= _WIDE else 20
        room = max(4, width - _NAME - 1 - max([least, *map(cell_len, numbers)]))
        lines = zip(self._totals, numbers, strict=True)
        return Content("\n").join(_line(total, text, room).truncate(width) for total, text in lines)

    def _numbers(self, total: TierTotal, width: int) -> str:
        numbers = tier_numbers(total)
        if self._detailed and width >= _WIDE:
            numbers += _(" · blocks {size}").format(size=size(total.n_bytes))
            if total.ring:
                numbers += _(" · ring {size}").format(size=size(total.ring))
            if total.tier is Tier.VRAM:
                numbers += _(" · card {size}").format(size=size(total.whole))
        return numbers


def _line(total: TierTotal, numbers: str, room: int) -> Content:
    bar = bar_parts(total, room)
    colour = f"$tier-{total.tier.value}"
    return Content.assemble(
        (f"{tier_name(total.tier):<{_NAME}}", f"bold {colour}"),
        (bar.stays, colour),
        (bar.ring, colour),
        (bar.free, "$rule"),
        (bar.beyond, "$muted"),
        " ",
        numbers,
    )
