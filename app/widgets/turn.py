"""One turn of a conversation on the screen: who speaks, what they said, what came with it, how it was made.

A growing reply is shown as closed Markdown blocks above a plain tail (`app.markdown`), so that a token costs
the same at the end of a long reply as at its start. A reply that would take very many widgets goes on in
folded parts, a widget each, and is a single one once it has ended. All text is cleaned here. Does not know
the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.widget import Widget
from textual.widgets import Static

from app.conversation import Attachment, Turn, TurnStatus
from app.decoding_words import gain_words, turn_quality, way_words
from app.i18n import _
from app.markdown import Splitter, make_parser, redefines, weight
from app.sanitize import sanitize, sanitize_line
from app.widgets.ground import Ground
from app.widgets.in_sight import Rows, below
from app.widgets.reply_markdown import ReplyMarkdown
from app.widgets.still import Still
from app.widgets.stream_tail import StreamTail

if TYPE_CHECKING:
    from rich.markdown import Markdown as RichMarkdown

HEAVY: Final = 120
"""Weight above which replies are folded, because every list item is several widgets."""
PART: Final = 40
"""Weight of a folded part, which each of its blocks draws anew: more begins the next."""
SHOWN_LINES: Final = 200
"""Lines of an attachment that are shown when it is opened."""
_MARKS: Final = {TurnStatus.CANCELLED: "■ ", TurnStatus.ERROR: "✗ "}


def switches(turn: Turn) -> list[str]:
    """Return what was not as usual when `turn` was made, in a word each."""
    words = []
    if turn.sampling is not None and turn.sampling.temperature == 0:
        words.append(_("greedy"))
    words += way_words(turn)
    if turn.made_by.get("changes") or turn.made_by.get("decoding_changes"):
        words.append(_("changed on the way"))
    return words


def describe(attachment: Attachment) -> str:
    """Return the name of an attachment and how much it is."""
    lines, size = len(attachment.text.splitlines()), len(attachment.text.encode("utf-8", "replace"))
    amount = _("{size:,} bytes").format(size=size) if size < 1000 else f"{size / 1000:,.1f} kB"
    return " · ".join((sanitize_line(attachment.name), _("{n:,} lines").format(n=lines), amount))


class TurnView(Vertical, Ground, Still):
    """Shows one turn, and follows it while it grows."""

    DEFAULT_CSS = """
    TurnView .chips { height: auto; color: $muted; }
    TurnView.-current { background: $foreground 4%; }
    """

    def __init__(
        self,
        turn: Turn,
        *,
        folded: bool = False,
        place: str = "",
        rows: Callable[[Widget], Rows | None] = lambda view: None,
    ) -> None:
        """Show `turn`; `folded` shows an old reply as a single widget, which is cheap but cannot grow.

        `place` says which of several versions it is; `rows` which rows of this widget are near what is seen.
        """
        super().__init__(classes=f"-{turn.role}")
        self.turn = turn
        self._place = place
        self._rows = rows
        self._raw = False
        self._opened = False
        """Whether the text of the attachments is shown."""
        self._ended = turn.status is not TurnStatus.STREAMING
        self._folded = folded or (self._ended and weight(sanitize(turn.text)) > HEAVY)
        self._splitter = Splitter()
        self._drawn = 0
        """Characters of the turn's text that were given to the splitter."""
        self._lines: dict[Static, Content] = {}
        """What head and foot show."""
        self._head_line, self._foot = Static(self._head(), classes="head"), Static(classes="foot")
        self._tail = StreamTail()
        self._ready = False
        self._weight = 0
        self._part: Static | None = None
        """The last folded part, the reply being heavy."""
        self._part_text = ""
        self._appending = False

    def compose(self) -> ComposeResult:
        """Build head, body and foot."""
        turn = self.turn
        yield self._head_line
        if turn.role == "user":
            yield Static(Content(sanitize(turn.text)), classes="body")
        elif self._folded:
            yield Static(self._fold_of(turn.text), classes="body -folded")
        else:
            yield ReplyMarkdown(sanitize(turn.text) if self._ended else "")
            yield self._tail
        if turn.attachments:
            yield Static(self._chips(), classes="chips")
        self._foot.display = False
        yield self._foot

    def arrange(self, size: Size, optimal: bool = False) -> DockArrangeResult:
        """Place what is near what is seen, and tell the body where that is."""
        self.rows = self._rows(self)
        arranged = super().arrange(size, optimal)
        for placed in arranged.placements:
            if isinstance(placed.widget, Ground):
                placed.widget.rows = below(self.rows, placed.region.y)
        return arranged

    def on_mount(self) -> None:
        """Catch up with a reply that grew before it was shown."""
        if not self.children:  # the application is closing
            return
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
            self._show_head()
            self._show_foot(phase)
            self._draw()

    def end(self) -> None:
        """Show that the reply has ended."""
        if self._ready:
            self._ended = True
            self._draw()
            self._show_head()
            self._show_foot("")

    async def fold(self) -> None:
        """Replace the widgets of an old reply by a single one."""
        if not self._folded and self._settled and self.turn.role != "user":
            await self._fold()

    async def unfold(self) -> None:
        """Show a folded reply as full Markdown, unless it would take very many widgets."""
        if self._folded and self._settled and weight(sanitize(self.turn.text)) <= HEAVY:
            self._folded = False
            await self._show_body()

    async def toggle_raw(self) -> bool:
        """Show the text of a reply as it was generated, or as Markdown again; False while it grows."""
        if self.turn.role == "user" or not self._settled:
            return False
        self._raw = not self._raw
        await self._show_body()
        return True

    def toggle_attachments(self) -> bool:
        """Show the text of what came with the message, or hide it; False when nothing came."""
        if not self.turn.attachments or not self._ready:
            return False
        self._opened = not self._opened
        self.query_one(".chips", Static).update(self._chips())
        return True

    def mark(self, current: bool) -> None:
        """Show whether the cursor is on this turn."""
        if current is not self.has_class("-current"):
            self.set_class(current, "-current")
            self._show_head()

    def show_place(self, place: str) -> None:
        """Show which of several versions this is, or nothing for ''."""
        if place != self._place:
            self._place = place
            self._show_head()

    def on_click(self, event: events.Click) -> None:
        """Open or close the attachments."""
        if event.widget is not None and event.widget.has_class("chips"):
            self.toggle_attachments()

    @property
    def _settled(self) -> bool:
        """Whether all text is shown and none will come."""
        return self._ready and self._ended and not self._appending and self.is_attached

    async def _fold(self) -> None:
        self._folded = True
        if not self._raw:
            await self._show_body()

    async def _show_body(self) -> None:
        """Show the text of a reply that has ended, in the form it should have now."""
        text = self.turn.text
        if self._raw:
            body: Widget = Static(Content(sanitize(text)), classes="body -raw")
        elif self._folded:
            body = Static(self._fold_of(text), classes="body -folded")
        else:
            body = ReplyMarkdown(sanitize(text))
        with self.app.batch_update():
            old = list(self.query(".body, .tail").results(Widget))
            await self.mount(body, after=0)
            await self.remove_children(old)

    def _show_foot(self, phase: str) -> None:
        turn = self.turn
        parts = [phase] if phase else []
        if self._ended and turn.role == "assistant":
            if turn.note:
                parts.append(_MARKS.get(turn.status, "") + sanitize_line(turn.note))
            if turn.stats.completion_tokens:
                parts.append(_("{count:,} tok").format(count=turn.stats.completion_tokens))
            if turn.stats.decode_tok_s:
                parts.append(f"{turn.stats.decode_tok_s:.1f} tok/s")
            if turn.stats.ttft_s:
                parts.append(_("first {seconds:.2f} s").format(seconds=turn.stats.ttft_s))
            parts += [*gain_words(turn.stats), *filter(None, [turn_quality(turn)])]
        self._foot.set_class(turn.status is TurnStatus.ERROR, "-error")
        self._show_line(self._foot, Content(" · ".join(parts)))

    def _show_head(self) -> None:
        if self._ready:
            self._show_line(self._head_line, self._head())

    def _show_line(self, line: Static, text: Content) -> None:
        """Show `text` in head or foot; a new text costs a layout, so the same one is left alone."""
        if self._lines.get(line, Content("")) != text:
            self._lines[line] = text
            line.display = bool(text.plain)
            line.update(text)

    def _head(self) -> Content:
        turn = self.turn
        speaker = _("You") if turn.role == "user" else sanitize_line(turn.model) or _("Assistant")
        details = "".join(f" · {part}" for part in (*switches(turn), self._place) if part)
        mark = "▸ " if self.has_class("-current") else ""  # for who sees no colours
        return Content.assemble(mark, speaker, (details, "$muted not bold"))

    def _chips(self) -> Content:
        """Return a line for each attachment, with its text below if that is wanted."""
        parts: list[Content] = []
        for attachment in self.turn.attachments:
            parts.append(Content(f"{'▾' if self._opened else '▸'} {describe(attachment)}"))
            if self._opened:
                lines = sanitize(attachment.text).split("\n")
                parts += [Content(f"  {line}") for line in lines[:SHOWN_LINES]]
                if (left := len(lines) - SHOWN_LINES) > 0:
                    parts.append(Content("  " + _("… {n:,} more lines").format(n=left)))
        return Content("\n").join(parts)

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
            self.mount(self._part, before=self._tail)
        self._part_text += closed
        self._part.update(self._fold_of(self._part_text))
        self._tail.clear()

    async def _append(self, closed: str, ended: bool) -> None:
        markdown, tail = self.query_one(ReplyMarkdown), self._tail
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
        self._tail.show(self._splitter.tail, in_code=self._splitter.in_code)
