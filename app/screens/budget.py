"""How much memory of machine and GPU the loaded model may take: sliders, and what they would bring.

Knows the engine's snapshots and estimates from them; hands what was chosen to whoever opened the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from app.background import in_thread
from app.bridge import BudgetOf, n_events, refusal
from app.budget_estimate import BudgetRange, computing_bytes, ram_range, vram_range
from app.i18n import _
from app.live_reply import in_our_words
from app.sanitize import sanitize_line
from app.screens.dialog import Dialog
from app.widgets.budget_slider import BudgetSlider
from app.widgets.meters import size
from engine import Budget, EngineSnapshot, TierSnapshot

_POLL_S = 0.2
_NAMES: Final[dict[BudgetOf, str]] = {"vram_budget": "VRAM", "ram_budget": "RAM "}


class BudgetScreen(Dialog[None]):
    """Stays open while budgets are tried; each one chosen goes to the callback, None for the default."""

    CSS_PATH = "budget.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", show=False),
        Binding("d", "default", show=False),
        Binding("up,down,tab,shift+tab", "other", show=False),
    ]

    def __init__(
        self,
        snapshot: Callable[[], EngineSnapshot],
        available: Callable[[], int],
        change: Callable[[BudgetOf, Budget | None], None],
        memory: BudgetOf = "ram_budget",
    ) -> None:
        """Ask `snapshot` for the engine's state and `available` for bytes that nobody uses.

        `memory` is what the keys move first, where there is a choice.
        """
        super().__init__()
        self._snapshot = snapshot
        self._available = available
        self._change = change
        self._first = memory
        self._asked: dict[BudgetOf, Budget | None] = {}
        """What the engine has not taken yet."""
        self._since: dict[BudgetOf, int] = {}
        """How many events there had been when it was asked for."""
        self._refused: dict[BudgetOf, str] = {}
        """Why the engine did not take what was asked for last."""
        self._computing = 0
        """Bytes that computing takes; 0 until they are known."""
        self._seen = -1
        self._ranges: dict[BudgetOf, BudgetRange] = {}

    def compose(self) -> ComposeResult:
        """Build the panel."""
        with Vertical(id="budget-panel") as panel:
            panel.border_title = _("Memory budget")
            yield Static(id="budget-model")
            yield BudgetSlider(_("all on the card"), id="vram_budget")
            yield BudgetSlider(_("all in memory"), id="ram_budget")
            yield Static(id="budget-brings")
            yield Static(id="budget-keys")

    def on_mount(self) -> None:
        """Show the state, and keep up with it."""
        self._refresh()
        shown = self._first if self._first in self._ranges else next(iter(self._ranges), self._first)
        self.query_one(f"#{shown}").focus(scroll_visible=False)
        self.watch(self.query_one("#budget-panel"), "virtual_size", self._keep_in_view)
        self.set_interval(_POLL_S, self._refresh)
        self.run_worker(self._find_computing())

    async def _find_computing(self) -> None:
        """Learn what computing takes; the file may be slow to read."""
        snapshot = self._snapshot()
        self._computing = await in_thread(lambda: computing_bytes(snapshot))
        self._seen = -1
        self._refresh()

    def action_leave(self) -> None:
        """Forget what is being typed, or close."""
        slider = self._slider
        if slider is not None and slider.typing:
            slider.drop_entry()
        else:
            self.dismiss(None)

    def action_default(self) -> None:
        """Leave it to the engine."""
        if (slider := self._slider) is not None:
            self._ask(_memory_of(slider), None)

    def action_other(self) -> None:
        """Go to the other slider, if there is one."""
        present = self._slider
        for slider in self.query(BudgetSlider):
            if slider.display and slider is not present:
                slider.focus(scroll_visible=False)

    @property
    def _slider(self) -> BudgetSlider | None:
        """The one that the keys move."""
        return self.focused if isinstance(self.focused, BudgetSlider) and self.focused.display else None

    @on(BudgetSlider.Moved)
    def _moved(self) -> None:
        self._tell()

    @on(BudgetSlider.Chosen)
    def _chosen(self, event: BudgetSlider.Chosen) -> None:
        self._ask(_memory_of(event.slider), event.budget)

    def on_descendant_focus(self) -> None:
        """Say what the other budget would bring."""
        self._tell()
        self._keep_in_view()

    def _keep_in_view(self) -> None:
        """Scroll to what the keys move: where there are few rows, what is told of it pushes it away.

        At once: a scroll of some frames would undo the one that the next key asks for.
        """
        if (slider := self._slider) is not None:
            self.call_after_refresh(slider.scroll_visible, animate=False)

    def _ask(self, memory: BudgetOf, budget: Budget | None) -> None:
        self._asked[memory], self._seen = budget, -1
        self._since[memory] = n_events(self._snapshot())
        self._refused.pop(memory, None)
        self._change(memory, budget)
        self._refresh()

    def _refresh(self) -> None:
        snapshot = self._snapshot()
        if snapshot.seq == self._seen:
            return
        self._seen = snapshot.seq
        in_effect = {"ram_budget": snapshot.ram_budget, "vram_budget": snapshot.vram_budget}
        self._asked = {memory: asked for memory, asked in self._asked.items() if in_effect[memory] != asked}
        for memory in list(self._asked):
            if text := refusal(snapshot, memory, self._since[memory]):
                del self._asked[memory]
                self._refused[memory] = sanitize_line(in_our_words(text))
        found = {
            "vram_budget": vram_range(snapshot),
            "ram_budget": ram_range(snapshot, self._available(), self._computing),
        }
        self._ranges = {}
        for slider in self.query(BudgetSlider):
            memory = _memory_of(slider)
            budgets = found[memory]
            slider.display = budgets is not None
            if budgets is not None:
                self._ranges[memory] = budgets
                label = _NAMES[memory] if found["vram_budget"] is not None else ""
                slider.show(budgets, pending=memory in self._asked, label=label)
        if self._slider is None and self._ranges and self.focused is not None:  # it has gone
            self.query_one(f"#{next(iter(self._ranges))}").focus(scroll_visible=False)
        self.query_one("#budget-model", Static).update(_about(snapshot, self._ranges))
        keys = _("←→ move · type 8G, 50% · Enter apply · d default · Esc back")
        if len(self._ranges) > 1:
            keys = _("↑↓ choose · ") + keys
        self.query_one("#budget-keys", Static).update(Content(keys))
        self._tell()

    def _tell(self) -> None:
        """Say what the budget under the slider would bring."""
        brings, slider = self.query_one("#budget-brings", Static), self._slider
        tiers = self._snapshot().tiers
        budgets = self._ranges.get(_memory_of(slider)) if slider is not None else None
        brings.display = budgets is not None
        if slider is not None and budgets is not None and tiers is not None:
            told = _brings(_memory_of(slider), budgets, slider.value, tiers)
            if refused := self._refused.get(_memory_of(slider)):
                told = Content.assemble(("✗ ", "$error"), refused, "\n", told)
            brings.update(told)


def _memory_of(slider: BudgetSlider) -> BudgetOf:
    return "vram_budget" if slider.id == "vram_budget" else "ram_budget"


def _about(snapshot: EngineSnapshot, ranges: Mapping[BudgetOf, BudgetRange]) -> Content:
    if snapshot.model is None:
        return Content(_("No model is loaded: there is nothing to give memory to."))
    lines = [Content.styled(sanitize_line(snapshot.model.name), "bold")]
    if not ranges:
        lines.append(Content(_("All of it is in memory: NumPy computes, which reads nothing later.")))
    for memory, budgets in ranges.items():
        words = _("whole {whole} · available {available}")
        text = words.format(whole=size(budgets.whole), available=size(budgets.available))
        label = f"{_NAMES[memory]}  " if "vram_budget" in ranges else ""
        lines.append(Content.styled(label + text, "$muted"))
    return Content("\n").join(lines)


def _brings(memory: BudgetOf, budgets: BudgetRange, wanted: int, tiers: TierSnapshot) -> Content:
    outside = budgets.outside(wanted)
    if memory == "ram_budget":
        now = _reads(_("disk now"), size(budgets.outside_now), budgets.outside_now, tiers.disk_rate)
        then = _reads(_("disk then"), f"~{size(outside)}", outside, tiers.disk_rate)
    else:
        now = _beside(_("beside the card now"), size(budgets.outside_now), budgets.outside_now)
        then = _beside(_("beside the card then"), f"~{size(outside)}", outside)
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


def _beside(when: str, amount: str, n_bytes: int) -> Content:
    """What the processor computes, or what is copied to the GPU: which of them, only the engine can say."""
    words = _("{amount} a token").format(amount=amount) if n_bytes else _("nothing: all is on the card")
    return Content.assemble((f"{when}  ", "bold"), words)
