"""The left pane: search field, conversations, and cards of the model, the context and the sampling.

Shows what it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input

from app.conversation import Conversation
from app.i18n import _
from app.sanitize import sanitize_line
from app.widgets.context_meter import ContextMeter
from app.widgets.conversation_list import ConversationList
from app.widgets.meters import parameters, size
from app.widgets.still import Words
from app.widgets.switches import Switch, Switches
from engine import EngineSnapshot, SamplingParams


class Sidebar(Vertical):
    """Search field, list and cards."""

    def compose(self) -> ComposeResult:
        """Build the pane."""
        yield Input(placeholder=_("Search"), compact=True, id="search")
        yield ConversationList()
        yield Words(id="model-card", classes="card")
        meter = ContextMeter()
        meter.add_class("card")
        yield meter
        yield Words(id="sampling-card", classes="card")
        switches = Switches()
        switches.add_class("card")
        yield switches

    def show(self, snapshot: EngineSnapshot, conversation: Conversation, sampling: SamplingParams) -> None:
        """Show what is loaded, how it runs, and how the conversation is led."""
        self.query_one("#model-card", Words).update(_model(snapshot))
        self.query_one("#sampling-card", Words).update(_sampling(conversation, sampling))

    def show_switches(self, switches: Sequence[Switch]) -> None:
        """Show what is on, and what has come of it."""
        self.query_one(Switches).show(switches)


def _model(snapshot: EngineSnapshot) -> Content:
    model = snapshot.model
    if model is None:
        return Content.assemble((_("MODEL") + "\n", "$muted"), _("none loaded"))
    facts = f"{parameters(model.n_parameters)} · {model.quantisation} · {size(model.file_bytes)}"
    engine = f"{sanitize_line(snapshot.backend)} · {_on_what(snapshot)}" if snapshot.backend else ""
    template = "" if model.has_template else "\n" + _("base model: it continues your text")
    return Content.assemble(
        (_("MODEL") + "\n", "$muted"),
        (sanitize_line(model.name), "bold"),
        f"\n{facts}\n",
        (engine, "$muted"),
        (template, "$warning"),
    )


def _on_what(snapshot: EngineSnapshot) -> str:
    """The GPU, or how many threads of the processor."""
    gpu = snapshot.tiers.gpu if snapshot.tiers is not None else None
    if gpu is not None:
        return sanitize_line(gpu.name)
    return _("{count} threads").format(count=snapshot.threads)


def _sampling(conversation: Conversation, sampling: SamplingParams) -> Content:
    """The persona, and what differs from the defaults."""
    lines = []
    if conversation.persona:
        lines.append(sanitize_line(conversation.persona))
    defaults = asdict(SamplingParams())
    changed = {name: value for name, value in asdict(sampling).items() if value != defaults[name]}
    shown = {"temperature": sampling.temperature, "top_p": sampling.top_p, **changed}
    lines.append("\n".join(f"{name} {value:g}" for name, value in shown.items() if value is not None))
    return Content.assemble((_("SAMPLING") + "\n", "$muted"), "\n".join(lines))
