"""The message box: pastes, completions, messages sent before, drafts, the cursor of the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.geometry import Offset
from textual.pilot import Pilot

from app.conversation import Attachment, Conversation
from app.widgets.prompt import Prompt
from tests.app.hosting import hosting, screen_text, until

LARGE = "".join(f"line {number}\n" for number in range(214))
CHIP = "[paste 214 lines]"


async def paste(pilot: Pilot[Any], prompt: Prompt, text: str) -> None:
    prompt.post_message(events.Paste(text))
    await pilot.pause()


async def test_a_large_paste_is_a_chip_and_goes_whole() -> None:
    prompt = Prompt()
    async with hosting(prompt) as (host, pilot):
        prompt.focus()
        await pilot.press("a", "space")
        await paste(pilot, prompt, LARGE.replace("\n", "\r\n"))
        await pilot.press("space", "b", "enter")
        assert prompt.text == f"a {CHIP} b"
        (sent,) = host.heard_of(Prompt.Submitted)
        turn = Conversation().add("user", sent.text)
        turn.attachments = sent.attachments
        assert turn.told == f"a {LARGE} b"


async def test_a_small_paste_is_text_and_takes_the_place_of_what_is_selected() -> None:
    prompt = Prompt()
    async with hosting(prompt) as (_host, pilot):
        prompt.focus()
        await pilot.press("x", "y")
        prompt.select_all()
        await paste(pilot, prompt, "one\ntwo\x1b[2J")
        assert prompt.text == "one\ntwo␛[2J"
        assert prompt.attachments == []


async def test_deleting_a_chip_removes_its_text_and_undo_brings_it_back() -> None:
    prompt = Prompt()
    async with hosting(prompt) as (_host, pilot):
        prompt.focus()
        await paste(pilot, prompt, LARGE)
        await paste(pilot, prompt, LARGE.upper())
        assert prompt.text == CHIP + "[paste 214 lines #2]"
        assert [part.text for part in prompt.attachments] == [LARGE, LARGE.upper()]
        await pilot.press("backspace")
        assert prompt.text == CHIP
        assert [part.text for part in prompt.attachments] == [LARGE]
        await pilot.press("ctrl+z")
        assert [part.text for part in prompt.attachments] == [LARGE, LARGE.upper()]


async def test_a_draft_comes_back_with_its_pastes() -> None:
    first, second = Prompt(), Prompt()
    async with hosting(first, second) as (_host, pilot):
        first.focus()
        await paste(pilot, first, LARGE)
        await pilot.press("space", "x")
        second.restore(first.draft)
        assert second.text == first.text == CHIP + " x"
        assert second.attachments == first.attachments
        assert second.cursor_location == (0, len(CHIP) + 2)
        second.restore("")
        assert second.text == second.draft == ""
        await pilot.press("left")
        first.restore(first.draft)
        assert first.cursor_location == (0, len(CHIP) + 1), "the same draft leaves the cursor alone"


async def test_files_of_a_message_that_is_edited_go_again_while_it_names_them() -> None:
    kept = Attachment("file", "@notes.txt", "as it was")
    prompt = Prompt()
    async with hosting(prompt) as (host, pilot):
        prompt.focus()
        prompt.load_message("see @notes.txt.", [kept])
        await pilot.press("enter")
        assert host.heard_of(Prompt.Submitted)[0].attachments == (kept,)
        prompt.text = "see @notes.txt.bak"
        assert prompt.attachments == []


async def test_up_and_down_walk_through_what_was_sent_and_keep_what_was_not() -> None:
    prompt = Prompt()
    async with hosting(prompt) as (_host, pilot):
        prompt.focus()
        prompt.set_history(["two\nlines", "one"])
        prompt.text = "now"
        prompt.move_cursor(prompt.document.end)
        await paste(pilot, prompt, LARGE)
        prompt.sent(prompt.text)
        assert prompt.text == ""
        await pilot.press("n", "e", "w")
        shown = []
        for key in ("up", "up", "up", "up", "down", "down", "down", "down"):
            await pilot.press(key)
            shown.append(prompt.text)
        assert shown == ["now" + CHIP, "two\nlines", "one", "one", "two\nlines", "now" + CHIP, "new", "new"]
        await pilot.press("up")
        assert [part.text for part in prompt.attachments] == [LARGE]
        assert prompt.draft == "new", "a message that is only looked at is no draft"
        await pilot.press("!")
        assert prompt.draft != "new"
        await pilot.press("up", "down")
        assert prompt.text == "now" + CHIP + "!", "what was changed stays changed"


async def test_up_inside_a_text_moves_the_cursor_first() -> None:
    prompt = Prompt()
    async with hosting(prompt) as (_host, pilot):
        prompt.focus()
        prompt.set_history(["old"])
        await pilot.press("a", "ctrl+j", "b", "up")
        assert prompt.text == "a\nb"
        assert prompt.cursor_location == (0, 1)
        await pilot.press("up")
        assert prompt.text == "old"
        await pilot.press("down")
        assert prompt.text == "a\nb"


async def test_a_wrapped_line_is_left_only_from_its_first_row() -> None:
    prompt = Prompt()
    async with hosting(prompt, size=(40, 15)) as (_host, pilot):
        prompt.focus()
        prompt.set_history(["old"])
        prompt.text = "word " * 20
        prompt.move_cursor(prompt.document.end)
        await pilot.press("up")
        assert prompt.text == "word " * 20
        await pilot.press("up", "up")
        assert prompt.text == "old"


async def test_paths_are_completed_after_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "no way.txt").write_text("")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "[b]novel.md").write_text("")
    prompt = Prompt()
    async with hosting(prompt) as (host, pilot):
        prompt.focus()
        await pilot.press(*"@no")
        await until(pilot, lambda: prompt.completions.display)
        shown = screen_text(host)
        assert "▸ @notes.txt" in shown
        assert "@docs/[b]novel.md" in shown
        await pilot.press("down", "tab")
        assert prompt.text == '@"no way.txt" '
        assert not prompt.completions.display
        await pilot.press(*"@do")
        await until(pilot, lambda: prompt.completions.display)
        await pilot.press("enter")
        await until(pilot, lambda: prompt.completions.display)
        assert prompt.text == '@"no way.txt" @docs/'
        await pilot.press("enter")
        assert prompt.text == '@"no way.txt" @docs/[b]novel.md '
        assert host.heard_of(Prompt.Submitted) == []
        await pilot.press("enter")
        assert len(host.heard_of(Prompt.Submitted)) == 1


async def test_escape_closes_the_completions_until_something_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("")
    prompt = Prompt()
    async with hosting(prompt) as (host, pilot):
        prompt.focus()
        await pilot.press("@")
        await until(pilot, lambda: prompt.completions.display)
        await pilot.press("escape")
        assert not prompt.completions.display
        await pilot.press("enter")
        assert host.heard_of(Prompt.Submitted)[0].text == "@"
        await pilot.press("n")
        await until(pilot, lambda: prompt.completions.display)
        await pilot.press("backspace", "backspace")
        await until(pilot, lambda: not prompt.completions.display)


async def test_commands_are_completed_at_the_start_only() -> None:
    prompt = Prompt()
    async with hosting(prompt) as (host, pilot):
        prompt.focus()
        await pilot.press(*"/hel")
        await until(pilot, lambda: prompt.completions.display)
        assert "▸ /help" in screen_text(host)
        await pilot.press("tab")
        assert prompt.text == "/help "
        assert not prompt.completions.display
        prompt.text = ""
        await pilot.press(*"/help", "enter")
        assert host.heard_of(Prompt.Submitted)[0].text == "/help"
        prompt.text = ""
        await pilot.press(*"a /hel")
        await pilot.pause()
        assert not prompt.completions.display


async def test_a_click_takes_a_completion() -> None:
    prompt = Prompt()
    async with hosting(prompt) as (_host, pilot):
        prompt.focus()
        await pilot.press(*"/hel")
        await until(pilot, lambda: prompt.completions.display)
        await pilot.click(prompt.completions, offset=(4, 0))
        assert prompt.text == "/help "
        assert prompt.has_focus


async def test_it_grows_to_ten_lines_and_shows_what_it_costs() -> None:
    prompt = Prompt()
    async with hosting(prompt) as (host, pilot):
        prompt.focus()
        assert prompt.content_size.height == 1
        prompt.text = "\n".join("abcdefghijklmnop")
        await pilot.pause()
        assert prompt.content_size.height == 10
        prompt.show_cost("34 tok · @[b]notes.txt 1,200 tok")
        await pilot.pause()
        assert "34 tok · @[b]notes.txt 1,200 tok" in screen_text(host)
        prompt.show_cost("")
        await pilot.pause()
        assert "tok" not in screen_text(host)


async def test_the_terminals_cursor_is_where_the_next_character_goes() -> None:
    prompt = Prompt()
    async with hosting(prompt) as (host, pilot):
        prompt.focus()
        await pilot.press("a", "ctrl+j", "你", "b")
        await pilot.pause()
        assert host.cursor_position == prompt.content_region.offset + Offset(3, 1)
