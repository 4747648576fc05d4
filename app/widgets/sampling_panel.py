"""The side panel of the sampling parameters: what is in effect, what was asked for, and how to change it.

Knows what the engine has acknowledged because it is told. Sends nothing to the engine itself.
"""

from __future__ import annotations

from dataclasses import fields
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from app.i18n import _
from app.widgets.sampling_table import SamplingTable
from engine import SamplingParams


class SamplingPanel(Vertical):
    """A column of 34 cells at the right of the conversation, or over it."""

    DEFAULT_CSS = """
    SamplingPanel {
        width: 34;
        height: 100%;
        padding: 1 1 0 1;
        background: $surface;
        & > SamplingTable { height: 1fr; max-height: 19; margin-top: 1; }
        & > .head { height: 1; width: 100%; }
        & > .keys { height: auto; width: 100%; margin-top: 1; padding-left: 1; color: $muted; }
        &.-low { padding: 0 1; }
        &.-low > SamplingTable { margin-top: 0; }
        &.-low > .keys { display: none; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]

    class Changed(Message):
        """Someone wants tokens to be drawn like this from now on."""

        def __init__(self, params: SamplingParams) -> None:
            """`params` are complete and within range."""
            super().__init__()
            self.params = params

    class Left(Message):
        """Someone is done with the panel."""

    def __init__(self) -> None:
        """Show the defaults until told otherwise."""
        super().__init__()
        self._wanted = SamplingParams()
        self._in_effect = SamplingParams()
        self._unheard = False

    def compose(self) -> ComposeResult:
        """Build the panel."""
        yield Static(classes="head")
        yield SamplingTable()
        yield Static(
            Content(_("↑↓ choose  ←→ change  ⇧ more\n0-9 type  r reset  R reset all")), classes="keys"
        )

    def on_mount(self) -> None:
        """Draw the heading."""
        self._show_head(False)

    def on_resize(self) -> None:
        """Leave out the air where there is little room."""
        self.set_class(self.size.height < 20, "-low")

    def show(self, params: SamplingParams, pending: bool, last_seed: int = 0) -> None:
        """Show what is in effect. While `pending`, what was asked for stays, marked where it differs.

        `last_seed` is what the newest reply was drawn with; the seed is fixed at it.
        """
        if self._unheard and not pending and params == self._in_effect:
            # Said before our own message was heard; answering to it would take the newest change back.
            self._unheard = False
            return
        self._unheard = False
        self._in_effect = params
        if not pending:
            self._wanted = params
        names = (field.name for field in fields(params))
        waiting = [name for name in names if getattr(params, name) != getattr(self._wanted, name)]
        self.query_one(SamplingTable).set_values(self._wanted, waiting=waiting, last_seed=last_seed)
        self._show_head(bool(waiting))

    def focus_rows(self) -> None:
        """Give the keys to the rows."""
        self.query_one(SamplingTable).focus()

    def action_leave(self) -> None:
        """Forget what was being typed, or close."""
        table = self.query_one(SamplingTable)
        if table.typing:
            table.drop_entry()
        else:
            self.post_message(self.Left())

    def on_sampling_table_edited(self, event: SamplingTable.Edited) -> None:
        """Tell that parameters were changed."""
        event.stop()
        self._wanted = event.params
        self._unheard = True
        self.post_message(self.Changed(event.params))

    def _show_head(self, waiting: bool) -> None:
        words = _("from the next token") if waiting else "^R"
        title = Content.styled(_("SAMPLING"), "bold $primary")
        right = Content.styled(f"{words}…" if waiting else words, "$warning" if waiting else "$muted")
        gap = max(1, 32 - title.cell_length - right.cell_length)
        self.query_one(".head", Static).update(Content.assemble(title, " " * gap, right))
