"""A bare application with our themes and breakpoints, for dialogs and widgets that bring their own style."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from textual.app import App, ComposeResult
from textual.widget import Widget

from app.themes import TOKENS, load_themes


class Host(App[None]):
    """Shows what it is given."""

    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (40, "-narrow"), (100, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (15, "-short"), (30, "-tall")]  # noqa: RUF012

    def __init__(self, make: Callable[[], Widget] | None = None) -> None:
        super().__init__()
        self._make = make
        for theme in load_themes(Path("none"))[0]:
            self.register_theme(theme)
        self.theme = "kestrel"

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return TOKENS

    def compose(self) -> ComposeResult:
        if self._make is not None:
            yield self._make()

    def shown(self) -> str:
        """What a person sees, line by line."""
        strips = self.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip) for strip in strips)
