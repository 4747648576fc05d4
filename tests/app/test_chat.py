"""Chatting: sending, streaming, stopping, waiting for the model, opening earlier conversations."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from textual.widgets import Markdown

import app.store.store as store_module
from app.conversation import Conversation, TurnStatus
from app.store import Store
from app.widgets.conversation_list import ConversationList
from app.widgets.prompt import Prompt
from app.widgets.sidebar import Sidebar
from app.widgets.status import NoticeBar
from app.widgets.transcript import Transcript
from tests.app.driving import running
from tests.fakes import Script
from tests.tiny_gguf import write_tiny_model

LONG = "word " * 400


async def test_a_reply_streams_into_the_transcript_and_the_store(home: Path) -> None:
    async with running(Script(replies=("Hello **there**.\n\nSecond.",))) as driver:
        await driver.ready()
        await driver.say("Hi")
        await driver.answered()
        assert [view.turn.text for view in driver.turns] == ["Hi", "Hello **there**.\n\nSecond."]
        assert "Hello there." in driver.screen_text()
    async with running() as driver:
        chats = driver.chat.query_one(ConversationList)
        await driver.until(lambda: len(chats.options) == 2, "the conversation is listed")
        await driver.pilot.press("f2", "enter")
        await driver.until(lambda: len(driver.turns) == 2, "the conversation is open")
        assert "Hello there." in driver.screen_text()


async def test_a_message_typed_before_the_model_is_loaded_waits_and_says_so(home: Path) -> None:
    async with running(Script(load_s=0.5)) as driver:
        await driver.say("early")
        await driver.until(lambda: "waiting for a model" in driver.screen_text(), "the reason")
        assert not driver.engine.requests
        await driver.answered()
        assert driver.turns[1].turn.text == "Hello from the script."


async def test_escape_stops_the_reply_and_keeps_its_text(home: Path) -> None:
    async with running(Script(replies=(LONG,), token_s=0.01)) as driver:
        await driver.ready()
        await driver.say("go")
        await driver.until(lambda: "word" in driver.turns[1].turn.text, "text has come")
        await driver.pilot.press("escape")
        await driver.answered()
        turn = driver.turns[1].turn
        assert turn.status is TurnStatus.CANCELLED
        assert 0 < len(turn.text) < len(LONG)
        assert driver.turns[1].query_one(Markdown).source == turn.text
        assert "■ stopped · " in driver.screen_text()


async def test_escape_takes_back_a_message_that_waits_for_a_model(home: Path) -> None:
    async with running(Script(load_s=2.0)) as driver:
        await driver.say("never mind")
        await driver.pilot.press("escape")
        await driver.answered()
        assert driver.turns[1].turn.status is TurnStatus.CANCELLED
        assert not driver.engine.requests


async def test_while_a_reply_grows_enter_keeps_the_next_message(home: Path) -> None:
    async with running(Script(replies=(LONG,), token_s=0.01)) as driver:
        await driver.ready()
        await driver.say("first")
        driver.prompt.text = "second"
        await driver.pilot.press("enter")
        await driver.settled()
        assert driver.prompt.text == "second"
        assert "Esc stops it" in driver.screen_text()


async def test_the_model_sees_the_whole_conversation_in_order(home: Path) -> None:
    async with running(Script(replies=("one", "two"))) as driver:
        await driver.ready()
        await driver.say("a")
        await driver.answered()
        await driver.say("b")
        await driver.answered()
        told = [(message.role, message.content) for message in driver.engine.requests[1].messages]
        assert told == [("user", "a"), ("assistant", "one"), ("user", "b")]


async def test_a_failed_reply_says_why_and_its_question_is_not_asked_again(
    home: Path,
) -> None:
    async with running(Script(replies=("!the prompt has 9 tokens too many", "fine"))) as driver:
        await driver.ready()
        await driver.say("a")
        await driver.answered()
        assert "✗ the prompt has 9 tokens too many" in driver.screen_text()
        await driver.say("b")
        await driver.answered()
        assert [message.content for message in driver.engine.requests[1].messages] == ["b"]


async def test_a_base_model_is_offered_as_plain_completion(home: Path) -> None:
    async with running(Script(has_template=False, replies=(" upon a time",))) as driver:
        await driver.ready()
        assert "base model" in driver.screen_text()
        await driver.say("Once")
        await driver.answered()
        await driver.say("The end")
        await driver.answered()
        assert [request.prompt for request in driver.engine.requests] == [
            "Once",
            "Once upon a time\nThe end",
        ]


async def test_a_new_chat_leaves_the_running_reply_alone(home: Path) -> None:
    async with running(Script(replies=("x" * 200,), token_s=0.01)) as driver:
        await driver.ready()
        await driver.say("first")
        await driver.pilot.press("ctrl+n")
        await driver.until(lambda: not driver.turns, "an empty conversation")
        await driver.until(lambda: not driver.chat.bridge.busy, "the reply ends out of sight")
        await driver.pilot.press("f2", "enter")
        await driver.until(lambda: len(driver.turns) == 2, "the first conversation")
        assert driver.turns[1].query_one(Markdown).source == "x" * 200


async def test_a_conversation_opened_while_its_reply_grows_shows_all_of_it(home: Path) -> None:
    text = "".join(f"- item {number}\n" for number in range(30))
    async with running(Script(replies=(text,), token_s=0.01)) as driver:
        await driver.ready()
        await driver.say("list")
        await driver.until(lambda: "item 3" in driver.turns[1].turn.text, "some text")
        await driver.pilot.press("ctrl+n")
        await driver.until(lambda: not driver.turns, "an empty conversation")
        await driver.pilot.press("f2", "enter")
        await driver.until(lambda: len(driver.turns) == 2, "back")
        await driver.answered()
        assert driver.turns[1].query_one(Markdown).source == text


async def test_newline_keys_break_the_line_and_enter_sends(home: Path) -> None:
    async with running() as driver:
        await driver.ready()
        await driver.pilot.press("a", "ctrl+j", "b", "shift+enter", "c")
        assert driver.prompt.text == "a\nb\nc"
        await driver.pilot.press("enter")
        await driver.answered()
        assert driver.turns[0].turn.text == "a\nb\nc"
        assert driver.prompt.text == ""


async def test_every_key_of_the_key_bar_works_while_the_message_box_has_the_cursor(home: Path) -> None:
    async with running() as driver:
        await driver.ready()
        await driver.pilot.press("f1")
        await driver.until(lambda: "Send the message" in driver.screen_text(), "help")
        await driver.pilot.press("escape", "f3")
        await driver.until(lambda: driver.app.screen.query("#models-list"), "models")
        await driver.pilot.press("escape", "f2")
        await driver.until(lambda: isinstance(driver.app.focused, ConversationList), "the list")
        await driver.pilot.press("f2")
        await driver.until(lambda: isinstance(driver.app.focused, Prompt), "the message box")
        await driver.pilot.press("ctrl+c")
        assert "^Q quits" in driver.screen_text()


async def test_ctrl_q_quits_over_a_dialog(home: Path) -> None:
    async with running() as driver:
        await driver.pilot.press("f3")
        await driver.until(lambda: len(driver.app.screen_stack) == 2, "the dialog")
        await driver.pilot.press("ctrl+q")
        await driver.until(lambda: driver.app.return_value == 0, "quitting")


async def test_ctrl_c_copies_what_is_selected(home: Path) -> None:
    async with running() as driver:
        driver.prompt.text = "copy me"
        driver.prompt.select_all()
        await driver.pilot.press("ctrl+c")
        await driver.settled()
        assert driver.app.clipboard == "copy me"
        assert "7 characters" in driver.screen_text()


async def test_a_model_that_fails_to_load_says_why_and_keeps_the_message(home: Path) -> None:
    async with running(Script(load_error="x.gguf: truncated at 12 bytes")) as driver:
        await driver.say("hello")
        await driver.until(lambda: "truncated at 12 bytes" in driver.screen_text(), "the error")
        assert driver.turns[0].turn.text == "hello"
        assert driver.chat.bridge.busy


async def test_notices_of_the_engine_are_on_the_screen(home: Path) -> None:
    async with running(Script(notices=("no C compiler: NumPy computes, slowly",))) as driver:
        await driver.ready()
        await driver.settled()
        assert "no C compiler: NumPy computes, slowly" in driver.screen_text()


async def test_the_last_model_is_remembered(home: Path) -> None:
    model = home / "a.gguf"
    model.write_bytes(b"")
    async with running(model=model) as driver:
        await driver.ready()
    async with running(model=None) as driver:
        await driver.ready()
        assert driver.engine.loaded == [model]


async def test_the_only_model_on_the_machine_is_loaded(home: Path) -> None:
    model = home / "tiercel" / "data" / "models" / "only.gguf"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"")
    async with running(model=None) as driver:
        await driver.ready()
        assert driver.engine.loaded == [model]


async def test_without_a_model_the_picker_opens_and_offers_the_starter(home: Path) -> None:
    async with running(model=None, size=(80, 24)) as driver:
        await driver.until(lambda: "No model found" in driver.screen_text(), "the picker")
        assert "SmolLM2" in driver.screen_text()


async def test_with_several_models_a_person_chooses(home: Path) -> None:
    folder = home / "tiercel" / "data" / "models"
    folder.mkdir(parents=True)
    for name in ("a", "b[bold]"):
        write_tiny_model(folder / f"{name}.gguf")
    async with running(model=None) as driver:
        await driver.until(lambda: "b[bold]" in driver.screen_text(), "the picker")
        await driver.pilot.press("down", "enter")
        await driver.ready()
        assert [path.name for path in driver.engine.loaded] == ["b[bold].gguf"]


async def test_search_finds_chinese_words_and_shows_where(home: Path) -> None:
    async with running(Script(replies=("流式传输权重",))) as driver:
        await driver.ready()
        await driver.say("如何加载模型")
        await driver.answered()
        await driver.pilot.press("ctrl+n")
        driver.chat.query_one("#search").focus()
        driver.chat.query_one("#search").value = "权重"  # type: ignore[attr-defined]
        await driver.until(lambda: "流式传输权重" in driver.screen_text(), "the snippet")


async def test_every_size_shows_the_message_box_and_the_status(home: Path) -> None:
    async with running(Script(replies=(LONG,), token_s=0), size=(80, 24)) as driver:
        await driver.ready()
        await driver.say("hello")
        await driver.answered()
        for width, height in ((80, 24), (120, 40), (40, 15), (200, 60)):
            await driver.pilot.resize_terminal(width, height)
            await driver.settled()
            text = driver.screen_text()
            assert all(part in text for part in ("Message", "ready", "Enter send")), (width, height)
            assert driver.chat.query_one(Sidebar).display == (width >= 100)


async def test_a_smaller_terminal_gets_a_plain_line(home: Path) -> None:
    async with running(size=(1, 1)) as driver:
        await driver.ready()
        for width, height in ((39, 15), (80, 14), (20, 5), (3, 2)):
            await driver.pilot.resize_terminal(width, height)
            await driver.settled()
            assert not driver.chat.query_one("#columns").display
        await driver.pilot.resize_terminal(80, 24)
        await driver.settled()
        assert "Message" in driver.screen_text()


@pytest.mark.parametrize("dialog", [False, True])
async def test_after_a_terminal_too_small_keys_go_to_the_message_box_again(home: Path, dialog: bool) -> None:
    async with running(size=(80, 24)) as driver:
        await driver.ready()
        if dialog:
            await driver.pilot.press("f1")
            await driver.until(lambda: len(driver.app.screen_stack) == 2, "the dialog")
        for width, height in ((20, 6), (80, 24)):
            await driver.pilot.resize_terminal(width, height)
            await driver.settled()
        if dialog:
            await driver.pilot.press("escape")
            await driver.settled()
        await driver.pilot.press("h", "i")
        await driver.until(lambda: driver.prompt.text == "hi", "typing works")


async def test_wide_characters_keep_the_columns(home: Path) -> None:
    async with running(Script(replies=("中文和 emoji 👩‍👩‍👧 🇨🇳 完",)), size=(80, 24)) as driver:
        await driver.ready()
        await driver.say("你好 👋")
        await driver.answered()
        strips = driver.app.screen._compositor.render_strips()
        assert {strip.cell_length for strip in strips} == {80}
        assert "中文和 emoji 👩‍👩‍👧 🇨🇳 完" in driver.screen_text()


async def test_escape_takes_the_drawer_away_from_over_the_message_box(home: Path) -> None:
    async with running(size=(80, 24)) as driver:
        await driver.ready()
        await driver.pilot.press("f2")
        await driver.until(lambda: driver.chat.query_one(Sidebar).display, "the drawer")
        await driver.pilot.press("escape", "h", "i")
        await driver.until(lambda: driver.prompt.text == "hi", "typing goes on")
        assert not driver.chat.query_one(Sidebar).display
        await driver.pilot.resize_terminal(120, 40)
        await driver.until(lambda: driver.chat.query_one(Sidebar).display, "a wide screen has room")
        await driver.pilot.press("f2", "escape")
        await driver.pilot.resize_terminal(80, 24)
        await driver.until(lambda: not driver.chat.query_one(Sidebar).display, "a narrow one has not")


async def test_a_message_sent_while_another_conversation_is_taken_away_is_shown(home: Path) -> None:
    async with running() as driver:
        await driver.ready()
        await driver.say("first")
        await driver.answered()
        async with driver.chat.query_one(Transcript).lock:  # a layout, say, that takes its time
            begun = asyncio.create_task(driver.chat.action_new_chat())
            await asyncio.sleep(0)
            driver.prompt.post_message(Prompt.Submitted("hello"))
            await asyncio.sleep(0.1)
        await begun
        await driver.until(lambda: driver.turns, "it is sent")
        await driver.answered()
        assert [view.turn.text for view in driver.turns] == ["hello", "Hello from the script."]


async def test_keys_after_a_new_conversation_was_asked_for_go_to_its_message(home: Path) -> None:
    async with running() as driver:
        await driver.ready()
        driver.chat.query_one(ConversationList).focus()
        await driver.settled()
        begun = asyncio.create_task(driver.chat.action_new_chat())
        await asyncio.sleep(0)
        assert driver.app.focused is driver.prompt
        await begun


async def test_the_conversation_chosen_last_is_shown(home: Path) -> None:
    async with running() as driver:
        await driver.ready()
        shown = [Conversation(title=str(number)) for number in range(5)]
        for conversation in shown:
            conversation.add("user", conversation.title)

        async def show(conversation: Conversation) -> None:
            driver.chat.workspace.open(conversation)
            await driver.chat.show_conversation()

        await asyncio.gather(*map(show, shown))
        await driver.settled()
        assert [view.turn.text for view in driver.turns] == ["4"]


async def test_going_to_the_list_begins_at_the_open_conversation(home: Path) -> None:
    async with running() as driver:
        await driver.ready()
        for text in ("one", "two", "three"):
            await driver.pilot.press("ctrl+n")
            await driver.say(text)
            await driver.answered()
        chats = driver.chat.query_one(ConversationList)
        for title in ("two", "one"):
            await driver.pilot.press("f2", "down", "enter")
            await driver.until(lambda title=title: driver.turns[0].turn.text == title, title)
        await driver.pilot.press("f2")
        assert chats.highlighted_option is not None
        assert chats.highlighted_option.id == str(driver.chat.workspace.current.id)


async def test_a_hint_goes_away_but_an_error_stays(home: Path) -> None:
    async with running() as driver:
        await driver.ready()
        bar = driver.chat.query_one(NoticeBar)
        driver.chat.notice("error", "bad")
        driver.chat.notice("hint", "small")
        await driver.settled()
        assert "✗ bad" in driver.screen_text()
        bar.dismiss()
        await driver.settled()
        assert "› small" in driver.screen_text()


async def test_long_conversations_stay_bounded_and_scroll_back(home: Path) -> None:
    async with running(Script(token_s=0), size=(80, 24)) as driver:
        await driver.ready()
        conversation = driver.chat.workspace.current
        for number in range(150):
            conversation.add("user", f"question {number}")
            conversation.add("assistant", f"answer {number}")
        await driver.chat.show_conversation()
        await driver.settled()
        assert len(driver.turns) == 16
        assert "answer 149" in driver.screen_text()
        while len(driver.turns) == 16:
            await driver.pilot.press("pageup")
        await driver.settled()
        assert len(driver.turns) == 32
        assert driver.turns[0].turn.text == "question 134"
        assert "question 142" in driver.screen_text()


async def test_a_full_disk_is_told_and_quitting_without_saving_asks_twice(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async with running() as driver:
        await driver.ready()
        with monkeypatch.context() as patch:
            patch.setattr(Store, "_execute", full)
            await driver.say("keep me")
            await driver.answered()
            await driver.until(lambda: "disk is full" in driver.screen_text(), "the notice")
            assert "Hello from the script." in driver.screen_text()
            await driver.pilot.press("ctrl+q")
            await driver.until(lambda: "^Q once more" in driver.screen_text(), "the question")
            assert driver.app.return_value is None
        await driver.until(lambda: not driver.chat._store.trouble, "saved after all")
        assert driver.chat._store.load(driver.chat._store.conversations()[0]).turns[0].text == "keep me"


async def test_conversations_that_cannot_be_opened_are_told_and_listed_once_they_can(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "RETRY_S", 0.05)
    folder = home / "tiercel" / "data"
    async with running() as driver:
        await driver.ready()
        await driver.say("from before")
        await driver.answered()
    folder.rename(home / "elsewhere")
    folder.write_text("in the way")
    async with running() as driver:
        await driver.ready()
        await driver.until(lambda: "not saved yet" in driver.screen_text(), "the notice")
        await driver.pilot.press("ctrl+q")
        await driver.until(lambda: driver.app.return_value == 0, "nothing was said: nothing to ask")
    async with running() as driver:
        await driver.ready()
        await driver.say("from now")
        await driver.answered()
        await driver.pilot.press("ctrl+q")
        await driver.until(lambda: "^Q once more" in driver.screen_text(), "the question")
        folder.unlink()
        (home / "elsewhere").rename(folder)
        await driver.until(lambda: "from before" in driver.screen_text(), "the list")
        assert "from now" in driver.screen_text()
        assert "not saved yet" not in driver.screen_text()
    assert driver.app.shut_down() == ""
