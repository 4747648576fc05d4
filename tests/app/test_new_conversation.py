"""New conversations are led as the settings say, from the first one on."""

from __future__ import annotations

from pathlib import Path

from app import locations
from app.new_conversation import new_conversation
from app.settings import Settings
from tests.app.driving import running

PERSONA = 'name = "Pirate"\nsystem = "Talk like a pirate."\n[sampling]\ntemperature = 1.5\n'


def settings(text: str) -> None:
    file = locations.settings_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_without_a_persona_a_conversation_leaves_all_to_the_settings(home: Path) -> None:
    conversation = new_conversation(Settings())
    assert (conversation.persona, conversation.system, conversation.sampling) == ("", None, None)


async def test_every_new_conversation_has_the_persona_of_the_settings(home: Path) -> None:
    settings('persona = "Pirate"\n')
    folder = locations.config_dir() / "personas"
    folder.mkdir()
    (folder / "pirate.toml").write_text(PERSONA)
    async with running() as driver:
        await driver.ready()
        for message in ("one", "two"):
            await driver.say(message)
            await driver.answered()
            await driver.pilot.press("ctrl+n")
            await driver.until(lambda: not driver.turns, "a new conversation")
        for request in driver.engine.requests:
            assert request.messages[0].content == "Talk like a pirate."
            assert request.sampling.temperature == 1.5
        assert "Pirate" in driver.screen_text()


async def test_a_persona_of_the_settings_that_is_gone_is_told(home: Path) -> None:
    settings('persona = "Nobody"\n')
    async with running() as driver:
        await driver.until(lambda: "there is no persona Nobody" in driver.screen_text(), "it says so")


async def test_the_time_after_which_a_model_is_let_go_holds_from_the_start(home: Path) -> None:
    settings("unload_after_min = 3\n")
    async with running() as driver:
        assert driver.chat.bridge.unload_after_s == 180
