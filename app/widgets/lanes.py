"""What is under way: a lane for each link between tiers, one for the processors, one for the speed.

Each has the last half minute as a curve at a fixed scale, a number and, where something moves, what it is.
Draws what it is given.
"""

from __future__ import annotations

from textual.content import Content
from textual.geometry import Size
from textual.visual import VisualType

from app.i18n import _
from app.tiers.history import sparkline
from app.tiers.report import Compute, Link, TierReport
from app.tiers.words import (
    limit_words,
    link_words,
    moving_words,
    now_words,
    plan_words,
    prompt_words,
    short_name,
    speed_words,
    waiting_words,
)
from app.widgets.still import Still
from engine import Executor

_LABEL = 10


class Lanes(Still):
    """The lanes, and below them what a pass waits for and what limits the speed, in words."""

    DEFAULT_CSS = """
    Lanes { height: auto; width: 1fr; }
    Lanes.-stale { opacity: 50%; }
    """

    def __init__(self) -> None:
        """Draw nothing yet."""
        super().__init__()
        self._report: TierReport | None = None

    def show(self, report: TierReport) -> None:
        """Draw this report."""
        if report is not self._report:
            before, self._report = self._report, report
            self.refresh(layout=before is None or _shape(before) != _shape(report))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many lines as there are: none is wrapped, whatever width they were made for."""
        return len(self._lines(width))

    def render(self) -> VisualType:
        """Draw the lines."""
        width = self.content_size.width
        return Content("\n").join(line.truncate(width, ellipsis=True) for line in self._lines(width))

    def _lines(self, width: int) -> list[Content]:
        report = self._report
        if report is None or not report.known:
            return []
        lines: list[Content] = []
        if report.reads:
            lines += _link("NVMe→RAM", "$tier-nvme", report, report.link, width)
        if report.copies is not None:
            lines += _link("RAM→VRAM", "$tier-vram", report, report.copies, width)
        lines += self._compute(report, report.compute, width)
        top = max(*report.tok_s_history, report.now_tok_s, report.predicted_tok_s or 0.0, 0.0)
        lines.append(_lane(_("speed"), report.tok_s_history, top, "$primary", now_words(report), width))
        told = (speed_words(report), prompt_words(report), plan_words(report))
        lines += [Content.styled(words, "$muted") for words in told if words]
        lines.append(Content(waiting_words(report)))
        lines.append(Content.assemble((_("limit "), "$muted"), limit_words(report)))
        return lines

    def _compute(self, report: TierReport, compute: Compute, width: int) -> list[Content]:
        busy = _("idle")
        if report.generating:
            busy = _("{busy} of {cores} cores").format(busy=f"{compute.busy:.1f}", cores=compute.cores)
        lane = _lane("CPU", compute.history, float(compute.cores), "$tier-ram", busy, width)
        if not (report.streams or report.pass_copy_bytes):
            return [lane]
        return [lane, Content.assemble(" " * _LABEL, _active(report, compute.active))]


def _active(report: TierReport, index: int | None) -> Content:
    """The block that is computed from a ring, which need not be by the processor."""
    if index is None:
        return Content.styled("·", "$muted")
    block = report.blocks[index]
    where = "" if block.executor is Executor.CPU else " · " + _("on the GPU")
    return Content.assemble(("▶ ", "bold"), short_name(block), where)


def _shape(report: TierReport) -> tuple[bool, ...]:
    """What decides how many lines there are."""
    lanes = (report.known, report.streams, report.reads, report.copies is not None)
    return (*lanes, bool(prompt_words(report)), bool(plan_words(report)))


def _link(name: str, colour: str, report: TierReport, link: Link, width: int) -> list[Content]:
    lane = _lane(name, link.history, link.ceiling or 0.0, colour, link_words(link), width)
    if moving := moving_words(report, link):
        mark = ("↑ ", "$tier-move") if link.moving else ("", "")
        return [lane, Content.assemble(" " * _LABEL, mark, moving)]
    return [lane, Content.styled(" " * _LABEL + "·", "$muted")]


def _lane(
    label: str, history: tuple[float, ...], top: float, colour: str, number: str, width: int
) -> Content:
    room = min(60, max(6, width - _LABEL - 18))
    curve = sparkline(history, top, room)
    name = Content(label)
    return Content.assemble(
        name, " " * max(1, _LABEL - name.cell_length), (curve, f"{colour} on $panel"), " ", number
    )
