"""Where words are in a text, and what narrows a search down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation import Conversation
from app.store import Store, found_at


def parts(text: str, query: str) -> list[str]:
    return [text[start:end] for start, end in found_at(text, query)]


@pytest.mark.parametrize(
    ("text", "query", "found"),
    [
        ("The weights of Weight", "weight", ["weight", "Weight"]),
        ("The weights of Weight", "weight ", ["Weight"]),
        ("streaming weights stream", "weights stream", ["stream", "weights", "stream"]),
        ("如何加载权重吗", "权重", ["权重"]),
        ("权重abc权", "abc ", ["abc"]),
        ("Ein Café, a cafe", "cafe", ["Café", "cafe"]),
        ("ÄPFEL äpfel", "äpfel", ["ÄPFEL", "äpfel"]),
        ("foo-bar foobar", "foo-bar", ["foo-bar"]),
        ("a_b", "b ", ["b"]),
        ("xab ab", "ab", ["ab"]),
        ("(.*) [x] \\", ".* [x]", ["x"]),
        ("anything", "", []),
        ("anything", " \" '", []),
    ],
)
def test_words_are_found_where_the_index_finds_them(text: str, query: str, found: list[str]) -> None:
    assert parts(text, query) == found


@given(text=st.text(max_size=80), query=st.text(max_size=10))
def test_any_words_in_any_text_are_spans_in_order(text: str, query: str) -> None:
    last = 0
    for start, end in found_at(text, query):
        assert last <= start < end <= len(text)
        last = end


@pytest.fixture
def talks(store: Store) -> list[Conversation]:
    made = []
    for number, model in enumerate(("Qwen3-8B", "SmolLM2")):
        conversation = Conversation(f"talk {number}")
        for place in range(3):
            message = conversation.add("user", f"needle {place}")
            reply = conversation.add("assistant", f"a needle {place}")
            message.created_at = reply.created_at = 1_000 * number + place
            reply.model = model
            store.add(conversation, message, reply)
        made.append(conversation)
    assert store.flush(5)
    return made


def test_each_message_is_found_or_the_newest_of_each_conversation(
    store: Store, talks: list[Conversation]
) -> None:
    every = store.search("needle", per_message=True)
    assert [hit.message_id for hit in every] == sorted(
        (turn.id for talk in talks for turn in talk.turns), reverse=True
    )
    grouped = store.search("needle")
    assert [(hit.conversation_id, hit.message_id) for hit in grouped] == [
        (talk.id, talk.turns[-1].id) for talk in reversed(talks)
    ]
    assert len(store.search("needle", per_message=True, limit=5)) == 5


@pytest.mark.parametrize(
    ("narrow", "found"),
    [
        ({"role": "user"}, 6),
        ({"role": "assistant"}, 6),
        ({"model": "qwen"}, 3),
        ({"model": "SmolLM2"}, 3),
        ({"model": "%"}, 0),
        ({"since_ms": 1_001}, 4),
        ({"role": "user", "since_ms": 1_001}, 2),
        ({"role": "user", "model": "qwen"}, 0),
    ],
)
def test_role_model_and_time_narrow_down(
    store: Store, talks: list[Conversation], narrow: dict[str, object], found: int
) -> None:
    hits = store.search("needle", per_message=True, **narrow)  # type: ignore[arg-type]
    assert len(hits) == found
    recent = store.recent(**narrow)  # type: ignore[arg-type]
    assert {hit.conversation_id for hit in recent} == {hit.conversation_id for hit in hits}


def test_a_hit_has_what_a_list_shows(store: Store, talks: list[Conversation]) -> None:
    hit = store.search("needle", role="assistant", model="qwen", limit=1, per_message=True)[0]
    turn = talks[0].turns[-1]
    assert (hit.conversation_id, hit.message_id, hit.title) == (talks[0].id, turn.id, "talk 0")
    assert (hit.role, hit.created_at, hit.updated_at, hit.model) == ("assistant", 2, 2, "Qwen3-8B")
    assert hit.snippet == "a needle 2"
    assert store.text(hit.message_id) == turn.text and store.text(1) == ""


def test_a_snippet_begins_a_little_before_the_word(store: Store) -> None:
    conversation = Conversation("long")
    store.add(conversation, conversation.add("assistant", "far " * 500 + "Nädel in the hay " + "far " * 500))
    store.flush(5)
    (hit,) = store.search("nadel")
    assert hit.snippet.startswith("…") and "Nädel" in hit.snippet and len(hit.snippet) <= 61
