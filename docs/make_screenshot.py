"""Make the pictures in docs: the real application, the real model, a home of its own, while a reply grows.

    python docs/make_screenshot.py [MODEL]

MODEL is a path or a name from `tiercel models` (default: smollm2). It gets so little memory that part of its
blocks are read from disk, so that the map has something to show. Sampling is greedy, so that the pictures say
the same each time; the speeds in them, and what moves, are those of this machine and that moment.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from app.app import TiercelApp  # noqa: E402
from app.models import resolve_model  # noqa: E402
from app.models.options import Chosen  # noqa: E402
from app.screens.chat import ChatScreen  # noqa: E402
from app.widgets.prompt import Prompt  # noqa: E402
from engine import Engine, EngineState, parse_budget  # noqa: E402

CHOSEN = Chosen(ram_budget=parse_budget("320M"))
SETTINGS = """\
welcomed = true
language = "en"

[sampling]
temperature = 0
"""
BEFORE = (
    "What is a falcon? One sentence, please.",
    "Name three birds of prey and one thing each is known for.",
)
"""Conversations for the list."""
QUESTION = (
    "Write a short Python class for a bird with a name and a speed, show how to use it, and explain it step "
    "by step."
)
LONGEST_S = 120.0
"""For one picture."""
PICTURES = {"screenshot.svg": ((120, 40), 420), "screenshot-80x24.svg": ((80, 24), 330)}
"""Size, and how many characters the reply has when the picture is taken."""


async def _until_idle(chat: ChatScreen) -> None:
    while chat.bridge.busy or chat.bridge.snapshot.state is not EngineState.READY:
        if chat.bridge.snapshot.state is EngineState.FAILED:
            raise RuntimeError(chat.bridge.snapshot.error)
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)  # the last frame


async def _until_long(chat: ChatScreen, characters: int) -> None:
    while chat.bridge.busy and len(chat.workspace.current.turns[-1].text) < characters:
        await asyncio.sleep(0.02)
    if not chat.bridge.busy:
        raise RuntimeError(f"the reply has ended before its {characters}th character: ask for a longer one")


async def _record(model: Path, size: tuple[int, int], characters: int) -> str:
    app = TiercelApp(Engine, model, CHOSEN)
    try:
        # An application that has failed stands still; what has failed is raised when it is left.
        async with app.run_test(size=size) as pilot, asyncio.timeout(LONGEST_S):
            chat = app.screen
            assert isinstance(chat, ChatScreen)
            prompt = chat.query_one(Prompt)
            prompt.cursor_blink = False
            await _until_idle(chat)
            for question in (*BEFORE, QUESTION):
                await _until_idle(chat)
                await chat.action_new_chat()
                prompt.text = question
                await pilot.press("enter")
            await _until_long(chat, characters)
            return app.export_screenshot(title="tiercel")
    finally:
        app.shut_down()


def main() -> None:
    """Write the pictures."""
    model = resolve_model(sys.argv[1] if len(sys.argv) > 1 else "smollm2").resolve()
    for name, (size, characters) in PICTURES.items():
        with tempfile.TemporaryDirectory() as home:
            os.environ["TIERCEL_HOME"] = home
            settings = Path(home) / "config" / "settings.toml"
            settings.parent.mkdir()
            settings.write_text(SETTINGS, encoding="utf-8")
            svg = asyncio.run(_record(model, size, characters))
        (REPO / "docs" / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
