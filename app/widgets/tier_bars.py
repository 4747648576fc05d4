"""A bar for each tier: what is used, of how much, and how many blocks. Draws what it is given."""

from __future__ import annotations

from textual.content import Content
from textual.visual import VisualType
from textual.widget import Widget

from app.i18n import _
from app.tiers.report import TierReport, TierTotal
from app.tiers.words import bar_parts, size, tier_name, tier_numbers
from engine import Tier


class TierBars(Widget):
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

    def render(self) -> VisualType:
        """Draw the lines."""
        return Content("\n").join(self._line(total) for total in self._totals)

    def _line(self, total: TierTotal) -> Content:
        width = self.content_size.width
        numbers = tier_numbers(total)
        if self._detailed and width >= 80:
            numbers += _(" · blocks {size}").format(size=size(total.n_bytes))
            if total.tier is Tier.VRAM:
                numbers += _(" · card {size}").format(size=size(total.whole))
            if total.ring:
                numbers += _(" · ring {size}").format(size=size(total.ring))
        room = max(4, width - 6 - (50 if self._detailed and width >= 80 else 20))
        bar = bar_parts(total, room)
        colour = f"$tier-{total.tier.value}"
        line = Content.assemble(
            (f"{tier_name(total.tier):<5}", f"bold {colour}"),
            (bar.stays, colour),
            (bar.ring, colour),
            (bar.free, "$rule"),
            (bar.beyond, "$muted"),
            " ",
            numbers,
        )
        return line.truncate(width)
