"""How much memory the loaded model may take: a slider, and what it would bring.

Knows the engine's snapshots and estimates from them; hands what was chosen to whoever opened the screen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from app.budget_estimate import BudgetRange, budget_range
from app.i18n import _
from app.sanitize import sanitize_line
from app.screens.dialog import Dialog
from app.widgets.budget_slider import BudgetSlider
from app.widgets.meters import size
from engine import Budget, EngineSnapshot, TierSnapshot

_POLL_S = 0.2


class BudgetScreen(Dialog[None]):
    """Stays open while budgets are tried; each one chosen goes to the callback, None for the default."""

    CSS_PATH = "budget.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("d", "default", show=False),
    ]

    def __init__(
        self,
        snapshot: Callable[[], EngineSnapshot],
        available: Callable[[], int],
        change: Callable[[Budget | None], None],
    ) -> None:
        """Ask `snapshot` for the engine's state and `available` for bytes that nobody uses."""
        super().__init__()
        self._snapshot = snapshot
        self._available = available
        self._change = change
        self._asked: Budget | None = None
        self._waiting = False
        self._seen = -1
        self._range: BudgetRange | None = None

    def compose(self) -> ComposeResult:
        """Build the panel."""
        with Vertical(id="budget-panel") as panel:
            panel.border_title = _("Memory budget")
            yield Static(id="budget-model")
            yield BudgetSlider()
            yield Static(id="budget-brings")
            yield Static(
                Content(_("←→ move · type 8G, 50% · Enter apply · d default · Esc back")),
                id="budget-keys",
            )

    def on_mount(self) -> None:
        """Show the state, and keep up with it."""
        self._refresh()
        self.query_one(BudgetSlider).focus()
        self.set_interval(_POLL_S, self._refresh)

    def action_leave(self) -> None:
        """Forget what is being typed, or close."""
        slider = self.query_one(BudgetSlider)
        if slider.typing:
            slider.drop_entry()
        else:
            self.dismiss(None)

    def action_default(self) -> None:
        """Leave it to the engine."""
        if self._range is not None:
            self._ask(None)

    @on(BudgetSlider.Moved)
    def _moved(self) -> None:
        self._tell()

    @on(BudgetSlider.Chosen)
    def _chosen(self, event: BudgetSlider.Chosen) -> None:
        self._ask(event.budget)

    def _ask(self, budget: Budget | None) -> None:
        self._asked, self._waiting, self._seen = budget, True, -1
        self._change(budget)
        self._refresh()

    def _refresh(self) -> None:
        snapshot = self._snapshot()
        if snapshot.seq == self._seen:
            return
        self._seen = snapshot.seq
        self._waiting = self._waiting and snapshot.ram_budget != self._asked
        budgets = budget_range(snapshot, self._available())
        slider = self.query_one(BudgetSlider)
        slider.display = budgets is not None
        self._range = budgets
        if budgets is not None:
            slider.show(budgets, pending=self._waiting)
        self.query_one("#budget-model", Static).update(_about(snapshot, budgets))
        self._tell()

    def _tell(self) -> None:
        """Say what the budget under the slider would bring."""
        brings = self.query_one("#budget-brings", Static)
        tiers = self._snapshot().tiers
        brings.display = self._range is not None
        if self._range is not None and tiers is not None:
            brings.update(_brings(self._range, self.query_one(BudgetSlider).value, tiers))


def _about(snapshot: EngineSnapshot, budgets: BudgetRange | None) -> Content:
    if snapshot.model is None:
        return Content(_("No model is loaded: there is nothing to give memory to."))
    name = Content.styled(sanitize_line(snapshot.model.name), "bold")
    if budgets is None:
        if snapshot.tiers is not None:
            why = _("All of it is in video memory, where no other budget can be given while it is loaded.")
        else:
            why = _("All of it is in memory: NumPy computes, which reads nothing later.")
        return Content.assemble(name, "\n", why)
    words = _("whole {whole} · available {available}")
    text = words.format(whole=size(budgets.whole), available=size(budgets.available))
    return Content.assemble(name, "\n", (text, "$muted"))


def _brings(budgets: BudgetRange, wanted: int, tiers: TierSnapshot) -> Content:
    now = _reads(_("disk now"), size(budgets.read_now), budgets.read_now, tiers.disk_rate)
    reads = budgets.reads(wanted)
    then = _reads(_("disk then"), f"~{size(reads)}", reads, tiers.disk_rate)
    lines = [now] if wanted == budgets.in_effect else [now, then]
    if wanted > budgets.available:
        lines.append(
            Content.styled(_("! more than is available: other programs will be pushed out"), "$warning")
        )
    lines.append(Content.styled(_("Applies between two tokens, also while a reply grows."), "$muted"))
    return Content("\n").join(lines)


def _reads(when: str, amount: str, n_bytes: int, disk_rate: float | None) -> Content:
    words = _("{amount} a token").format(amount=amount) if n_bytes else _("nothing is read")
    time = _(", {seconds:.2g} s").format(seconds=n_bytes / disk_rate) if disk_rate and n_bytes else ""
    return Content.assemble((f"{when}  ", "bold"), words, (time, "$muted"))
