"""Two replies to one message: what is changed, which reply can be the first, and how the texts compare."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.comparison import Candidate, Comparison, Switched, Usual, Way, first_of, switched
from app.conversation import Conversation, Turn, TurnStatus
from app.request import ORDINARY
from app.store.decoding_json import decoding_facts
from engine import DecodingOptions, DraftKind, GenerationStats, SamplingParams, SkipChoice, SkipRule

SKIP = SkipChoice(SkipRule.KL, 0.05)
USUAL = Usual(SKIP, DraftKind.SELF, 0.7)
PLAIN = Way(SamplingParams(), ORDINARY)


def asked(text: str = "an answer") -> tuple[Conversation, Turn, Turn]:
    """A conversation with a whole reply."""
    conversation = Conversation()
    message = conversation.add("user", "a question")
    reply = conversation.add("assistant", text)
    reply.model, reply.sampling = "model", SamplingParams()
    reply.stats = GenerationStats(completion_tokens=3, seed=99)
    return conversation, message, reply


@pytest.mark.parametrize("what", list(Switched))
def test_one_switch_is_changed_and_nothing_else_and_twice_is_back(what: Switched) -> None:
    other = switched(PLAIN, what, USUAL)
    changed = [before != after for before, after in zip(PLAIN.words, other.words, strict=True)]
    assert sum(changed) == 1
    assert switched(other, what, USUAL) == PLAIN


def test_the_switches_are_told_in_words() -> None:
    assert PLAIN.words == ["all blocks", "no drafts", "T 0.7"]
    way = Way(SamplingParams(temperature=0), DecodingOptions(SKIP, DraftKind.NGRAM))
    assert way.words == ["skip kl=0.05", "drafts: n-gram", "greedy"]


def test_a_whole_reply_is_the_first_and_the_second_is_drawn_with_its_seed() -> None:
    conversation, message, reply = asked()
    first = first_of(conversation, message, "model", Way(SamplingParams(temperature=0), ORDINARY))
    assert first.turn is reply
    assert first.way == Way(SamplingParams(seed=99), ORDINARY)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": TurnStatus.CANCELLED},
        {"status": TurnStatus.ERROR},
        {"model": "another"},
        {"text": ""},
        {"sampling": None},
        {"stats": GenerationStats()},
        {"made_by": {"changes": [[3, {}]]}},
        {"made_by": {"decoding_changes": [[3, decoding_facts(ORDINARY)]]}},
    ],
)
def test_a_reply_that_cannot_be_repeated_is_made_anew(changes: dict[str, object]) -> None:
    conversation, message, reply = asked()
    for name, value in changes.items():
        setattr(reply, name, value)
    first = first_of(conversation, message, "model", PLAIN)
    assert first.turn is None
    assert first.way.sampling.seed is not None, "both are drawn with one seed"
    assert replace(first.way.sampling, seed=None) == SamplingParams()


def test_a_seed_that_is_chosen_is_kept() -> None:
    conversation = Conversation()
    message = conversation.add("user", "a question")
    first = first_of(conversation, message, "model", Way(SamplingParams(seed=5), ORDINARY))
    assert first.way.sampling.seed == 5


def test_one_is_asked_for_after_the_other_and_none_after_one_that_failed() -> None:
    conversation = Conversation()
    message = conversation.add("user", "a question")
    first, second = Candidate("A", PLAIN), Candidate("B", PLAIN)
    comparison = Comparison(conversation, message, first, second)
    assert comparison.next is first
    first.turn = conversation.add("assistant", status=TurnStatus.STREAMING)
    assert comparison.next is None
    first.turn.status = TurnStatus.DONE
    comparison.note_end(first.turn)
    assert comparison.next is second
    assert not comparison.over
    second.turn = Turn(conversation.id, "assistant", "", TurnStatus.STREAMING)
    assert not comparison.over
    second.turn.status = TurnStatus.DONE
    assert (comparison.next, comparison.over) == (None, True)

    stopped = Comparison(conversation, message, Candidate("A", PLAIN, first.turn), Candidate("B", PLAIN))
    first.turn.status = TurnStatus.ERROR
    stopped.note_end(message)
    assert stopped.next is stopped.second, "another turn has ended"
    stopped.note_end(first.turn)
    assert (stopped.next, stopped.over) == (None, True)


@pytest.mark.parametrize(
    ("one", "other", "status", "words"),
    [
        ("", "abc", TurnStatus.DONE, ""),
        ("abc", "", TurnStatus.STREAMING, ""),
        ("abcdef", "abc", TurnStatus.STREAMING, "the same text so far"),
        ("abcdef", "abx", TurnStatus.STREAMING, "the same text for 2 characters, then not"),
        ("abcdef", "abcdef", TurnStatus.DONE, "the same text, to the last character"),
        ("abcdef", "abc", TurnStatus.DONE, "the same text for 3 characters, then not"),
        ("abcdef", "xbc", TurnStatus.DONE, "different from the first character on"),
    ],
)
def test_the_verdict(one: str, other: str, status: TurnStatus, words: str) -> None:
    conversation, message, reply = asked(one)
    second = Candidate("B", PLAIN, Turn(conversation.id, "assistant", other, status))
    assert Comparison(conversation, message, Candidate("A", PLAIN, reply), second).verdict == words
