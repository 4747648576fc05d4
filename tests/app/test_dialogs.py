"""Dialogs under impatient hands: keys pressed twice, and keys before there is room."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual.events import Key

from app.widgets.conversation_list import ConversationList
from tests.app.driving import Driver, running
from tests.tiny_gguf import write_tiny_model


def _press(driver: Driver, *keys: str) -> None:
    """Send keys without waiting for what they do."""
    for key in keys:
        driver.app.post_message(Key(key, None))


@pytest.mark.parametrize("opening", [("f1",), ("f3",), ("ctrl+p", "ctrl+p")])
async def test_keys_pressed_twice_open_and_close_a_dialog_once(home: Path, opening: tuple[str, ...]) -> None:
    async with running() as driver:
        await driver.ready()
        _press(driver, *opening)
        await driver.until(lambda: len(driver.app.screen_stack) > 1, "the dialog")
        await driver.settled()
        assert len(driver.app.screen_stack) == 2
        _press(driver, "escape", "escape", "escape")
        await driver.until(lambda: len(driver.app.screen_stack) == 1, "closed")
        await driver.settled()
        assert driver.app.is_running
        assert driver.app.return_code is None


async def test_a_model_chosen_twice_is_loaded_once(home: Path) -> None:
    folder = home / "tiercel" / "data" / "models"
    folder.mkdir(parents=True)
    for name in "ab":
        write_tiny_model(folder / f"{name}.gguf")
    async with running(model=None) as driver:
        await driver.until(lambda: "fits" in driver.screen_text(), "the list")
        _press(driver, "enter", "enter")
        await driver.ready()
        await asyncio.sleep(0.1)
        assert [path.name for path in driver.engine.loaded] == ["a.gguf"]


@pytest.mark.parametrize("opening", ["f2", "f3", "ctrl+p"])
@pytest.mark.parametrize("size", [(80, 24), (12, 5)])
async def test_page_keys_do_no_harm_where_a_list_has_no_room(
    home: Path, opening: str, size: tuple[int, int]
) -> None:
    async with running() as driver:
        await driver.ready()
        await driver.say("hello")
        await driver.answered()
        _press(driver, opening, "pagedown", "pageup")
        await driver.settled()
        await driver.pilot.resize_terminal(*size)
        _press(driver, "pagedown", "pageup", "down", "up")
        await driver.settled(10)
        driver.chat.query_one(ConversationList).action_page_up()
        assert driver.app.return_code is None
