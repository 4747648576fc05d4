"""One turn of a conversation on the screen: who speaks, what they said, how it was made.

A growing reply is shown as closed Markdown blocks above a plain tail (`app.markdown`), so that a token costs
the same at the end of a long reply as at its start. A reply that would take very many widgets goes on in
folded parts, a widget each, and is a single one once it has ended. All text is cleaned here. Does not know
the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from app.conversation import Turn, TurnStatus
from app.markdown import Splitter, make_parser, redefines, weight
from app.sanitize import sanitize, sanitize_line
from app.widgets.reply_markdown import ReplyMarkdown
from app.widgets.stream_tail import StreamTail

if TYPE_CHECKING:
    from rich.markdown import Markdown as RichMarkdown

HEAVY: Final = 120
"""Weight above which replies are folded, because every list item is several widgets."""
PART: Final = 120
"""Weight of a folded part: more begins the next."""
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
        self._part: Static | None = None
        """The last folded part, the reply being heavy."""
        self._part_text = ""
        self._appending = False

    def compose(self) -> ComposeResult:
        """Build head, body and foot."""
        turn = self.turn
        yield Static(Content(self._speaker()), classes="head")
        if turn.role == "user":
            yield Static(Content(sanitize(turn.text)), classes="body")
        elif self._folded:
            yield Static(self._fold_of(turn.text), classes="body -folded")
        else:
            yield ReplyMarkdown(sanitize(turn.text) if self._ended else "")
            yield StreamTail()
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
        await self.query(".body, .tail").remove()
        await self.mount(Static(self._fold_of(self.turn.text), classes="body -folded"), after=0)

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

    def _fold_of(self, text: str) -> RichMarkdown:
        """Return what one widget shows of `text`, instead of a widget for each of its blocks."""
        from rich.markdown import Markdown  # not before the first frame

        code_theme = "ansi_dark" if self.app.current_theme.dark else "ansi_light"
        fold = Markdown("", code_theme=code_theme, hyperlinks=False)
        # Parsed as in the other form. Not the links of bare addresses: they would be shown twice.
        fold.parsed = make_parser(find_links=False).parse(sanitize(text))
        return fold

    def _draw(self) -> None:
        """Show the new text: closed blocks by an append, which takes a while, and the tail at once."""
        if self._appending:  # its end draws what has come meanwhile
            return
        new, self._drawn = self.turn.text[self._drawn :], len(self.turn.text)
        closed = self._splitter.push(sanitize(new))
        if self._ended:
            closed += self._splitter.flush()
        self._weight += weight(closed)
        if closed and self._weight > HEAVY:
            self._add_to_part(closed)
            closed = ""
        if closed or self._ended:
            self._appending = True
            self.call_later(self._append, closed, self._ended)
        elif self._drawn:
            self._show_tail()

    def _add_to_part(self, closed: str) -> None:
        if self._part is None or weight(self._part_text) > PART:
            self._part, self._part_text = Static(classes="body -part"), ""
            self.mount(self._part, before=self.query_one(StreamTail))
        self._part_text += closed
        self._part.update(self._fold_of(self._part_text))
        self.query_one(StreamTail).clear()

    async def _append(self, closed: str, ended: bool) -> None:
        markdown, tail = self.query_one(ReplyMarkdown), self.query_one(StreamTail)
        with self.app.batch_update():  # nobody sees the text in neither place, or in both
            if closed:
                await markdown.append(closed)
                tail.clear()
            if not ended:
                self._show_tail()
            elif self._weight > HEAVY:
                await self._fold()
            else:
                tail.clear()
                if redefines(whole := sanitize(self.turn.text)):
                    await markdown.update(whole)
        self._appending = False
        if self._ended and not ended:
            self._draw()

    def _show_tail(self) -> None:
        self.query_one(StreamTail).show(self._splitter.tail, in_code=self._splitter.in_code)
