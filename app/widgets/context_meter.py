"""How full the context is and with what, as a bar of patterns that reads without colour, and as words.

Shows what it is given; counts nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from textual.content import Content

from app.context_use import ContextUse
from app.i18n import _
from app.widgets.still import Still
from engine import Overflow


class _Part(NamedTuple):
    """One use of the context: how it is drawn and called."""

    glyph: str
    style: str
    name: str
    tokens: int


def _parts(use: ContextUse) -> list[_Part]:
    return [
        _Part("▓", "$accent", _("sys"), use.system),
        _Part("━", "$primary", _("hist"), use.history),
        _Part("═", "$secondary", _("files"), use.attachments),
        _Part("▪", "$success", _("reply"), use.reply),
        _Part("╌", "$muted", _("kept"), use.reserve),
    ]


def context_bar(use: ContextUse, width: int) -> Content:
    """Return a bar of `width` cells; what is there at all gets a cell at least, where there are enough."""
    parts = [*_parts(use), _Part("·", "$rule", "", use.free)]
    cells = shares([part.tokens for part in parts], width)
    return Content.assemble(*((part.glyph * n, part.style) for part, n in zip(parts, cells, strict=True)))


def shares(amounts: list[int], cells: int) -> list[int]:
    """Divide `cells` in proportion; no amount above 0 goes without while there are cells for all."""
    total = sum(amounts)
    if not total:
        return [0] * (len(amounts) - 1) + [cells]
    present = [amount > 0 for amount in amounts]
    least = 1 if sum(present) <= cells else 0
    rest = cells - least * sum(present)
    exact = [amount * rest / total for amount in amounts]
    given = [int(share) + least * there for share, there in zip(exact, present, strict=True)]
    order = sorted(range(len(amounts)), key=lambda place: int(exact[place]) - exact[place])
    for place in order[: cells - sum(given)]:
        given[place] += 1
    return given


def context_line(use: ContextUse, width: int) -> Content:
    """Return how full the context is, as much of it as a line of `width` cells allows."""
    used = f"{_about(use)}{use.used:,} / {use.total:,}"
    left = f"{use.share:.0%}"
    style = _style(use)
    bar = 16 if width >= 70 else 6
    name = (_("context") + " ", "$muted") if width >= 50 else ""
    return Content.assemble(name, context_bar(use, bar), (f" {left}", style), (f" {used}", style or "$muted"))


def legend(use: ContextUse, width: int) -> Content:
    """Return the parts with their marks, such as `▓ sys 212 · ━ hist 5,391`, in lines of `width` cells."""
    shown = [part for part in _parts(use) if part.tokens or part.glyph in "▓━"]
    words = [Content.assemble((part.glyph, part.style), f" {part.name} {part.tokens:,}") for part in shown]
    words.append(Content(f"{_('free')} {use.free:,}"))
    dot = Content.styled(" · ", "$muted")
    lines: list[Content] = []
    for word in words:
        if lines and lines[-1].cell_length + dot.cell_length + word.cell_length <= width:
            lines[-1] = lines[-1] + dot + word
        else:
            lines.append(word)
    return Content("\n").join(lines)


def when_full(overflow: Overflow, use: ContextUse) -> str:
    """Return what happens, or has happened, when the context is full."""
    if overflow is Overflow.STOP:
        return _("full: the reply stops")
    if use.dropped:
        return _("{n} oldest messages left out").format(n=use.dropped)
    return _("full: drops the oldest turns")


def _about(use: ContextUse) -> str:
    return "" if use.exact else "~"


def _style(use: ContextUse) -> str:
    return "$error" if use.share >= 0.95 else "$warning" if use.share >= 0.8 else ""


class ContextMeter(Still):
    """The meter of the sidebar: heading, bar, legend, and what happens when it is full."""

    DEFAULT_CSS = """
    ContextMeter { height: auto; width: 100%; }
    """

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__()
        self._use = ContextUse()
        self._overflow = Overflow.DROP_OLDEST

    def show(self, use: ContextUse, overflow: Overflow) -> None:
        """Show this."""
        if (use, overflow) != (self._use, self._overflow):
            before = self.render().plain.count("\n")
            self._use, self._overflow = use, overflow
            # Numbers change with every look; only other lines are worth a layout of the screen.
            self.refresh(layout=self.render().plain.count("\n") != before)

    def render(self) -> Content:
        """Draw the lines."""
        use, width = self._use, self.content_size.width
        title = Content.styled(_("CONTEXT"), "$muted")
        if not use.total:
            return Content.assemble(title, "\n", (_("no model"), "$muted"))
        used = Content.styled(f"{_about(use)}{use.used:,} / {use.total:,}", _style(use))
        gap = max(1, width - title.cell_length - used.cell_length)
        return Content.assemble(
            title, " " * gap, used, "\n", context_bar(use, width), "\n", legend(use, width), "\n",
            (when_full(self._overflow, use), "$muted"),
        )  # fmt: skip
