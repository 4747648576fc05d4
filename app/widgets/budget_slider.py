"""A slider for the memory that a model may take: from the least that works to what is available.

Marks the budget in effect and what the whole model would take. Knows sizes; asks no engine.
"""

from __future__ import annotations

from typing import ClassVar, Final

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.visual import VisualType
from textual.widget import Widget

from app.budget_estimate import BudgetRange
from app.i18n import _
from app.sanitize import sanitize_line
from app.widgets.meters import size
from app.widgets.slider import cell_at, fraction_at, slider
from engine import Budget, parse_budget

_STEPS: Final = 40


class BudgetSlider(Widget, can_focus=True):
    """The slider and the field to type a size into. Posts `Moved` and `Chosen`."""

    DEFAULT_CSS = """
    BudgetSlider { height: 4; width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "step(-1)", show=False),
        Binding("right,l", "step(1)", show=False),
        Binding("shift+left", "step(-5)", show=False),
        Binding("shift+right", "step(5)", show=False),
        Binding("home", "step(-99)", show=False),
        Binding("end", "step(99)", show=False),
        Binding("enter", "choose", show=False),
        Binding("backspace", "rub_out", show=False),
    ]

    class Moved(Message):
        """The slider stands elsewhere; nothing is asked for yet."""

        def __init__(self, n_bytes: int) -> None:
            """`n_bytes` is where it stands."""
            super().__init__()
            self.n_bytes = n_bytes

    class Chosen(Message):
        """Someone wants this budget."""

        def __init__(self, slider: BudgetSlider, budget: Budget) -> None:
            """`budget` is as moved to or as typed, for the memory of `slider`."""
            super().__init__()
            self.slider = slider
            self.budget = budget

    def __init__(self, whole: str, *, id: str | None = None) -> None:
        """Show nothing until told what; `whole` says what there is room for where the whole model fits."""
        super().__init__(id=id)
        self._whole = whole
        self._label = ""
        self._range: BudgetRange | None = None
        self._at: int | None = None
        self._pending = False
        self._entry = ""
        self._problem = ""

    @property
    def value(self) -> int:
        """Where the slider stands, in bytes."""
        if self._at is None:
            return self._range.in_effect if self._range is not None else 0
        return self._at

    @property
    def typing(self) -> bool:
        """Whether a size is being typed."""
        return bool(self._entry)

    def show(self, budgets: BudgetRange, *, pending: bool, label: str = "") -> None:
        """Show these; `pending` while the engine has not yet taken what was chosen.

        A `label` names the memory where there is another slider beside this one.
        """
        if self._pending and not pending:
            self._at = None  # it has: stand where it is in effect
        if (budgets, pending, label) != (self._range, self._pending, self._label):
            self._range, self._pending, self._label = budgets, pending, label
            self.refresh()

    def drop_entry(self) -> None:
        """Forget what was typed, and what was wrong with it."""
        self._entry = self._problem = ""
        self.refresh()

    def render(self) -> VisualType:
        """Draw the amount, the slider, its marks and its ends."""
        budgets, width = self._range, self.content_size.width
        if budgets is None or width < 8:
            return Content("")
        span = budgets.most - budgets.least
        origin = (budgets.in_effect - budgets.least) / span
        share = (self.value - budgets.least) / span
        ends = Content(size(budgets.least)), Content(size(budgets.most))
        gap = max(1, width - ends[0].cell_length - ends[1].cell_length)
        return Content("\n").join(
            [
                self._amount(),
                slider(share, width, live=self.has_focus or not self._label),
                self._marks(width, cell_at(origin, width)),
                Content.assemble(ends[0], " " * gap, ends[1]).stylize("$muted"),
            ]
        )

    def on_focus(self) -> None:
        """Look like what the keys move."""
        self.refresh()

    def on_blur(self) -> None:
        """Look like what they do not move."""
        self.refresh()

    def _amount(self) -> Content:
        label = (f"{self._label}  " if self._label else "", "$muted")
        if self._problem:
            return Content.assemble(label, ("✗ ", "$error"), self._problem)
        if self._entry:
            return Content.assemble(label, (f"{self._entry}▏", "bold $accent"))
        waiting = _("when the engine has taken it") if self._pending else ""
        return Content.assemble(
            label, (size(self.value), "bold"), ("…  " if waiting else "", "$warning"), (waiting, "$warning")
        )

    def _marks(self, width: int, now: int) -> Content:
        """Return the line of marks: ▲ in effect, ◆ the whole model; words where there is room for them."""
        assert self._range is not None
        line = [" "] * width
        marks = [(now, "▲", _("now"))]
        if self._range.whole <= self._range.most:
            span = self._range.most - self._range.least
            whole = cell_at((self._range.whole - self._range.least) / span, width)
            marks.append((whole, "◆", self._whole))
        for cell, mark, _words in marks:
            line[cell] = mark
        for cell, _mark, words in marks:
            self._write_beside(line, cell, words)
        text = "".join(line)
        return Content(text).highlight_regex(r"[▲◆]", style="$primary")

    @staticmethod
    def _write_beside(line: list[str], cell: int, words: str) -> None:
        """Write words right or left of a mark, if there is room."""
        n = Content(words).cell_length
        for start in (cell + 2, cell - 1 - n):
            if 0 <= start <= len(line) - n and set(line[start : start + n]) == {" "}:
                line[start : start + n] = [words, *[""] * (n - 1)]
                return

    def action_step(self, by: int) -> None:
        """Move the slider."""
        if self._range is None:
            return
        step = max(1, (self._range.most - self._range.least) // _STEPS)
        self._move(self.value + by * step)

    def action_choose(self) -> None:
        """Take what was typed, or where the slider stands."""
        if self._range is None:
            return
        if not self._entry:
            self.post_message(self.Chosen(self, Budget(self.value)))
            return
        try:
            budget = parse_budget(self._entry)
        except ValueError:
            words = _("{text} is no size: 8G, 900MB or 50%").format(text=sanitize_line(self._entry))
            self._entry, self._problem = "", words
        else:
            self._entry = self._problem = ""
            self._at = budget.resolve(self._range.available)
            self.post_message(self.Moved(self._at))
            self.post_message(self.Chosen(self, budget))
        self.refresh()

    def action_rub_out(self) -> None:
        """Take back what was typed last."""
        self._entry = self._entry[:-1]
        self.refresh()

    def on_key(self, event: events.Key) -> None:
        """Type a size: it begins with a digit."""
        letter = event.character or "x"
        if letter in "0123456789" or (self._entry and letter in ".%kKmMgGtTiIbB "):
            self._entry, self._problem = self._entry + letter, ""
            self.refresh()
            event.stop()
            event.prevent_default()

    def on_click(self, event: events.Click) -> None:
        """Stand where the mouse points."""
        place = event.get_content_offset(self)
        if place is not None and self._range is not None and place.y in (1, 2):
            span = self._range.most - self._range.least
            self._move(self._range.least + int(fraction_at(place.x, self.content_size.width) * span))

    def _move(self, n_bytes: int) -> None:
        assert self._range is not None
        self._entry = self._problem = ""
        self._at = min(max(n_bytes, self._range.least), self._range.most)
        self.post_message(self.Moved(self._at))
        self.refresh()
