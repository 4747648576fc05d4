"""Open conversations, drafts, branches, and bringing back what was deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.conversation import Conversation, Turn
from app.store import Store
from app.workspace import MOST_TABS, Workspace


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "c.db")
    store.start()
    yield store
    store.close()


def talk(store: Store, *texts: str) -> Conversation:
    conversation = Conversation()
    turns = [conversation.add("assistant" if place % 2 else "user", text) for place, text in enumerate(texts)]
    store.add(conversation, *turns)
    return conversation


def stored(store: Store, conversation: Conversation) -> list[str]:
    assert store.flush(5)
    return [turn.text for turn in store.load(conversation.id).turns]


def test_an_untouched_conversation_gives_its_tab_to_the_next(store: Store) -> None:
    workspace = Workspace(store)
    first = talk(store, "a")
    workspace.open(first)
    assert workspace.tabs == [first]
    workspace.new()
    workspace.new()
    assert len(workspace.tabs) == 2
    workspace.open(first)
    assert workspace.current is first


def test_the_oldest_idle_tab_makes_room(store: Store) -> None:
    workspace = Workspace(store)
    all_of_them = [talk(store, str(number)) for number in range(MOST_TABS + 1)]
    for conversation in all_of_them:
        workspace.open(conversation)
    assert workspace.tabs == all_of_them[1:]
    assert workspace.current is all_of_them[-1]


def test_closing_the_last_tab_leaves_a_new_conversation(store: Store) -> None:
    workspace = Workspace(store)
    workspace.open(talk(store, "a"))
    workspace.close()
    assert workspace.current.turns == []
    assert not workspace.go(1)


def test_a_draft_of_a_conversation_never_sent_comes_back_in_a_tab(store: Store) -> None:
    workspace = Workspace(store)
    workspace.keep_draft("half a thought")
    assert store.flush(5)
    later = Workspace(store)
    later.restore_drafts(store.drafts(), stored=set())
    assert later.current.id == workspace.current.id
    assert later.drafts == {workspace.current.id: "half a thought"}
    later.keep_draft("")
    assert store.flush(5)
    assert store.drafts() == {}


def test_a_branch_is_a_conversation_of_its_own(store: Store) -> None:
    workspace = Workspace(store)
    source = talk(store, "a", "b", "c")
    source.turns[1].made_by = {"seen_from": source.turns[0].id}
    workspace.open(source)
    workspace.branch(source.turns[1])
    branch = workspace.current
    assert [turn.text for turn in branch.turns] == ["a", "b"]
    assert branch.turns[1].made_by == {"seen_from": branch.turns[0].id}
    branch.add("user", "other")
    assert stored(store, source) == ["a", "b", "c"]
    assert stored(store, branch) == ["a", "b"]


def test_versions_are_found_again_at_the_next_start(store: Store) -> None:
    workspace = Workspace(store)
    conversation = talk(store, "a", "b")
    workspace.open(conversation)
    old = conversation.turns[1]
    conversation.cut(old)
    new = conversation.add("assistant", "B")
    store.add(conversation, new)
    assert stored(store, conversation) == ["a", "B"]
    assert workspace.show_sibling(new, 1) is None
    assert workspace.show_sibling(new, -1) is old
    assert stored(store, conversation) == ["a", "b"]


def test_deleted_turns_come_back(store: Store) -> None:
    workspace = Workspace(store)
    conversation = talk(store, "a", "b", "c", "d")
    workspace.open(conversation)
    assert workspace.delete_turn(conversation.turns[1]) == 3
    assert stored(store, conversation) == ["a"]
    assert workspace.undo() is conversation
    assert stored(store, conversation) == ["a", "b", "c", "d"]
    assert workspace.undo() is None


def test_a_deleted_conversation_comes_back(store: Store) -> None:
    workspace = Workspace(store)
    kept, gone = talk(store, "kept"), talk(store, "gone", "too")
    workspace.open(kept)
    workspace.open(gone)
    workspace.delete(gone)
    assert store.flush(5)
    assert [info.id for info in store.conversations()] == [kept.id]
    assert workspace.current is kept
    assert workspace.undo() is gone
    assert workspace.current is gone
    assert stored(store, gone) == ["gone", "too"]
    assert len(store.conversations()) == 2


def test_only_what_is_on_the_screen_moves_when_another_is_deleted(store: Store) -> None:
    workspace = Workspace(store)
    first, second = talk(store, "1"), talk(store, "2")
    workspace.open(first)
    workspace.open(second)
    workspace.delete(first)
    assert workspace.current is second
    turn: Turn = second.turns[0]
    assert turn.text == "2"
