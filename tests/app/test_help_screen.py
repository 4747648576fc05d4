"""The help lists every action and place with the person's keys, and is searched by typing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.widgets import Static

from app import locations
from app.actions import ACTIONS
from app.keymap import Keymap, use_keymap
from app.screens.help import HelpScreen
from app.slash import COMMANDS
from tests.app.dialog_host import SHIPPED, Host, showing


@pytest.fixture
def app(home: Path) -> Iterator[Host]:
    yield Host(home / "settings.toml")
    use_keymap(Keymap())


def _text(app: Host) -> str:
    return " ".join(str(app.screen.query_one("#help-text", Static).content).split())


async def test_every_action_command_and_place_is_listed(app: Host) -> None:
    async with showing(app, HelpScreen(), (120, 40)):
        text = _text(app)
    for action in ACTIONS:
        assert action.help.split(";")[0] in text
        assert action.shown in text
    assert all(f"/{name}" in text for name in COMMANDS)
    for place in (locations.settings_file(), locations.config_dir() / "keymap.toml", locations.models_dir()):
        assert str(place)[-30:] in text.replace(" ", "")


async def test_keys_are_the_persons(app: Host) -> None:
    use_keymap(Keymap({"settings": "f9", "help": "<none>"}))
    async with showing(app, HelpScreen(), (120, 40)):
        text = _text(app)
    assert "F9 All settings" in text
    assert "F12" not in text
    assert "/help This list of keys" in text  # no key is left, the command is


async def test_typing_searches_keys_words_and_commands(app: Host) -> None:
    async with showing(app, HelpScreen()) as pilot:
        await pilot.press(*"sibling")
        assert "Another reply" in _text(app)
        assert "All settings" not in _text(app)
        await pilot.press(*"xyz")
        assert _text(app) == "nothing found"


async def test_a_search_shows_and_finds_the_names_for_the_key_map(app: Host) -> None:
    async with showing(app, HelpScreen()) as pilot:
        assert "turn.edit" not in _text(app)
        await pilot.press(*"turn.e")
        assert "turn.edit" in _text(app)
        assert "chat.new" not in _text(app)


async def test_the_end_is_reached_by_keys_in_a_small_terminal(app: Host) -> None:
    async with showing(app, HelpScreen(), (40, 15)) as pilot:
        assert "Enter" in app.screen_text()
        await pilot.press("ctrl+end")
        await pilot.pause()
        assert "logs" in app.screen_text()
        await pilot.press("ctrl+home", "down", "pagedown", "pageup", "up")
        await pilot.pause()
        assert "Enter" in app.screen_text()


async def test_lines_are_broken_again_when_the_terminal_changes(app: Host) -> None:
    async with showing(app, HelpScreen(), (120, 40)) as pilot:
        await pilot.resize_terminal(40, 15)
        await pilot.pause()
        lines = app.screen_text().splitlines()
        assert "Stop the reply, or" in "\n".join(lines)
        assert "Stop the reply, or loading" not in "\n".join(lines)


@pytest.mark.parametrize("key", ["escape", "f1"])
async def test_it_closes(app: Host, key: str) -> None:
    async with showing(app, HelpScreen()) as pilot:
        await pilot.press(key)
        await pilot.pause()
        assert not isinstance(app.screen, HelpScreen)


@pytest.mark.parametrize("theme", SHIPPED)
async def test_no_text_disappears_where_there_are_16_colours(app: Host, theme: str) -> None:
    app.theme = theme
    async with showing(app, HelpScreen()):
        assert app.invisible_text() == []
