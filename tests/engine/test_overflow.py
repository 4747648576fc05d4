"""What is left out of a conversation that is too long: whole turns, the oldest first, as few as will do."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.config import Message
from engine.overflow import drop_oldest, prompt_room

texts = st.text("x", max_size=60)


def count(messages: Sequence[Message]) -> int:
    """As a template would: each message costs more than its text."""
    return 3 + sum(4 + len(message.content) for message in messages)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """A system message or none, then messages by turns, the last of them the person's."""
    system = [Message("system", draw(texts))] if draw(st.booleans()) else []
    n = 2 * draw(st.integers(0, 30)) + 1
    return [*system, *(Message(("user", "assistant")[i % 2], draw(texts)) for i in range(n))]


@given(conversations(), st.integers(1, 4000))
def test_what_stays_is_the_end_of_it_in_whole_turns(messages: list[Message], room: int) -> None:
    told = drop_oldest(messages, room, count)
    system = [message for message in messages if message.role == "system"]
    assert list(told[: len(system)]) == system
    rest = told[len(system) :]
    assert rest[-1] == messages[-1]
    assert list(rest) == messages[len(messages) - len(rest) :]
    assert [message.role for message in rest] == [("user", "assistant")[i % 2] for i in range(len(rest))]


@given(conversations(), st.integers(1, 4000))
def test_what_stays_fits_unless_it_is_the_last_turn_alone(messages: list[Message], room: int) -> None:
    told = drop_oldest(messages, room, count)
    n_system = sum(message.role == "system" for message in messages)
    assert count(told) <= room or len(told) == n_system + 1
    if count(messages) <= room:
        assert list(told) == messages
    elif len(told) > n_system + 1:
        assert count(told) <= room * 3 // 4
        longer = messages[len(messages) - (len(told) - n_system) - 2 :]
        assert count([*told[:n_system], *longer]) > room * 3 // 4, "no more is left out than it takes"


@given(conversations(), st.integers(1, 4000))
def test_few_prompts_are_tried(messages: list[Message], room: int) -> None:
    tried: list[int] = []

    def counted(messages: Sequence[Message]) -> int:
        tried.append(len(messages))
        return count(messages)

    drop_oldest(messages, room, counted)
    assert len(tried) <= 2 + len(messages).bit_length()


def test_a_turn_is_a_message_with_all_replies_to_it() -> None:
    roles = ["assistant", "user", "assistant", "assistant", "user", "user", "assistant", "user"]
    messages = [Message(role, "x" * 40) for role in roles]
    sizes = {len(drop_oldest(messages, room, count)) for room in range(1, 400)}
    assert sizes == {1, 3, 4, 8}  # 7 would begin with one, too, but where 8 do not fit, 7 take more than 3/4


def test_a_conversation_without_a_message_of_the_person_is_left_alone() -> None:
    messages = [Message("system", "x" * 90), Message("assistant", "x" * 90)]
    assert drop_oldest(messages, 10, count) == tuple(messages)
    assert drop_oldest([], 1, count) == ()


def test_room_is_left_for_the_reply() -> None:
    assert prompt_room(4096, None) == 4096 - 512
    assert prompt_room(400, None) == 300
    assert prompt_room(4096, 20) == 4076
    assert prompt_room(4096, 5000) == 4096 - 512
    assert prompt_room(4096, 0) == 4095
