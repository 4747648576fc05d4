"""Run the application in a test: a home of its own, a fake engine, conditions that are polled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from textual._context import visible_screen_stack
from textual.pilot import Pilot

from app import locations
from app.app import TiercelApp
from app.screens.chat import ChatScreen
from app.widgets.prompt import Prompt
from app.widgets.transcript import Transcript
from app.widgets.turn import TurnView
from tests.fakes import FakeEngine, Script

WAIT_S = 10.0


class Driver:
    """A running application and short names for what tests do with it."""

    def __init__(self, pilot: Pilot[int | None]) -> None:
        self.app = cast(TiercelApp, pilot.app)
        self.pilot = pilot

    @property
    def engine(self) -> FakeEngine:
        return cast(FakeEngine, self.chat.bridge._engine)

    @property
    def chat(self) -> ChatScreen:
        return cast(ChatScreen, self.app.screen_stack[0])

    @property
    def prompt(self) -> Prompt:
        return self.chat.query_one(Prompt)

    @property
    def turns(self) -> list[TurnView]:
        return list(self.chat.query_one(Transcript).query(TurnView))

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Wait for a condition instead of for idleness; fail with `what` after WAIT_S."""
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, f"never happened: {what or condition}\n{self.screen_text()}"
            await asyncio.sleep(0.01)
        await self.settled(1)

    async def ready(self) -> None:
        await self.until(lambda: self.chat.bridge.snapshot.state == "ready", "the model is ready")

    async def say(self, text: str) -> None:
        self.prompt.text = text
        await self.pilot.press("enter")
        await self.until(lambda: self.turns and text in [view.turn.text for view in self.turns], "sent")

    async def answered(self) -> None:
        await self.until(lambda: not self.chat.bridge.busy, "the reply has ended")
        await self.settled()

    async def settled(self, rounds: int = 3) -> None:
        """Let what was already decided be drawn; `pilot.pause` would wait for the engine as well."""
        for _ in range(rounds):
            await self.pilot._wait_for_screen()
            await asyncio.sleep(0.02)

    def screen_text(self) -> str:
        """Return what a person sees, line by line."""
        screen = self.app.screen
        width, height = screen.size
        # What is drawn here is kept: without this a dialog would keep an empty screen below it.
        visible_screen_stack.set(self.app._background_screens)
        strips = screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip) for strip in strips[:height])[
            : width * 999
        ]


@asynccontextmanager
async def running(
    script: Script | None = None,
    *,
    size: tuple[int, int] = (100, 30),
    model: Path | None = Path("/models/fake.gguf"),
    welcomed: bool = True,
) -> AsyncIterator[Driver]:
    """Run the application on a fake engine, as who has been here before, and shut it down afterwards."""
    settings = locations.settings_file()
    text = settings.read_text() if settings.exists() else ""
    if welcomed and "welcomed" not in text:
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text("welcomed = true\n" + text)
    app = TiercelApp(lambda: FakeEngine(script), model)
    try:
        async with app.run_test(size=size) as pilot:
            yield Driver(pilot)
            app.workers.cancel_all()  # as a real run does at its end, before the widgets go
    finally:
        app.shut_down()
