"""The one-line widgets around the conversation: title above, numbers and notices below, keys at the end.

Each renders from what it is given; none of them asks anyone.
"""

from __future__ import annotations

from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.style import Style
from textual.visual import VisualType

from app.actions import ACTIONS, Action
from app.context_use import ContextUse
from app.decoding_words import gain_words
from app.i18n import _
from app.keymap import shown_key
from app.live_reply import LiveReply
from app.sanitize import sanitize_line
from app.tiers.words import settling_words
from app.widgets.context_meter import context_line
from app.widgets.meters import bar, model_line
from app.widgets.still import Still, Words
from app.widgets.tab_bar import TabBar
from engine import EngineSnapshot, EngineState, Reply, ReplyStatus

_GAP: Final = 2


def _spread(left: Content, right: Content, width: int) -> Content:
    """Return a line with `left` and `right` at its ends; where room is short the left one gives way."""
    room = max(0, width - right.cell_length - _GAP)
    if left.cell_length > room:
        left = left.truncate(room, ellipsis=True)
    return Content.assemble(left, " " * max(0, width - left.cell_length - right.cell_length), right)


class TopBar(Horizontal):
    """The open conversations, and the model."""

    def compose(self) -> ComposeResult:
        """Build the line."""
        yield TabBar()
        yield Words(id="model-line")

    def show(self, snapshot: EngineSnapshot) -> None:
        """Show which model is loaded."""
        model = snapshot.model
        words = model_line(model) if model is not None else _("no model")
        self.query_one("#model-line", Words).update(Content(words))


class StatusBar(Still):
    """What the engine does, how fast, and how full the context is."""

    def __init__(self) -> None:
        """Show an empty engine."""
        super().__init__()
        self._snapshot = EngineSnapshot()
        self._live: LiveReply | None = None
        self._use = ContextUse()

    def show(self, snapshot: EngineSnapshot, live: LiveReply | None, use: ContextUse) -> None:
        """Show the engine, and of the open conversation the reply that grows and what the context holds."""
        self._snapshot, self._live, self._use = snapshot, live, use
        self.refresh()

    def render(self) -> VisualType:
        """Draw the line."""
        width = self.content_size.width
        right = context_line(self._use, width) if self._use.total else Content("")
        room = width - right.cell_length - _GAP
        choices = self._left()
        left = next((choice for choice in choices if choice.cell_length <= room), choices[-1])
        return _spread(left, right, width)

    def _left(self) -> list[Content]:
        """Return what could stand on the left, from the longest to the shortest."""
        snapshot, live = self._snapshot, self._live
        if snapshot.state is EngineState.LOADING:
            share = snapshot.load_progress
            words = f" {sanitize_line(snapshot.load_stage) or _('loading')} {share:.0%}"
            loading = Content.assemble(("◐ ", "$warning"), bar(share, 10), words)
            return [Content.assemble(loading, (_("  Esc stops"), "$muted")), loading]
        if live is not None and live.reply is not None:
            return self._generating(live, live.reply)
        match snapshot.state:
            case EngineState.READY | EngineState.GENERATING:
                ready = Content.assemble(("● ", "$success"), _("ready"))
                if settling := _settling(snapshot):
                    share = snapshot.load_progress
                    arrives = share < 1
                    brief = f"{_('loading')} {share:.0%}" if arrives else settling
                    drawn = (bar(share, 10), " ") if arrives else ()
                    return [
                        Content.assemble(ready, "  ", *drawn, (settling, "$warning")),
                        Content.assemble(ready, "  ", (settling, "$warning")),
                        Content.assemble(ready, "  ", (brief, "$warning")),
                        Content.assemble(ready, (f" {share:.0%}" if arrives else "…", "$warning")),
                    ]
                gpu = snapshot.tiers.gpu if snapshot.tiers is not None else None
                if gpu is None:
                    return [ready]
                what = f"  {sanitize_line(snapshot.backend)} · {sanitize_line(gpu.name)}"
                return [Content.assemble(ready, (what, "$muted")), ready]
            case EngineState.FAILED:
                return [Content.assemble(("✗ ", "$error"), _("the model did not load  F3 chooses another"))]
            case _:
                return [Content.assemble(("○ ", "$muted"), _("no model  F3 chooses one"))]

    def _generating(self, live: LiveReply, reply: Reply) -> list[Content]:
        stop = (_("  Esc stops"), "$muted")
        if reply.status is ReplyStatus.CALIBRATE:
            share = reply.stats.calibrated_share
            measuring = Content.assemble(("◐ ", "$warning"), bar(share, 10), f" {live.phase}")
            brief = Content.assemble(
                ("◐ ", "$warning"), bar(share, 10), _(" measuring {share}").format(share=f"{share:.0%}")
            )
            return [Content.assemble(measuring, stop), measuring, Content.assemble(brief, stop), brief]
        if reply.status in (ReplyStatus.QUEUED, ReplyStatus.PREFILL, ReplyStatus.RECOMPUTE):
            words = Content.assemble(("◐ ", "$warning"), live.phase)
            return [Content.assemble(words, stop), words]
        stats = live.turn.stats
        speed = f"{stats.decode_tok_s:.1f} tok/s" if stats.decode_tok_s else ""
        first = _("first {seconds:.2f} s").format(seconds=stats.ttft_s) if stats.ttft_s else ""
        count = _("{count:,} tok").format(count=stats.completion_tokens)
        gain = gain_words(stats)
        lines = [
            Content.assemble(("● ", "$primary"), " · ".join(filter(None, parts)))
            for parts in (
                *([(speed, first, count, *gain)] if gain else []),
                (speed, first, count),
                (speed, count),
                (speed or count,),
            )
        ]
        choices = [*(Content.assemble(line, stop) for line in lines), lines[-1]]
        if settling := _settling(self._snapshot):
            told = (f"  {settling}", "$warning")
            choices = [*(Content.assemble(line, told) for line in (*choices[:2], lines[-1])), *choices]
        return choices


