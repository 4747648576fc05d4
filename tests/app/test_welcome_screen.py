"""The welcome is one dialog that can be left at any time and ends in one of three ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.screens.welcome import WelcomeScreen
from tests.app.dialog_host import SHIPPED, Host, showing


@pytest.fixture
def app(home: Path) -> Host:
    return Host(home / "settings.toml")


@pytest.mark.parametrize(
    ("has_model", "keys", "answer"),
    [
        (False, ["enter"], "starter"),
        (False, ["down", "enter"], "models"),
        (False, ["down", "down", "enter"], "chat"),
        (True, ["enter"], "chat"),
        (True, ["down", "enter"], "models"),
        (True, ["escape"], "chat"),
        (False, ["right", "escape"], "chat"),
    ],
)
async def test_how_it_ends(app: Host, has_model: bool, keys: list[str], answer: str) -> None:
    async with showing(app, WelcomeScreen(has_model, SHIPPED, app.change)) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        assert app.answers == [answer]


async def test_themes_are_tried_on_the_spot(app: Host) -> None:
    async with showing(app, WelcomeScreen(False, SHIPPED, app.change)) as pilot:
        at = SHIPPED.index(app.theme)
        await pilot.press("right")
        assert app.theme == SHIPPED[at + 1]
        await pilot.pause()
        assert app.theme in app.screen_text()
        await pilot.press("left", "left")
        assert app.theme == SHIPPED[at - 1]
        assert app.file.values.theme == app.theme


@pytest.mark.parametrize("has_model", [False, True])
async def test_everything_is_seen_at_once_in_the_smallest_terminal(app: Host, has_model: bool) -> None:
    async with showing(app, WelcomeScreen(has_model, SHIPPED, app.change), (40, 15)):
        text = app.screen_text()
        choices = ["The model found", "another"] if has_model else ["98 MB", "Look around"]
        for part in ("Talk to", "leaves", app.theme, *choices, "Esc skip"):
            assert part in text


@pytest.mark.parametrize("theme", SHIPPED)
async def test_no_text_disappears_where_there_are_16_colours(app: Host, theme: str) -> None:
    app.theme = theme
    async with showing(app, WelcomeScreen(True, SHIPPED, app.change)):
        assert app.invisible_text() == []


@pytest.mark.parametrize("theme", SHIPPED)
async def test_the_choice_is_seen_without_colours(home: Path, theme: str) -> None:
    app = Host(home / "settings.toml", theme, colourless=True)
    async with showing(app, WelcomeScreen(True, SHIPPED, app.change)) as pilot:
        await pilot.press("down")
        await pilot.pause()
        assert app.underlined_text() == ["Choose another model"]
