"""A small application around the widgets under test: the real style sheet, no engine, no store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from textual.app import App, ComposeResult
from textual.message import Message
from textual.pilot import Pilot
from textual.widget import Widget

import app.screens
from app.themes import TOKENS

M = TypeVar("M", bound=Message)


class Host(App[None]):
    """Shows widgets one below the other and remembers the messages that come from them."""

    AUTO_FOCUS = ""
    CSS_PATH = Path(app.screens.__file__ or "").parent / "chat.tcss"

    def __init__(self, *content: Widget) -> None:
        super().__init__()
        self._content = content
        self.heard: list[Message] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return TOKENS

    def listen(self, message: Message) -> None:
        """Remember a message once, whatever widgets it comes by."""
        if not any(message is known for known in self.heard):
            self.heard.append(message)

    def compose(self) -> ComposeResult:
        yield from self._content

    def heard_of(self, kind: type[M]) -> list[M]:
        return [message for message in self.heard if isinstance(message, kind)]


@asynccontextmanager
async def hosting(
    *content: Widget, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[tuple[Host, Pilot[Any]]]:
    host = Host(*content)
    async with host.run_test(size=size, message_hook=host.listen) as pilot:
        await pilot.pause()
        yield host, pilot


def screen_text(host: App[Any]) -> str:
    """Return what a person sees, line by line."""
    strips = host.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def until(pilot: Pilot[Any], condition: Callable[[], object]) -> None:
    """Wait until `condition` holds."""
    for _ in range(500):
        if condition():
            return
        await pilot.pause(0.02)
    raise AssertionError(f"never happened\n{screen_text(pilot.app)}")
