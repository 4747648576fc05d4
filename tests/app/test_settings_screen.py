"""The settings screen shows every typed setting, applies each change at once and refuses what is unusable."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.i18n import use_language
from app.screens.settings import Cycle, SettingRow, SettingsScreen, Typed
from app.settings import ENTRIES, Settings
from engine import Overflow, parse_budget
from tests.app.dialog_host import SHIPPED, Host, showing


@pytest.fixture
def app(home: Path) -> Host:
    return Host(home / "settings.toml")


def _screen(app: Host) -> SettingsScreen:
    return SettingsScreen(app.file, app.change, ["engineer", "poet"])


def _row(app: Host, name: str) -> SettingRow:
    return next(row for row in app.screen.query(SettingRow) if row.field == name)


async def _go(app: Host, pilot: Pilot[None], name: str) -> SettingRow:
    row = _row(app, name)
    row.query_one(Cycle if row.query(Cycle) else Typed).focus()
    await pilot.pause()
    return row


async def _type(app: Host, pilot: Pilot[None], name: str, text: str, *keys: str) -> SettingRow:
    row = await _go(app, pilot, name)
    row.query_one(Typed).value = text
    await pilot.press(*keys)
    await pilot.pause()
    return row


async def test_every_setting_with_a_name_has_a_row(app: Host) -> None:
    async with showing(app, _screen(app)):
        rows = [row.field for row in app.screen.query(SettingRow)]
    assert sorted(rows) == sorted(name for name, entry in ENTRIES.items() if entry.label)


async def test_a_choice_turns_both_ways_and_holds_at_once(app: Host) -> None:
    async with showing(app, _screen(app)) as pilot:
        await _go(app, pilot, "overflow")
        await pilot.press("right")
        assert app.file.values.overflow is Overflow.STOP
        await pilot.press("left")
        assert app.file.values.overflow is Overflow.DROP_OLDEST
        await _go(app, pilot, "greedy")
        await pilot.press("space")
        assert app.file.values.greedy is True
        await _go(app, pilot, "persona")
        await pilot.press("right", "enter")
        assert app.file.values.persona == "poet"
    assert all(len(change) == 1 for change in app.changes)


async def test_themes_are_those_of_the_application(app: Host) -> None:
    async with showing(app, _screen(app)) as pilot:
        await _go(app, pilot, "theme")
        await pilot.press("right")
        assert app.theme != Settings().theme
        assert app.theme == app.file.values.theme


TYPED = [
    ("context", "2048", 2048),
    ("unload_after_min", "30", 30),
    ("ram_budget", "8G", parse_budget("8G")),
    ("device", "CUDA:1", "cuda:1"),
    ("vram_budget", "80%", parse_budget("80%")),
    ("system", "Be brief.\\nAlways.", "Be brief.\nAlways."),
    ("model_folders", "/", (Path("/"),)),
]


@pytest.mark.parametrize("key", ["enter", "down"])
async def test_what_is_typed_holds_when_one_goes_on(app: Host, key: str) -> None:
    async with showing(app, _screen(app)) as pilot:
        for name, text, value in TYPED:
            app.changes.clear()
            await _type(app, pilot, name, text, key)
            await pilot.pause()
            assert getattr(app.file.values, name) == value
            assert app.changes == [{name: value}]


@pytest.mark.parametrize(("name", "text", "value"), TYPED)
async def test_what_is_typed_holds_when_one_leaves(app: Host, name: str, text: str, value: object) -> None:
    async with showing(app, _screen(app)) as pilot:
        await _type(app, pilot, name, text, "escape")
        await pilot.pause()
        assert getattr(app.file.values, name) == value
        assert app.changes == [{name: value}]


async def test_an_unusable_text_is_explained_and_changes_nothing(app: Host) -> None:
    async with showing(app, _screen(app)) as pilot:
        await _type(app, pilot, "context", "many", "enter")
        assert "16,777,216" in app.screen_text()
        assert app.changes == []
        await pilot.press("escape")  # says so once more, and stays
        await pilot.pause()
        assert app.screen.query(SettingRow)
        await pilot.press("escape")
        await pilot.pause()
        assert app.answers == [None]
        assert app.changes == []


async def test_a_corrected_text_takes_the_complaint_away(app: Host) -> None:
    async with showing(app, _screen(app)) as pilot:
        await _type(app, pilot, "context", "many")
        assert "16,777,216" in app.screen_text()
        await _type(app, pilot, "context", "4096")
        assert "16,777,216" not in app.screen_text()


@pytest.mark.parametrize(("name", "value"), [("context", 512), ("tiers", "off"), ("system", "Hello")])
async def test_the_default_comes_back(app: Host, name: str, value: object) -> None:
    app.file.change(**{name: value})
    async with showing(app, _screen(app)) as pilot:
        row = await _go(app, pilot, name)
        assert "•" in app.screen_text()
        await pilot.press("ctrl+r")
        await pilot.pause()
        assert getattr(app.file.values, name) == getattr(Settings(), name)
        assert "•" not in app.screen_text()
        assert row.query_one(Cycle if row.query(Cycle) else Typed).value in ("", getattr(Settings(), name))


async def test_a_value_that_is_not_among_the_choices_is_shown_and_kept(app: Host) -> None:
    app.file.change(persona="[bold]\x1b[2Jgone")
    async with showing(app, _screen(app)) as pilot:
        await _go(app, pilot, "persona")
        assert "[bold]␛[2Jgone" in app.screen_text()
        assert app.changes == []


async def test_a_folder_that_cannot_be_shown_is_not_changed_by_looking(app: Host) -> None:
    app.file.change(model_folders=(Path("/a\udcff"),))
    async with showing(app, _screen(app)) as pilot:
        await _go(app, pilot, "model_folders")
        await pilot.press("enter", "escape")
        await pilot.pause()
        assert app.changes == []


async def test_keys_reach_every_row_and_the_file_is_named(app: Host) -> None:
    async with showing(app, _screen(app), (120, 40)) as pilot:
        seen = []
        for _ in ENTRIES:
            row = app.screen._row(app.focused)  # type: ignore[attr-defined]
            seen.append(row.field)
            await pilot.press("down")
        assert set(seen) == {row.field for row in app.screen.query(SettingRow)}
        assert str(app.file.path)[:40] in app.screen_text()


async def test_it_works_in_the_smallest_terminal(app: Host) -> None:
    async with showing(app, _screen(app), (40, 15)) as pilot:
        await _go(app, pilot, "copy")
        await pilot.press("right")
        await pilot.pause()
        assert "system tool" in app.screen_text()
        assert app.file.values.copy == "native"


async def test_names_are_in_the_persons_language(app: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.i18n.read_catalogue", lambda name: {"theme": "主题", "Look": "外观"})
    use_language("zh")
    try:
        async with showing(app, _screen(app)):
            assert "主题" in app.screen_text()
            assert "外观" in app.screen_text()
    finally:
        use_language("en")


@pytest.mark.parametrize("theme", SHIPPED)
async def test_no_text_disappears_where_there_are_16_colours(app: Host, theme: str) -> None:
    app.theme = theme
    async with showing(app, _screen(app)):
        assert app.invisible_text() == []
