"""One turn of a conversation on the screen: who speaks, what they said, how it was made.

A growing reply is shown as closed Markdown blocks above a plain tail (`app.markdown`), so that a token costs
the same at the end of a long reply as at its start. All text is cleaned here. Does not know the engine.
"""

from __future__ import annotations

from typing import Final

from rich.markdown import Markdown as RichMarkdown
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from app.conversation import Turn, TurnStatus
from app.markdown import Splitter, redefines
from app.sanitize import sanitize, sanitize_line
from app.widgets.reply_markdown import ReplyMarkdown
from app.widgets.stream_tail import MAX_LINES, StreamTail

_MARKS: Final = {TurnStatus.CANCELLED: "■ ", TurnStatus.ERROR: "✗ "}


class TurnView(Vertical):
    """Shows one turn, and follows it while it grows."""

    def __init__(self, turn: Turn, *, folded: bool = False) -> None:
        """Show `turn`; `folded` shows an old reply as a single widget, which is cheap but cannot grow."""
        super().__init__(classes=f"-{turn.role}")
        self.turn = turn
        self._folded = folded
        self._splitter = Splitter()
        self._drawn = 0
        """Characters of the turn's text that were given to the splitter."""
        self._ended = turn.status is not TurnStatus.STREAMING
        self._ready = False
        self._drawing = False

    def compose(self) -> ComposeResult:
        """Build head, body and foot."""
        turn = self.turn
        yield Static(self._head(), classes="head")
        if turn.role == "user":
            yield Static(Content(sanitize(turn.text)), classes="body")
        elif self._folded:
            yield self._folded_body()
        else:
            yield ReplyMarkdown(sanitize(turn.text) if self._ended else "")
            tail = StreamTail(classes="tail")
            tail.display = False
            yield tail
        yield Static(classes="foot")

    def on_mount(self) -> None:
        """Catch up with a reply that grew before it was shown."""
        self._ready = True
        if self.turn.status is TurnStatus.STREAMING:
            self.grow("")
        elif not self._ended:
            self.end()
        else:
            self._show_foot("")

    def grow(self, phase: str) -> None:
        """Show what the turn's text has got; `phase` says what it waits for while there is none."""
        if self._ready:
            self.query_one(".head", Static).update(self._head())
            self._show_foot(phase)
            self._draw_soon()

    def end(self) -> None:
        """Show that the reply has ended."""
        if self._ready:
            self._ended = True
            self._draw_soon()
            self._show_foot("")

    async def fold(self) -> None:
        """Replace the widgets of an old reply by a single one."""
        if self._folded or not self._ended or self.turn.role == "user":
            return
        self._folded = True
        await self.query("ReplyMarkdown, StreamTail").remove()
        await self.mount(self._folded_body(), after=0)

    def _show_foot(self, phase: str) -> None:
        turn = self.turn
        parts = [phase] if phase else []
        if self._ended and turn.role == "assistant":
            if turn.note:
                parts.append(_MARKS.get(turn.status, "") + sanitize_line(turn.note))
            if turn.stats.completion_tokens:
                parts.append(f"{turn.stats.completion_tokens:,} tok")
            if turn.stats.decode_tok_s:
                parts.append(f"{turn.stats.decode_tok_s:.1f} tok/s")
        foot = self.query_one(".foot", Static)
        foot.display = bool(parts)
        foot.set_class(turn.status is TurnStatus.ERROR, "-error")
        foot.update(Content(" · ".join(parts)))

    def _head(self) -> Content:
        if self.turn.role == "user":
            return Content("You")
        return Content(sanitize_line(self.turn.model) or "Assistant")

    def _folded_body(self) -> Static:
        code_theme = "ansi_dark" if self.app.current_theme.dark else "ansi_light"
        renderable = RichMarkdown(sanitize(self.turn.text), code_theme=code_theme, hyperlinks=False)
        return Static(renderable, classes="body -folded")

    def _draw_soon(self) -> None:
        if not self._drawing:  # what comes while a drawing is under way is drawn by the next one
            self._drawing = True
            self.call_later(self._draw)

    async def _draw(self) -> None:
        self._drawing = False
        ended, text = self._ended, self.turn.text
        new, self._drawn = text[self._drawn :], len(text)
        closed = self._splitter.push(sanitize(new))
        markdown, tail = self.query_one(ReplyMarkdown), self.query_one(StreamTail)
        if ended:
            closed += self._splitter.flush()
            tail.clear()
        elif text:
            tail.show(self._splitter.tail(MAX_LINES), in_code=self._splitter.in_code)
        if closed:
            await markdown.append(closed)
        if ended and redefines(whole := sanitize(text)):
            await markdown.update(whole)