def _settling(snapshot: EngineSnapshot) -> str:
    settled = snapshot.tiers is None or snapshot.tiers.settled
    return settling_words(settled=settled, progress=snapshot.load_progress)


class NoticeBar(Still):
    """The one thing a person should know now; the most urgent kind wins. Hidden while there is none."""

    KINDS: Final = ("error", "hint", "store", "engine", "settings")
    """From the most urgent to the least; a hint goes away by itself."""

    def __init__(self) -> None:
        """Show nothing."""
        super().__init__()
        self._texts: dict[str, str] = {}
        self._dismissed: set[str] = set()
        self.display = False

    def set(self, kind: str, text: str) -> None:
        """Show `text`, or nothing of this kind when it is empty; what was dismissed stays away."""
        if self._texts.get(kind, "") != text and text not in self._dismissed:
            self._texts[kind] = text
            self.display = any(self._texts.values())
            self.refresh(layout=True)

    def dismiss(self) -> None:
        """Take away what is shown, unless it is that text is not saved."""
        kind = self._kind()
        if kind and kind != "store":
            if kind in ("engine", "settings"):  # these come again unchanged; errors are told anew
                self._dismissed.add(self._texts[kind])
            self.set(kind, "")

    def render(self) -> VisualType:
        """Draw the text."""
        kind = self._kind()
        mark, style = {"error": ("✗ ", "$error"), "store": ("! ", "$error"), "hint": ("› ", "$primary")}.get(
            kind, ("! ", "$warning")
        )
        return Content.assemble((mark, style), sanitize_line(self._texts.get(kind, "")))

    def _kind(self) -> str:
        return next((kind for kind in self.KINDS if self._texts.get(kind)), "")


class KeyBar(Still):
    """The most used keys; a click on one does what the key does."""

    def __init__(self) -> None:
        """Show the keys; they are no links and shall not look like some."""
        super().__init__()
        self.auto_links = False

    def render(self) -> VisualType:
        """Draw the keys that fit, the most important ones first to get a place."""
        room = self.content_size.width + _GAP
        kept: dict[Action, Content] = {}
        ranked = (action for action in ACTIONS if action.rank and shown_key(action))
        for action in sorted(ranked, key=lambda action: action.rank):
            part = _key(action)
            room -= part.cell_length + _GAP
            if room < 0:
                break
            kept[action] = part
        return Content(" " * _GAP).join(kept[action] for action in ACTIONS if action in kept)


def _key(action: Action) -> Content:
    part = Content.assemble((shown_key(action), "bold"), " ", (_(action.label), "$muted"))
    return part.stylize(Style.from_meta({"@click": action.method})) if action.method else part
