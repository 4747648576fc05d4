"""The palette offers every action and theme, with the person's keys, and runs what is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.command import DiscoveryHit, Hit
from textual.screen import Screen

from app.actions import ACTIONS, Action
from app.keymap import Keymap, use_keymap
from app.palette import Commands
from app.screens.dialog import Palette
from tests.app.dialog_host import SHIPPED, Host, showing


class Chat(Screen[None]):
    """Stands for the chat: remembers what it was asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def ask_argument(self, action: Action) -> None:
        self.asked.append(action.id)

    def action_new_chat(self) -> None:
        self.asked.append("new")


@pytest.fixture(autouse=True)
def _shipped_keys_afterwards() -> Iterator[None]:
    yield
    use_keymap(Keymap())


async def _hits(app: Host, query: str) -> list[Hit | DiscoveryHit]:
    commands = Commands(app.screen)
    found = commands.search(query) if query else commands.discover()
    return [hit async for hit in found]


async def test_every_method_and_theme_is_offered_once(tmp_path: Path) -> None:
    app = Host(tmp_path / "s.toml")
    async with app.run_test():
        titles = [str(hit.text) for hit in await _hits(app, "")]
    methods = {action.method for action in ACTIONS if action.method} - {"app.command_palette"}
    assert len([title for title in titles if not title.startswith("Theme:")]) == len(methods)
    assert {f"Theme: {name}" for name in SHIPPED} <= set(titles)


async def test_what_matches_is_found_by_name_before_explanation(tmp_path: Path) -> None:
    app = Host(tmp_path / "s.toml")
    async with app.run_test():
        hits = sorted(await _hits(app, "settings"), reverse=True)
    assert hits[0].text == "Settings"


async def test_keys_are_the_persons(tmp_path: Path) -> None:
    use_keymap(Keymap({"settings": "f9"}))
    app = Host(tmp_path / "s.toml")
    async with app.run_test():
        shown = [str(hit.prompt) for hit in await _hits(app, "settings")]
    assert any("F9" in text for text in shown)
    assert not any("F12" in text for text in shown)


async def test_a_theme_named_like_markup_does_no_harm(tmp_path: Path) -> None:
    app = Host(tmp_path / "s.toml")
    app.register_theme(type(app.get_theme("kestrel"))(name="[/b] x", primary="#123456"))  # type: ignore[misc]
    async with app.run_test():
        assert "Theme: [/b] x" in [hit.text for hit in await _hits(app, "theme")]


@pytest.mark.parametrize(
    ("typed", "done"),
    [("new conversation", ["new"]), ("rename", ["chat.rename"])],
)
async def test_what_is_chosen_is_done(tmp_path: Path, typed: str, done: list[str]) -> None:
    app, chat = Host(tmp_path / "s.toml"), Chat()
    async with app.run_test() as pilot:
        await app.push_screen(chat)
        await app.push_screen(Palette())
        await pilot.pause()
        await pilot.press(*("space" if letter == " " else letter for letter in typed))
        await app.workers.wait_for_complete()
        await pilot.press("enter")
        await pilot.pause()
        assert chat.asked == done
        assert app.screen is chat


async def test_a_theme_is_used_at_once(tmp_path: Path) -> None:
    app = Host(tmp_path / "s.toml")
    async with showing(app, Palette()) as pilot:
        await pilot.press(*"fjord")
        await app.workers.wait_for_complete()
        await pilot.press("enter")
        await pilot.pause()
        assert app.theme == "fjord"
