"""The tree of turns: versions stay, lines lead through it, what is deleted can come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.conversation import Attachment, Conversation, Turn, new_id, title_of


def talk(*texts: str) -> Conversation:
    conversation = Conversation()
    for place, text in enumerate(texts):
        conversation.add("assistant" if place % 2 else "user", text)
    return conversation


def texts(conversation: Conversation) -> list[str]:
    return [turn.text for turn in conversation.turns]


def test_turns_form_a_chain_and_the_first_message_names_it() -> None:
    conversation = talk("\n  A question\nwith more", "answer")
    first, second = conversation.turns
    assert conversation.title == "A question"
    assert (first.parent_id, second.parent_id) == (None, first.id)


def test_titles_are_bounded_and_ids_fit_sqlite() -> None:
    assert len(title_of("x" * 1000)) == 80
    assert title_of(" \n ") == ""
    ids = [Conversation().add("user", "x").id for _ in range(100)]
    assert ids == sorted(set(ids))
    assert 0 < new_id() < 1 << 63


def test_an_edited_message_is_a_sibling_and_both_lines_stay() -> None:
    conversation = talk("a", "b", "c", "d")
    old = conversation.turns[2]
    conversation.cut(old)
    new = conversation.add("user", "C")
    conversation.add("assistant", "D")
    assert texts(conversation) == ["a", "b", "C", "D"]
    assert conversation.siblings(new) == [old, new]
    conversation.show(old)
    assert texts(conversation) == ["a", "b", "c", "d"]
    conversation.show(new)
    assert texts(conversation) == ["a", "b", "C", "D"]


def test_the_first_message_has_versions_too() -> None:
    conversation = talk("a", "b")
    first = conversation.turns[0]
    conversation.cut(first)
    second = conversation.add("user", "A")
    assert conversation.siblings(second) == [first, second]
    conversation.show(first)
    assert texts(conversation) == ["a", "b"]


def test_a_deleted_turn_leaves_its_place_to_its_sibling() -> None:
    conversation = talk("a", "b", "c")
    second = conversation.turns[1]
    conversation.cut(second)
    other = conversation.add("assistant", "B")
    gone = conversation.remove(other)
    assert gone == [other]
    assert texts(conversation) == ["a", "b", "c"]
    conversation.restore(gone)
    assert texts(conversation) == ["a", "B"]


def test_a_search_leads_to_a_turn_of_another_line() -> None:
    conversation = talk("a", "b", "c", "d")
    lost = conversation.turns[3]
    conversation.cut(conversation.turns[0])
    conversation.add("user", "A")
    assert conversation.lead_through(lost.id)
    assert texts(conversation) == ["a", "b", "c", "d"]
    assert not conversation.lead_through(lost.id)
    assert not conversation.lead_through(12345)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=25))
def test_deleting_and_bringing_back_changes_nothing(steps: list[tuple[int, bool]]) -> None:
    conversation = talk("0", "1")
    for place, adds in steps:
        if not conversation.turns:
            break
        turn = conversation.turns[place % len(conversation.turns)]
        if adds:
            conversation.cut(turn)
            conversation.add(turn.role, str(place))
        else:
            gone = conversation.remove(turn)
            conversation.restore(gone)
            assert turn in conversation.turns
        assert _is_line(conversation)


def test_a_stored_tree_grows_again() -> None:
    conversation = talk("a", "b", "c")
    line = list(conversation.turns)
    conversation.cut(line[1])
    conversation.add("assistant", "B")
    everything = sorted([*line, conversation.turns[-1]], key=lambda turn: turn.id)
    again = Conversation(id=conversation.id)
    again.grow(everything, line[2].id)
    assert again.turns == line
    assert [turn.text for turn in again.siblings(line[1])] == ["b", "B"]
    again.grow(everything, None)
    assert again.turns == []


def test_the_model_is_told_pastes_in_their_places_and_files_at_the_end() -> None:
    turn = Turn(1, "user", "look at [paste 2 lines] and @a.txt")
    turn.attachments = (
        Attachment("paste", "[paste 2 lines]", "x\ny"),
        Attachment("file", "@a.txt", "content"),
    )
    assert turn.told == "look at x\ny and @a.txt\n\na.txt:\ncontent"


def _is_line(conversation: Conversation) -> bool:
    parents = [None, *(turn.id for turn in conversation.turns)]
    return all(turn.parent_id == parent for turn, parent in zip(conversation.turns, parents, strict=False))
