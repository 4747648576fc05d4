"""Two replies to one message side by side, or one below the other where the terminal is narrow.

Shows what grows in the conversation; asks for nothing itself. Text is shown as it was generated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app.comparison import Candidate, Comparison
from app.decoding_words import gain_words, quality_words
from app.i18n import _
from app.live_reply import LiveReply
from app.sanitize import sanitize, sanitize_line
from app.screens.dialog import Dialog

_LOOK_S: Final = 0.125
_NEAR: Final = 2
"""Lines from its end within which a growing text is followed."""


class _Column(Vertical):
    """One reply: how it is made, its text, and what it took."""

    def __init__(self, candidate: Candidate, other: Candidate) -> None:
        super().__init__(classes="column")
        self._candidate, self._other = candidate, other
        self._shown = ""

    def compose(self) -> ComposeResult:
        """Build the column."""
        yield Static(self._head(), classes="column-head")
        with VerticalScroll(can_focus=False):
            yield Static(classes="column-text")
        yield Static(classes="column-foot")

    def show(self, phase: str) -> None:
        """Show what has come; `phase` is what it waits for."""
        turn = self._candidate.turn
        text = turn.text if turn is not None else ""
        if text != self._shown:
            self._shown = text
            self.query_one(".column-text", Static).update(Content(sanitize(text)))
            scroll = self.query_one(VerticalScroll)
            if not self._candidate.ended and scroll.max_scroll_y - scroll.scroll_y <= _NEAR:
                scroll.scroll_end(animate=False)
        self.query_one(".column-foot", Static).update(self._foot(phase))

    def scroll_text(self, lines: int) -> None:
        """Scroll the text."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    @property
    def page(self) -> int:
        """Lines that are seen at once."""
        return self.query_one(VerticalScroll).size.height

    def _head(self) -> Content:
        parts: list[Content] = []
        for mine, theirs in zip(self._candidate.way.words, self._other.way.words, strict=True):
            parts.append(Content.styled(mine, "$muted" if mine == theirs else "bold $accent"))
        name = Content.styled(f"{self._candidate.name}  ", "bold $primary")
        return Content.assemble(name, Content.styled(" · ", "$muted").join(parts))

    def _foot(self, phase: str) -> Content:
        turn = self._candidate.turn
        if turn is None:
            return Content.styled(_("comes after the other one"), "$muted")
        stats = turn.stats
        rates = [
            phase,
            sanitize_line(turn.note) if self._candidate.ended else "",
            _("{count:,} tok").format(count=stats.completion_tokens) if stats.completion_tokens else "",
            f"{stats.decode_tok_s:.1f} tok/s" if stats.decode_tok_s else "",
            *gain_words(stats),
        ]
        exact = quality_words(stats)
        return Content.assemble(
            " · ".join(filter(None, rates)), "\n", (exact, "$warning" if stats.skipped_blocks else "$success")
        )


class CompareScreen(Dialog[Candidate | None]):
    """Closes with the reply that is to be kept; None keeps the first one."""

    CSS_PATH = "compare.tcss"
    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("a", "keep(0)", show=False),
        Binding("b", "keep(1)", show=False),
        Binding("up,k", "scroll_both(-1)", show=False),
        Binding("down,j", "scroll_both(1)", show=False),
        Binding("pageup", "page_both(-1)", show=False),
        Binding("pagedown,space", "page_both(1)", show=False),
    ]

    def __init__(
        self, comparison: Comparison, live: Callable[[], LiveReply | None], stop: Callable[[], None]
    ) -> None:
        """Show `comparison`; `live` returns the reply that grows, `stop` stops it and asks for no other."""
        super().__init__()
        self._comparison = comparison
        self._live = live
        self._stop = stop
        self._wanted: Candidate | None = None
        """What is kept once nothing grows any more."""
        self._leaving = False

    def compose(self) -> ComposeResult:
        """Build the panel."""
        first, second = self._comparison.both
        with Vertical(id="compare-panel") as panel:
            panel.border_title = sanitize_line(self._comparison.message.text)
            with Container(id="compare-columns"):
                yield _Column(first, second)
                yield _Column(second, first).add_class("-second")
            yield Static(id="compare-verdict")
            yield Static(id="compare-keys")

    def on_mount(self) -> None:
        """Look at once, and again while open."""
        self._look()
        self.set_interval(_LOOK_S, self._look)

    def action_leave(self) -> None:
        """Stop what grows; where nothing does, close."""
        if self._comparison.over:
            self.dismiss(None)
        else:
            self._stop()

    def action_keep(self, place: int) -> None:
        """Keep the first or the second one; what grows is stopped first."""
        candidate = self._comparison.both[place]
        if candidate.turn is None:
            return
        self._wanted, self._leaving = candidate, True
        if not self._comparison.over:
            self._stop()
        self._look()

    def action_scroll_both(self, lines: int) -> None:
        """Scroll both texts."""
        for column in self.query(_Column):
            column.scroll_text(lines)

    def action_page_both(self, pages: int) -> None:
        """Scroll both texts by what is seen at once."""
        for column in self.query(_Column):
            column.scroll_text(pages * max(1, column.page - 1))

    def _look(self) -> None:
        comparison, live = self._comparison, self._live()
        for column, candidate in zip(self.query(_Column), comparison.both, strict=True):
            grows = live is not None and live.turn is candidate.turn
            column.show(live.phase if grows and live is not None else "")
        self.query_one("#compare-verdict", Static).update(Content(comparison.verdict))
        keys = _("Esc stops · a b keep one")
        if comparison.over:
            keys = _("a b keep one, the other becomes its sibling · ↑↓ scroll · Esc back")
        self.query_one("#compare-keys", Static).update(Content(keys))
        if self._leaving and comparison.over and live is None:
            self.dismiss(self._wanted)
