"""All keys and where things are kept. Made from the registry of actions, so it cannot fall behind."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from app import locations
from app.actions import ACTIONS
from app.sanitize import sanitize_line
from app.screens.dialog import Dialog


class HelpScreen(Dialog[None]):
    """A list of keys over the chat."""

    CSS_PATH = "help.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """Build the list."""
        width = max(len(action.shown) for action in ACTIONS) + 2
        lines = [
            Content.assemble((action.shown.ljust(width), "bold $primary"), action.help) for action in ACTIONS
        ]
        places = (("settings", locations.config_dir()), ("conversations", locations.data_dir()))
        lines.append(Content(""))
        lines += [
            Content.styled(f"{what} are in {sanitize_line(str(where))}", "$muted") for what, where in places
        ]
        panel = VerticalScroll(Static(Content("\n").join(lines)), id="help-panel")
        panel.border_title = "Keys"
        yield panel
