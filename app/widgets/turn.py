"""One turn of a conversation on the screen: who speaks, what they said, how it was made.

A growing reply is shown as closed Markdown blocks above a plain tail (`app.markdown`), so that a token costs
the same at the end of a long reply as at its start. A reply that would take very many widgets is shown by a
single one once it has ended. All text is cleaned here. Does not know the engine.
"""

from __future__ import annotations

from typing import Final

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from app.conversation import Turn, TurnStatus
from app.markdown import Splitter, redefines, weight
from app.sanitize import sanitize, sanitize_line
from app.widgets.reply_markdown import ReplyMarkdown
from app.widgets.stream_tail import MAX_CHARACTERS, MAX_LINES, StreamTail

HEAVY: Final = 120
"""Lines outside code: replies with more are folded, because every list item is several widgets."""
_MARKS: Final = {TurnStatus.CANCELLED: "■ ", TurnStatus.ERROR: "✗ "}


class TurnView(Vertical):
    """Shows one turn, and follows it while it grows."""

    def __init__(self, turn: Turn, *, folded: bool = False) -> None:
        """Show `turn`; `folded` shows an old reply as a single widget, which is cheap but cannot grow."""
        super().__init__(classes=f"-{turn.role}")
        self.turn = turn
        self._ended = turn.status is not TurnStatus.STREAMING
        self._folded = folded or (self._ended and weight(sanitize(turn.text)) > HEAVY)
        self._splitter = Splitter()
        self._drawn = 0
        """Characters of the turn's text that were given to the splitter."""
        self._lines: dict[str, str] = {".foot": ""}
        """What head and foot show."""
        self._ready = False
        self._weight = 0
        self._held = ""
        """The end of the closed text that is not appended any more, the reply being heavy."""
        self._appending = False

    def compose(self) -> ComposeResult:
        """Build head, body and foot."""
        turn = self.turn
        yield Static(Content(self._speaker()), classes="head")
        if turn.role == "user":
            yield Static(Content(sanitize(turn.text)), classes="body")
        elif self._folded:
            yield self._folded_body()
        else:
            yield ReplyMarkdown(sanitize(turn.text) if self._ended else "")
            tail = StreamTail(classes="tail")
            tail.display = False
            yield tail
        foot = Static(classes="foot")
        foot.display = False
        yield foot

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
            self._show_line(".head", self._speaker())
            self._show_foot(phase)
            self._draw()

    def end(self) -> None:
        """Show that the reply has ended."""
        if self._ready:
            self._ended = True
            self._draw()
            self._show_foot("")

    async def fold(self) -> None:
        """Replace the widgets of an old reply by a single one."""
        if self._folded or self._appending or not self._ended or self.turn.role == "user":
            return
        await self._fold()

    async def _fold(self) -> None:
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
            if turn.stats.ttft_s:
                parts.append(f"first {turn.stats.ttft_s:.2f} s")
        self.query_one(".foot", Static).set_class(turn.status is TurnStatus.ERROR, "-error")
        self._show_line(".foot", " · ".join(parts))

    def _show_line(self, place: str, text: str) -> None:
        """Show `text` in head or foot; a new text costs a layout, so the same one is left alone."""
        if self._lines.get(place) != text:
            self._lines[place] = text
            line = self.query_one(place, Static)
            line.display = bool(text)
            line.update(Content(text))

    def _speaker(self) -> str:
        return "You" if self.turn.role == "user" else sanitize_line(self.turn.model) or "Assistant"

    def _folded_body(self) -> Static:
        from rich.markdown import Markdown as RichMarkdown  # not before the first frame

        code_theme = "ansi_dark" if self.app.current_theme.dark else "ansi_light"
        renderable = RichMarkdown(sanitize(self.turn.text), code_theme=code_theme, hyperlinks=False)
        return Static(renderable, classes="body -folded")

    def _draw(self) -> None:
        """Show the new text: closed blocks by an append, which takes a while, and the tail at once."""
        if self._appending:  # its end draws what has come meanwhile
            return
        new, self._drawn = self.turn.text[self._drawn :], len(self.turn.text)
        closed = self._splitter.push(sanitize(new))
        if self._ended:
            closed += self._splitter.flush()
        self._weight += weight(closed)
        if self._weight > HEAVY:
            self._held = (self._held + closed)[-MAX_CHARACTERS:]
            closed = ""
        if closed or self._ended:
            self._appending = True
            self.call_later(self._append, closed, self._ended)
        elif self._drawn:
            self._show_tail()

    async def _append(self, closed: str, ended: bool) -> None:
        markdown = self.query_one(ReplyMarkdown)
        with self.app.batch_update():  # nobody sees the text in neither place, or in both
            if closed:
                await markdown.append(closed)
            if not ended:
                self._show_tail()
            elif self._weight > HEAVY:
                await self._fold()
            else:
                self.query_one(StreamTail).clear()
                if redefines(whole := sanitize(self.turn.text)):
                    await markdown.update(whole)
        self._appending = False
        if self._ended and not ended:
            self._draw()

    def _show_tail(self) -> None:
        splitter = self._splitter
        tail, in_code = splitter.tail(MAX_LINES), splitter.in_code
        if self._held and not in_code:
            tail = "\n".join((self._held + tail).split("\n")[-MAX_LINES:])
        self.query_one(StreamTail).show(tail, in_code=in_code)
