"""Nothing is lost or shown wrong by deleting, undoing, editing, closing and coming back, in any order."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from app.conversation import Conversation
from app.store import Store
from app.widgets.conversation_list import ConversationList
from app.widgets.transcript import Transcript
from tests.app.driving import Driver, running
from tests.fakes import Script

LONG = "word " * 400


def texts(driver: Driver) -> list[str]:
    return [view.turn.text for view in driver.turns]


def listed(driver: Driver) -> list[str]:
    options = driver.chat.query_one(ConversationList).options
    return [str(option.prompt) for option in options if option.id]


async def talked(driver: Driver, *messages: str) -> None:
    await driver.ready()
    for message in messages:
        await driver.say(message)
        await driver.answered()


async def kept(driver: Driver, draft: str) -> None:
    await driver.until(lambda: draft in driver.chat.workspace.drafts.values(), "the draft is kept")


async def command(driver: Driver, text: str) -> None:
    """Type a command slowly: its draft is saved before it is given."""
    driver.prompt.focus()
    driver.prompt.text = text
    await kept(driver, text)
    await driver.pilot.press("enter")
    await driver.settled()


async def test_a_conversation_brought_back_is_listed_and_the_command_is_gone(home: Path) -> None:
    async with running() as driver:
        await talked(driver, "one")
        await command(driver, "/delete")
        assert not listed(driver)
        await command(driver, "/undo")
        await driver.until(lambda: listed(driver), "it is listed")
        assert texts(driver) == ["one", "Hello from the script."]
        assert driver.prompt.text == ""


async def test_a_reply_whose_tab_was_closed_goes_on_growing_where_it_is_opened_again(home: Path) -> None:
    async with running(Script(replies=(LONG,), token_s=0.01)) as driver:
        await driver.ready()
        await driver.say("go")
        await driver.pilot.press("alt+w")
        await driver.until(lambda: not driver.turns, "the tab is closed")
        assert "●" in listed(driver)[0]
        await driver.pilot.press("f2", "enter")
        await driver.until(lambda: len(driver.turns) == 2, "it is open again")
        length = len(driver.turns[1].turn.text)
        await driver.until(lambda: len(driver.turns[1].turn.text) > length, "it grows")
        await driver.pilot.press("escape")
        await driver.answered()


async def test_turns_come_back_in_a_conversation_that_was_closed_and_opened_since(home: Path) -> None:
    async with running() as driver:
        await talked(driver, "one", "two")
        await driver.pilot.press("alt+up", "d")
        await driver.until(lambda: len(driver.turns) == 3, "the reply is deleted")
        await driver.pilot.press("alt+w")
        await driver.until(lambda: not driver.turns, "the tab is closed")
        await driver.pilot.press("f2", "enter")
        await driver.until(lambda: len(driver.turns) == 3, "it is open again")
        await command(driver, "/undo")
        await driver.until(lambda: len(driver.turns) == 4, "the reply is back")


async def test_what_is_deleted_among_the_results_of_a_search_is_no_result(home: Path) -> None:
    async with running() as driver:
        await talked(driver, "alpha")
        await driver.pilot.press("ctrl+n")
        await driver.settled()
        await driver.say("beta")
        await driver.answered()
        search = driver.chat.query_one("#search", Input)
        search.focus()
        search.value = "alpha"
        await driver.until(lambda: len(listed(driver)) == 1, "it is found")
        await driver.pilot.press("enter", "d")
        await driver.until(lambda: not listed(driver), "it is no longer found")
        search.value = ""
        await driver.until(lambda: len(listed(driver)) == 1, "the other one is listed")


async def test_a_delete_key_pressed_twice_at_once_deletes_one(home: Path) -> None:
    async with running() as driver:
        await talked(driver, "alpha")
        await driver.pilot.press("ctrl+n")
        await driver.settled()
        await driver.say("beta")
        await driver.answered()
        chats = driver.chat.query_one(ConversationList)
        chats.focus()
        chats.action_delete()
        chats.action_delete()
        await driver.until(lambda: len(listed(driver)) == 1, "one is deleted")
        await driver.settled()
        for message in ("/undo", "/undo"):
            await command(driver, message)
        assert len(listed(driver)) == 2
        assert "nothing was deleted" in driver.screen_text()


async def test_a_conversation_deleted_in_the_history_comes_back_by_undo(home: Path) -> None:
    async with running() as driver:
        await talked(driver, "alpha")
        await driver.pilot.press("ctrl+f")
        await driver.until(lambda: "1 conversations" in driver.screen_text(), "it is listed there")
        await driver.pilot.press("ctrl+d", "escape")
        await driver.until(lambda: not listed(driver), "it is deleted")
        await command(driver, "/undo")
        await driver.until(lambda: texts(driver), "it is back")
        assert len(listed(driver)) == 1


async def test_the_history_waits_for_what_is_still_being_saved(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = Store._execute

    def slowly(store: Store, *arguments: Any) -> None:
        time.sleep(0.5)
        execute(store, *arguments)

    async with running() as driver:
        await driver.ready()
        monkeypatch.setattr(Store, "_execute", slowly)
        await talked(driver, "alpha")
        await driver.pilot.press("ctrl+f")
        await driver.until(lambda: "1 conversations" in driver.screen_text(), "it is listed there")


async def test_the_draft_of_a_deleted_conversation_opens_no_other_with_its_place(home: Path) -> None:
    async with running() as driver:
        await talked(driver, "alpha")
        driver.prompt.text = "half a thought"
        await driver.pilot.press("f2", "d")
        await driver.until(lambda: not listed(driver), "it is deleted")
    async with running() as driver:
        await driver.ready()
        await driver.settled()
        assert driver.prompt.text == ""


async def test_a_draft_in_a_conversation_too_old_for_the_list_stays_its_own(home: Path) -> None:
    async with running() as driver:
        await talked(driver, "alpha")
        conversation_id = driver.chat.workspace.current.id
        driver.prompt.text = "half a thought"
        await kept(driver, "half a thought")
        await driver.settled()
    store = Store(home / "tiercel" / "data" / "conversations.db")
    store.start()
    for _number in range(501):
        other = Conversation()
        store.add(other, other.add("user", "other"))
    store.close()
    async with running() as driver:
        await driver.ready()
        await driver.settled()
        assert all(tab.id != conversation_id for tab in driver.chat.workspace.tabs)
        await driver.chat.open_conversation(conversation_id)
        assert texts(driver) == ["alpha", "Hello from the script."]
        assert driver.prompt.text == "half a thought"


async def test_retry_answers_the_chosen_message_also_where_its_reply_was_deleted(home: Path) -> None:
    async with running(Script(replies=("first", "second", "third", "fourth"))) as driver:
        await talked(driver, "one", "two")
        await driver.pilot.press("alt+up", "d")
        await driver.until(lambda: len(driver.turns) == 3, "the reply is deleted")
        await driver.pilot.press("r")
        await driver.until(lambda: texts(driver)[3:] == ["third"], "another reply")
        await driver.answered()
        assert texts(driver) == ["one", "first", "two", "third"]
        await driver.pilot.press("k", "r")
        await driver.until(lambda: texts(driver)[3:] == ["fourth"], "yet another reply")
        await driver.answered()
        assert len(driver.chat.workspace.current.siblings(driver.turns[3].turn)) == 2


async def test_a_message_edited_before_another_reply_took_its_line_is_sent_below_that(home: Path) -> None:
    async with running(Script(replies=("first", "second", "third", "fourth"))) as driver:
        await talked(driver, "one", "two")
        await driver.pilot.press("alt+up", "e")
        assert driver.prompt.text == "two"
        driver.chat.query_one(Transcript).choose(driver.turns[1].turn)
        await driver.chat.action_retry()
        await driver.answered()
        assert texts(driver) == ["one", "third"]
        driver.prompt.focus()
        await driver.pilot.press("!", "enter")
        await driver.until(lambda: texts(driver)[3:] == ["fourth"], "it is answered")
        assert texts(driver) == ["one", "third", "two!", "fourth"]


async def test_an_edit_waits_while_another_conversation_is_on_the_screen(home: Path) -> None:
    async with running() as driver:
        await talked(driver, "one")
        await driver.pilot.press("alt+up", "e")
        driver.prompt.text = "one, but better"
        await driver.pilot.press("ctrl+n")
        await driver.until(lambda: driver.prompt.text == "", "the box of the new one")
        await driver.pilot.press("ctrl+pageup")
        await driver.until(lambda: driver.prompt.text == "one, but better", "the edit is still here")
        await driver.pilot.press("enter")
        await driver.until(lambda: texts(driver)[:1] == ["one, but better"], "it is sent")
        await driver.answered()
        assert len(driver.chat.workspace.current.siblings(driver.turns[0].turn)) == 2


async def test_escape_ends_an_edit_and_its_draft(home: Path) -> None:
    async with running() as driver:
        await talked(driver, "one")
        await driver.pilot.press("alt+up", "e")
        driver.prompt.text = "one, but worse"
        await kept(driver, "one, but worse")
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.prompt.text == "", "the box is empty")
        assert not driver.chat.workspace.drafts
        await driver.until(lambda: "✎" not in driver.screen_text(), "no mark is left")


async def test_what_is_typed_last_stays_when_the_conversation_is_changed(home: Path) -> None:
    async with running() as driver:
        await talked(driver, "one", "two")
        driver.prompt.text = "three, half"
        await driver.pilot.press("alt+up", "d")
        await driver.until(lambda: len(driver.turns) == 3, "the reply is deleted")
        assert driver.prompt.text == "three, half"


async def test_an_export_replaces_no_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    (home / "notes.md").write_text("mine")
    async with running() as driver:
        await talked(driver, "one")
        await command(driver, "/export notes.md")
        await driver.until(lambda: "exported to" in driver.screen_text(), "it says where")
    assert (home / "notes.md").read_text() == "mine"
    assert "one" in (home / "notes-2.md").read_text()


async def test_what_is_typed_before_old_drafts_are_read_stays(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as driver:
        await driver.ready()
        driver.prompt.text = "an old draft"
        driver.chat.keep_draft()
    go_on, drafts = threading.Event(), Store.drafts

    def slow(store: Store) -> dict[int, str]:
        go_on.wait(60)
        return drafts(store)

    monkeypatch.setattr(Store, "drafts", slow)
    async with running() as driver:
        await driver.pilot.press(*"hello")
        go_on.set()
        await driver.until(lambda: len(driver.chat.workspace.tabs) == 2, "the old draft")
        await driver.settled()
        assert driver.prompt.text == "hello"
        assert "an old draft" in driver.chat.workspace.drafts.values()
