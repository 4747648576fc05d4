"""Make docs/screenshot.svg: the real application, the real model, a home of its own.

    python docs/make_screenshot.py [MODEL]

MODEL is a path or a name from `tiercel models` (default: smollm2). Sampling is greedy, so that the picture
says the same each time; the speeds in it are those of this machine.
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
from app.screens.chat import ChatScreen  # noqa: E402
from app.widgets.prompt import Prompt  # noqa: E402
from engine import Engine, EngineState  # noqa: E402

QUESTIONS = (
    "Name three birds of prey and one thing each is known for.",
    "Show me a short Python function that adds two numbers, and explain it.",
)


async def _until_idle(chat: ChatScreen) -> None:
    while chat.bridge.busy or chat.bridge.snapshot.state is not EngineState.READY:
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)  # the last frame


async def _record(model: Path) -> str:
    app = TiercelApp(Engine, model)
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            chat = app.screen
            assert isinstance(chat, ChatScreen)
            prompt = chat.query_one(Prompt)
            prompt.cursor_blink = False
            await _until_idle(chat)
            for question in QUESTIONS:
                await pilot.press("ctrl+n")
                prompt.text = question
                await pilot.press("enter")
                await _until_idle(chat)
            return app.export_screenshot(title="tiercel")
    finally:
        app.shut_down()


def main() -> None:
    """Write the picture."""
    model = resolve_model(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
    with tempfile.TemporaryDirectory() as home:
        os.environ["TIERCEL_HOME"] = home
        settings = Path(home) / "config" / "settings.toml"
        settings.parent.mkdir()
        settings.write_text("[sampling]\ntemperature = 0\n", encoding="utf-8")
        svg = asyncio.run(_record(model.resolve()))
    (REPO / "docs" / "screenshot.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
