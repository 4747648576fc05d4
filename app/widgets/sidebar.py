"""The left pane: search field, conversations, facts about the model. Shows what it is given."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from app.sanitize import sanitize_line
from app.widgets.conversation_list import ConversationList
from app.widgets.meters import parameters, size
from engine import EngineSnapshot


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
                (template, "$warning"),
            )
        )
