"""A small application that shows one dialog, for tests of dialogs that do not need the chat."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rich.color import ColorSystem
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen

from app.settings import DEFAULT_THEME, SettingsFile
from app.themes import TOKENS, load_themes

SHIPPED = [theme.name for theme in load_themes(Path("/nowhere"))[0]]


class Host(App[None]):
    """Has the themes, the breakpoints and a settings file, and keeps the dialog's answer."""

    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (40, "-narrow"), (100, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (15, "-short"), (30, "-tall")]  # noqa: RUF012

    def __init__(self, file: Path, theme: str = DEFAULT_THEME, *, colourless: bool = False) -> None:
        super().__init__(ansi_color=True if colourless else None)
        for each in load_themes(Path("/nowhere"))[0]:
            self.register_theme(each)
        self.theme = theme
        self.file = SettingsFile(file)
        self.changes: list[dict[str, Any]] = []
        self.answers: list[object] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return TOKENS

    def change(self, **changes: Any) -> None:
        self.changes.append(changes)
        self.file.change(**changes)
        if "theme" in changes:
            self.theme = changes["theme"]

    def screen_text(self) -> str:
        """Return what a person sees, line by line."""
        strips = self.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip) for strip in strips)

    def underlined_text(self) -> list[str]:
        """Return what is underlined."""
        segments = (segment for strip in self.screen._compositor.render_strips() for segment in strip)
        texts = (each.text.strip() for each in segments if each.style and each.style.underline)
        return [text for text in texts if text]

    def invisible_text(self) -> list[str]:
        """Return the texts that have the colour of their ground where a terminal has 16 colours."""
        hidden = []
        for strip in self.screen._compositor.render_strips():
            for segment in strip:
                style = segment.style
                if segment.text.strip() and style and style.color and style.bgcolor:
                    pair = [part.downgrade(ColorSystem.STANDARD) for part in (style.color, style.bgcolor)]
                    if pair[0] == pair[1] and not pair[0].is_default:
                        hidden.append(segment.text)
        return hidden


@asynccontextmanager
async def showing(
    app: Host, dialog: Screen[Any], size: tuple[int, int] = (80, 24)
) -> AsyncIterator[Pilot[None]]:
    """Run `app` with `dialog` open."""
    async with app.run_test(size=size) as pilot:
        app.push_screen(dialog, app.answers.append)
        await pilot.pause()
        yield pilot
