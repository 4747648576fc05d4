"""The welcome of the first start: what this is, which colours, which model; one dialog, three keys.

Knows names of themes and how large the starter model is; fetching and choosing are left to whoever opened it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.fetch import STARTER
from app.i18n import _
from app.keymap import by_id, shown_key
from app.sanitize import sanitize_line
from app.screens.dialog import Dialog
from app.widgets.meters import size
from app.widgets.option_list import SteadyOptionList


class WelcomeScreen(Dialog[str]):
    """Closes with "models" (choose one), "starter" (fetch it) or "chat" (neither)."""

    CSS_PATH = "welcome.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss('chat')", "Skip"),
        Binding("left", "theme(-1)", "Theme before"),
        Binding("right", "theme(1)", "Next theme"),
    ]

    def __init__(self, has_model: bool, themes: Sequence[str], change: Callable[..., None]) -> None:
        """`has_model`: one is being loaded. `change(theme=...)` is called for each theme that is tried."""
        super().__init__()
        self._has_model = has_model
        self._themes = themes
        self._change = change

    def compose(self) -> ComposeResult:
        """Build the three steps."""
        about = _(
            "Talk to language models that run on this machine, even ones larger than its memory, and see"
            " where each part of them is. Nothing you write leaves it."
        )
        starter = ("starter", _("Fetch the starter model ({0})").format(size(STARTER.size)))
        if self._has_model:
            choices = [("chat", _("The model found here")), ("models", _("Choose another model"))]
        else:
            choices = [starter, ("models", _("Choose a file, or another model"))]
            choices.append(("chat", _("Look around first")))
        with VerticalScroll(id="welcome-panel", can_focus=False) as panel:
            panel.border_title = _("Welcome to Tiercel")
            yield Static(Content(about), id="welcome-about")
            yield Static(id="welcome-theme")
            yield Static(Content(_("What do you want to talk to?")), classes="welcome-step")
            yield SteadyOptionList(
                *(Option(text, id=name) for name, text in choices), id="welcome-models", markup=False
            )
            more = _("{0} shows all keys, {1} all settings, at any time.")
            keys = (shown_key(by_id("help")), shown_key(by_id("settings")))
            yield Static(Content(more.format(*keys)), id="welcome-end")

    def on_mount(self) -> None:
        """Begin with the model; the theme changes with its own keys."""
        self.query_one(OptionList).focus()
        self._show_theme()

    def on_resize(self, event: Resize) -> None:
        """Say as much as there is room for."""
        wide = _("Left Right colours · Enter begin · Esc skip")
        self.query_one("#welcome-panel").border_subtitle = (
            wide if event.size.width >= 60 else _("‹ › colours · Enter · Esc skip")
        )
        self.query_one("#welcome-end").display = event.size.height >= 18

    def action_theme(self, step: int) -> None:
        """Try the next theme, or the one before."""
        at = self._themes.index(self.app.theme) + step if self.app.theme in self._themes else 0
        self._change(theme=self._themes[at % len(self._themes)])
        self._show_theme()

    @on(OptionList.OptionSelected)
    def _begin(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def _show_theme(self) -> None:
        # The colours that carry a meaning, each with its own letter, as the map of memory has them.
        tiers = (("V", "$tier-vram"), ("R", "$tier-ram"), ("N", "$tier-nvme"))
        self.query_one("#welcome-theme", Static).update(
            Content.assemble(
                _("Colours"),
                ("  ‹ ", "$muted"),
                (sanitize_line(self.app.theme), "bold $primary"),
                (" ›  ", "$muted"),
                *((letter * 4, style) for letter, style in tiers),
            )
        )
