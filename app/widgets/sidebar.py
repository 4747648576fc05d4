"""The left pane: search field, conversations, facts about the model. Shows what it is given."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from app.sanitize import sanitize_line
from app.widgets.conversation_list import ConversationList
from app.widgets.meters import parameters, size
from engine import EngineSnapshot, TierSnapshot


class Sidebar(Vertical):
    """Search field, list and model card."""

    def compose(self) -> ComposeResult:
        """Build the pane."""
        yield Input(placeholder="Search", compact=True, id="search")
        yield ConversationList()
        yield Static(id="model-card")

    def show_model(self, snapshot: EngineSnapshot) -> None:
        """Show what is loaded and how it runs."""
        card = self.query_one("#model-card", Static)
        model = snapshot.model
        if model is None:
            card.update(Content.assemble(("MODEL\n", "$muted"), "none loaded"))
            return
        facts = f"{parameters(model.n_parameters)} · {model.quantisation} · {size(model.file_bytes)}"
        engine = f"{sanitize_line(snapshot.backend)} · {snapshot.threads} threads" if snapshot.backend else ""
        template = "" if model.has_template else "\nbase model: it continues your text"
        card.update(
            Content.assemble(
                ("MODEL\n", "$muted"),
                (sanitize_line(model.name), "bold"),
                f"\n{facts}\n",
                (engine, "$muted"),
                (_placement(snapshot.tiers), "$muted"),
                (template, "$warning"),
            )
        )


def _placement(tiers: TierSnapshot | None) -> str:
    """Where the weights are when they are not all in memory, and the speed that the plan promises."""
    lines = ""
    if tiers is not None and tiers.pass_read_bytes:
        lines += f"\n{size(tiers.ram_bytes + tiers.ring_bytes)} memory, {size(tiers.pass_read_bytes)} disk"
    if tiers is not None and tiers.predicted_decode_tok_s:
        lines += f"\nplan {tiers.predicted_decode_tok_s:.3g} tok/s: {tiers.limited_by}"
    return lines
