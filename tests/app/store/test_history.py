"""What is kept of conversations beside words: branches, choices, attachments, drafts, what was deleted."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from app.conversation import Attachment, Conversation, TurnStatus
from app.store import Store
from app.store.db import KEPT_DAYS
from app.store.history_file import open_history
from engine import InputFileError, Overflow, SamplingParams
from tests.app.store.trees import conversations, facts

DAY_MS = 86_400_000


def saved(store: Store, *texts: str, role: str = "user") -> Conversation:
    conversation = Conversation()
    store.add(conversation, *(conversation.add(role, text) for text in texts))
    assert store.flush(5)
    return conversation


def test_what_made_a_reply_and_what_came_with_a_message_is_kept(store: Store) -> None:
    conversation = Conversation()
    message = conversation.add("user", "look at [paste 3 lines]")
    message.attachments = (Attachment("paste", "[paste 3 lines]", "1\\n2\\n3"), Attachment("file", "@a", "A"))
    reply = conversation.add("assistant", status=TurnStatus.STREAMING)
    store.add(conversation, message, reply)
    reply.text, reply.status = "seen", TurnStatus.DONE
    reply.made_by = {"backend": "cpu", "threads": 2, "seen_from": message.id}
    store.finish(reply)
    store.flush(5)
    assert store.load(conversation.id).turns == [message, reply]


def test_what_was_chosen_for_a_conversation_is_kept(store: Store) -> None:
    conversation = saved(store, "hello")
    conversation.title, conversation.persona, conversation.system = "Renamed", "tutor", ""
    conversation.sampling, conversation.overflow = SamplingParams(temperature=0.0), Overflow.STOP
    store.save_conversation(conversation)
    store.flush(5)
    assert facts(store.load(conversation.id)) == facts(conversation)
    (info,) = store.conversations()
    assert (info.title, info.persona) == ("Renamed", "tutor")


def test_a_choice_before_the_first_message_makes_the_conversation(store: Store) -> None:
    conversation = Conversation("Plan", persona="tutor")
    store.save_conversation(conversation)
    store.add(conversation, conversation.add("user", "begin"))
    store.flush(5)
    (info,) = store.conversations()
    assert (info.title, info.persona) == ("Plan", "tutor")


def test_the_list_names_the_model_that_replied_last(store: Store) -> None:
    conversation = saved(store, "hello")
    for model in ("A", "B"):
        reply = conversation.add("assistant", status=TurnStatus.STREAMING)
        store.add(conversation, reply)
        reply.model, reply.status = model, TurnStatus.DONE
        store.finish(reply)
    store.flush(5)
    assert [info.model for info in store.conversations()] == ["B"]


def test_another_line_is_shown_and_a_branch_starts_a_stored_conversation(store: Store) -> None:
    conversation = saved(store, "one", "two")
    first = conversation.turns[1]
    conversation.cut(first)
    other = conversation.add("user", "two again")
    store.add(conversation, other)
    conversation.show(first)
    store.set_head(conversation)
    store.flush(5)
    loaded = store.load(conversation.id)
    assert [turn.text for turn in loaded.turns] == ["one", "two"]
    loaded.show(other)
    assert [turn.text for turn in loaded.turns] == ["one", "two again"]


def test_a_branch_whose_first_turn_is_not_the_first_stores_its_conversation(store: Store) -> None:
    conversation = Conversation()
    first, second = conversation.add("user", "one"), conversation.add("user", "two")
    store.add(conversation, first, second)
    third = conversation.add("user", "three")
    store.add(conversation, third)
    store.flush(5)
    assert store.load(conversation.id).turns == [first, second, third]


def test_a_deleted_conversation_is_hidden_everywhere_and_comes_back(store: Store) -> None:
    conversation = saved(store, "needle")
    store.delete_conversation(conversation.id)
    store.flush(5)
    assert not store.conversations() and not store.search("needle") and not store.recent()
    assert not store.sent() and not list(store.everything())
    store.delete_conversation(conversation.id, deleted=False)
    store.flush(5)
    assert store.load(store.conversations()[0]).turns == conversation.turns
    assert store.search("needle")


def test_who_goes_on_with_a_deleted_conversation_brings_it_back(store: Store) -> None:
    conversation = saved(store, "gone")
    store.delete_conversation(conversation.id)
    store.add(conversation, conversation.add("user", "and on"))
    store.flush(5)
    assert [turn.text for turn in store.load(store.conversations()[0]).turns] == ["gone", "and on"]


def test_deleted_turns_are_hidden_and_come_back(store: Store) -> None:
    conversation = saved(store, "keep", "needle", "below")
    gone = conversation.remove(conversation.turns[1])
    store.delete_turns(gone)
    store.set_head(conversation)
    store.flush(5)
    assert [turn.text for turn in store.load(conversation.id).turns] == ["keep"]
    assert not store.search("needle") and store.sent() == ["keep"]
    store.delete_turns(gone, deleted=False)
    store.flush(5)
    conversation.restore(gone)
    assert facts(store.load(conversation.id))[-1] == facts(conversation)[-1]
    assert store.search("needle")


def test_where_the_end_of_the_line_is_gone_the_newest_turn_ends_it(store: Store) -> None:
    conversation = saved(store, "keep", "gone")
    store.delete_turns([conversation.turns[1]])
    store.flush(5)
    assert [turn.text for turn in store.load(conversation.id).turns] == ["keep"]


@pytest.mark.parametrize(("days", "left"), [(KEPT_DAYS - 1, 2), (KEPT_DAYS + 1, 0)])
def test_what_was_deleted_long_ago_is_purged_at_the_next_opening(
    store: Store, days: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = saved(store, "whole", "conversation"), saved(store, "kept", "removed")
    part = Attachment("file", "@a", "A")
    second.turns[1].attachments = (part,)
    store.delete_conversation(first.id)
    store.delete_turns([second.turns[1]])
    store.save_draft(first.id, "draft")
    store.close()
    with sqlite3.connect(store.path) as file:
        for table in ("conversation", "message"):
            file.execute(f"UPDATE {table} SET deleted_at = deleted_at - ?", (days * DAY_MS,))
    file.close()
    again = Store(store.path)
    again.start()
    assert [info.title for info in again.conversations()] == ["kept"]
    assert again.close()
    with sqlite3.connect(store.path) as file:
        hidden = "SELECT count(*) FROM message WHERE text IN ('whole', 'conversation')"
        assert file.execute(hidden).fetchone() == (left,)
        assert file.execute("SELECT count(*) FROM message WHERE text = 'kept'").fetchone() == (1,)
        removed = file.execute("SELECT count(*) FROM message WHERE text = 'removed'").fetchone()
        assert removed == (1 if left else 0,)
        assert file.execute("SELECT count(*) FROM draft").fetchone() == (1 if left else 0,)
        indexed = "SELECT count(*) FROM message_fts WHERE message_fts MATCH 'whole'"
        assert file.execute(indexed).fetchone() == (1 if left else 0,)
    file.close()


def test_drafts_are_kept_until_they_are_empty_for_conversations_that_are_not_stored_too(store: Store) -> None:
    for text in ("a", "ab", "abc"):
        store.save_draft(5, text)
    store.save_draft(6, "other")
    store.flush(5)
    assert store.drafts() == {5: "abc", 6: "other"}
    store.save_draft(5, "")
    store.flush(5)
    assert store.drafts() == {6: "other"}


def test_what_was_sent_comes_newest_first_and_once(store: Store) -> None:
    saved(store, "one", "two")
    saved(store, "not mine", role="assistant")
    saved(store, "one", "three")
    assert store.sent() == ["three", "one", "two"]
    assert store.sent(2) == ["three", "one"]


def test_a_read_does_not_wait_for_a_long_write(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = saved(store, "before")
    begun, end = threading.Event(), threading.Event()

    def pause() -> int:
        begun.set()
        assert end.wait(10)
        return 1

    execute = Store._execute

    def pausing(self: Store, connection: sqlite3.Connection, *rest: object) -> None:
        connection.create_function("pause", 0, pause)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE conversation SET title = 'x' WHERE pause()")
        connection.execute("COMMIT")
        execute(self, connection, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "_execute", pausing)
    store.add(conversation, conversation.add("user", "after"))
    assert begun.wait(10)
    try:
        assert [turn.text for turn in store.load(conversation.id).turns] == ["before"]
        assert store.search("before")
    finally:
        end.set()
    assert store.flush(5)
    assert len(store.load(conversation.id).turns) == 2


def test_a_conversation_that_is_gone_or_makes_no_sense_is_an_error_of_the_database(store: Store) -> None:
    with pytest.raises(sqlite3.DataError, match="gone"):
        store.load(7)
    conversation = saved(store, "one", "two")
    with sqlite3.connect(store.path) as file:
        file.execute("UPDATE message SET parent_id = ? WHERE parent_id IS NULL", (conversation.turns[1].id,))
    file.close()
    with pytest.raises(sqlite3.DataError, match="comes before itself"):
        store.load(conversation.id)
    with sqlite3.connect(store.path) as file:
        file.execute("UPDATE conversation SET params_json = '[]'")
    file.close()
    with pytest.raises(sqlite3.DataError, match="makes no sense"):
        store.load(conversation.id)


@given(conversation=conversations())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tree_is_stored_as_it_is(tmp_path: Path, conversation: Conversation) -> None:
    path = tmp_path / "any.db"
    path.unlink(missing_ok=True)
    with open_history(path, create=True) as history:
        history.take_in([conversation])
        assert facts(history.load(conversation.id)) == facts(conversation)


def test_a_command_reads_and_writes_beside_the_application(store: Store) -> None:
    conversation = Conversation()
    message, reply = (
        conversation.add("user", "hello"),
        conversation.add("assistant", "so far", TurnStatus.STREAMING),
    )
    store.add(conversation, message, reply)
    store.flush(5)
    with open_history(store.path) as history:
        assert history.conversations() == store.conversations()
        assert history.load(conversation.id).turns[1].status is TurnStatus.STREAMING, "it is still written"
        assert history.take_in([conversation]) == (1, 2)
    reply.text, reply.status = "so far and on", TurnStatus.DONE
    store.finish(reply)
    assert store.flush(5) and not store.unsaved
    assert len(store.conversations()) == 2
    assert store.load(conversation.id).turns[1].text == "so far and on"


def test_what_is_taken_in_twice_gets_ids_of_its_own(store: Store) -> None:
    conversation = saved(store, "one", "two")
    conversation.turns[1].made_by = {"seen_from": conversation.turns[0].id}
    with open_history(store.path) as history:
        history.take_in([conversation])
        copy = next(history.load(info) for info in history.conversations() if info.id != conversation.id)
    assert [turn.text for turn in copy.turns] == ["one", "two"]
    assert not {turn.id for turn in copy.turns} & {turn.id for turn in conversation.turns}
    assert copy.turns[1].made_by == {"seen_from": copy.turns[0].id}
    assert store.load(conversation.id).turns[0] == conversation.turns[0]


def test_taking_in_is_all_or_nothing(store: Store) -> None:
    good, bad = Conversation("good"), Conversation("bad")
    good.add("user", "fine")
    bad.add("user", "\ud800")
    with pytest.raises(UnicodeError), open_history(store.path, create=True) as history:
        history.take_in([good, bad])
    assert store.conversations() == []


def test_a_command_reads_where_it_cannot_write(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = saved(store, "one")
    store.close()
    monkeypatch.setattr("app.store.history_file.os.access", lambda *_: False)
    with open_history(store.path) as history:
        assert history.load(conversation.id).turns == conversation.turns
    with pytest.raises(InputFileError, match="readonly"), open_history(store.path) as history:
        history.take_in([conversation])
    with sqlite3.connect(store.path) as file:
        file.execute("PRAGMA user_version = 1")
    file.close()
    with pytest.raises(InputFileError, match="nor read as it is"), open_history(store.path):
        pass
