"""Small choices about a reply: who drafts and how much, and which switch two replies differ by.

Know words and what can be chosen; hand the choice to whoever opened them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.comparison import Switched, Usual, Way, switched
from app.decoding_words import draft_name
from app.i18n import _
from app.screens.dialog import Dialog
from app.widgets.option_list import SteadyOptionList
from engine import MOST_DRAFTS, DecodingOptions, DraftKind


class Drafting(NamedTuple):
    """Who drafts, and how many tokens at a time; None lets measured costs choose."""

    kind: DraftKind
    k: int | None


def read_drafting(text: str) -> Drafting:
    """Read 'ngram', 'self 4', 'off'. ValueError says what is accepted."""
    name, _space, many = text.strip().lower().partition(" ")
    if name in list(DraftKind) and (not many or (many.isdecimal() and 1 <= int(many) <= MOST_DRAFTS)):
        return Drafting(DraftKind(name), int(many) if many else None)
    kinds = ", ".join(DraftKind)
    raise ValueError(
        _("{text} does not say who drafts: {kinds}, and how many at a time, 1 to {most}").format(
            text=text, kinds=kinds, most=MOST_DRAFTS
        )
    )


class DraftScreen(Dialog[Drafting | None]):
    """Closes with what was chosen, or None."""

    CSS_PATH = "choices.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("left", "step(-1)", show=False),
        Binding("right", "step(1)", show=False),
    ]

    def __init__(self, present: DecodingOptions, model: str, gain: Sequence[str]) -> None:
        """Begin with `present`; `model` names the draft model, "" where there is none; `gain` is what drafts
        brought last, in words.
        """
        super().__init__()
        self._kinds = list(DraftKind)
        self._kind, self._k = present.draft, present.draft_k
        self._model = model
        self._gain = gain

    def compose(self) -> ComposeResult:
        """Build the panel."""
        with Vertical(id="choice-panel") as panel:
            panel.border_title = _("Drafts")
            yield Static(
                _("Tokens are proposed cheaply, and verified several in one pass: faster, and exact."),
                markup=False,
            )
            yield SteadyOptionList(
                *(Option(self._option(kind)) for kind in self._kinds), id="choice-list", markup=False
            )
            yield Static(id="choice-told")
            yield Static(_("↑↓ who · ←→ how many · Enter apply · Esc back"), id="choice-keys", markup=False)

    def on_mount(self) -> None:
        """Put the cursor on what is chosen now."""
        listed = self.query_one(OptionList)
        listed.highlighted = self._kinds.index(self._kind)
        listed.focus()
        self._tell()

    def action_leave(self) -> None:
        """Close and change nothing."""
        self.dismiss(None)

    def action_step(self, by: int) -> None:
        """Draft more or fewer tokens at a time; below one, measured costs choose."""
        self._k = min(max((self._k or 0) + by, 0), MOST_DRAFTS) or None
        self._tell()

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(Drafting(self._kinds[event.option_index], self._k))

    def _tell(self) -> None:
        many = str(self._k) if self._k is not None else _("automatic: none where it does not pay")
        told = [Content.assemble((_("tokens at a time") + "  ", "$muted"), (f"◂ {many} ▸", "bold"))]
        if self._gain:
            told.append(Content.styled(_("last reply: {what}").format(what=" · ".join(self._gain)), "$muted"))
        self.query_one("#choice-told", Static).update(Content("\n").join(told))

    def _option(self, kind: DraftKind) -> Content:
        mark = "● " if kind is self._kind else "  "
        return Content.assemble(
            (mark, "$success"), (draft_name(kind), "bold"), "  ", (self._about(kind), "$muted")
        )

    def _about(self, kind: DraftKind) -> str:
        match kind:
            case DraftKind.OFF:
                return _("one token at a time")
            case DraftKind.NGRAM:
                return _("what followed the same words before; free, good for edits")
            case DraftKind.MODEL:
                return self._model or _("none chosen: F3, then ^O, names one")
            case DraftKind.SELF:
                return _("the model without the blocks that matter least; measures them first")
            case DraftKind.RESIDENT:
                return _("the model without the blocks that have to be fetched")
            case DraftKind.EXIT:
                return _("its first layers and its head: an experiment")


class SwitchedScreen(Dialog[Switched | None]):
    """Asks which switch is to differ between two replies."""

    CSS_PATH = "choices.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]

    def __init__(self, now: Way, usual: Usual) -> None:
        """Name what each switch would change of `now`."""
        super().__init__()
        self._now, self._usual = now, usual

    def compose(self) -> ComposeResult:
        """Build the panel."""
        with Vertical(id="choice-panel") as panel:
            panel.border_title = _("Compare two replies")
            yield Static(
                _("The same message, answered twice: what is different in the second?"), markup=False
            )
            yield SteadyOptionList(
                *(Option(self._option(place, what)) for place, what in enumerate(Switched)),
                id="choice-list",
                markup=False,
            )
            yield Static(_("↑↓ Enter choose · Esc back"), id="choice-keys", markup=False)

    def on_mount(self) -> None:
        """Put the cursor on the first one."""
        listed = self.query_one(OptionList)
        listed.highlighted = 0
        listed.focus()

    def action_leave(self) -> None:
        """Close and change nothing."""
        self.dismiss(None)

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(list(Switched)[event.option_index])

    def _option(self, place: int, what: Switched) -> Content:
        before, after = self._now.words[place], switched(self._now, what, self._usual).words[place]
        return Content.assemble((before, ""), (" → ", "$muted"), (after, "bold"))
