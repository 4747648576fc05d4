"""What fills the context, counted by the engine as a whole and here in parts."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from app.context_use import ContextUse, TokenCounts, context_use
from app.conversation import Attachment, Conversation, Turn, TurnStatus
from engine import GenerationStats

WORDS = TokenCounts(lambda text: len(text.split()))


def told(conversation: Conversation, question: str, answer: str, prompt: int, reply: int) -> Turn:
    conversation.add("user", question)
    turn = conversation.add("assistant", answer)
    turn.stats = GenerationStats(prompt_tokens=prompt, completion_tokens=reply)
    return turn


def test_nothing_is_nothing() -> None:
    assert context_use(Conversation(), "", 100, WORDS) == ContextUse(total=100)


def test_a_finished_reply_makes_the_whole_exact() -> None:
    conversation = Conversation()
    told(conversation, "a b c", "d e", 30, 2)
    use = context_use(conversation, "be kind", 100, WORDS, reserve=20)
    assert use == ContextUse(system=6, history=26, reserve=20, total=100, exact=True)
    assert (use.used, use.free) == (32, 48)


def test_attachments_are_told_apart() -> None:
    conversation = Conversation()
    conversation.add("user", "see @f").attachments = (Attachment("file", "@f", "one two three"),)
    assert context_use(conversation, "", 100, WORDS).attachments == 3
    turn = conversation.add("assistant", "ok")
    turn.stats = GenerationStats(prompt_tokens=20, completion_tokens=1)
    assert context_use(conversation, "", 100, WORDS) == ContextUse(history=18, attachments=3, total=100)


def test_a_growing_reply_is_told_apart_and_one_that_waits_is_estimated() -> None:
    conversation = Conversation()
    told(conversation, "a", "b", 10, 1)
    conversation.add("user", "c d")
    growing = conversation.add("assistant", "", TurnStatus.STREAMING)
    waiting = context_use(conversation, "", 100, WORDS)
    assert (waiting.used, waiting.exact, waiting.reply) == (11 + 2 + 4, False, 0)
    growing.stats = GenerationStats(prompt_tokens=19, completion_tokens=5, dropped_messages=2)
    use = context_use(conversation, "", 100, WORDS)
    assert use == ContextUse(history=19, reply=5, total=100, exact=True, dropped=2)


def test_without_a_model_it_is_an_estimate() -> None:
    conversation = Conversation()
    conversation.add("user", "12345678")
    use = context_use(conversation, "1234", 100, TokenCounts(lambda text: None))
    assert use == ContextUse(system=5, history=6, total=100, exact=False)


def test_each_text_is_counted_once_and_again_for_another_model() -> None:
    asked: list[str] = []

    def count(text: str) -> int:
        asked.append(text)
        return 1

    counts = TokenCounts(count)
    assert [counts.of(text) for text in ("a", "a", "b", "")] == [(1, True), (1, True), (1, True), (0, True)]
    assert asked == ["a", "b"]
    counts.forget()
    counts.of("a")
    assert asked == ["a", "b", "a"]


def test_estimates_are_not_kept() -> None:
    answers = iter([None, 7])
    counts = TokenCounts(lambda text: next(answers))
    assert [counts.of("12345"), counts.of("12345")] == [(2, False), (7, True)]


def test_a_long_text_costs_no_more_than_its_beginning() -> None:
    longest = 0

    def count(text: str) -> int:
        nonlocal longest
        longest = max(longest, len(text))
        return len(text) // 2

    counts = TokenCounts(count)
    assert counts.of("x" * 1_000_000) == (500_000, True)
    assert longest < 50_000


def test_counts_are_not_kept_for_ever() -> None:
    counts = TokenCounts(len)
    for number in range(10_000):
        assert counts.of(str(number)) == (len(str(number)), True)
    assert len(counts._known) <= 4096


@given(
    st.integers(0, 500), st.integers(0, 500), st.integers(0, 300), st.integers(0, 300), st.integers(0, 800)
)
def test_the_parts_are_the_whole(prompt: int, reply: int, system: int, files: int, total: int) -> None:
    conversation = Conversation()
    turn = told(conversation, "q", "a", prompt, reply if prompt else 0)
    conversation.turns[0].attachments = (Attachment("file", "@f", "w " * files),)
    for status in (TurnStatus.DONE, TurnStatus.STREAMING):
        turn.status = status
        use = context_use(conversation, "w " * system, total, WORDS, reserve=50)
        if prompt:
            assert use.used == prompt + reply
        parts = (use.system, use.history, use.attachments, use.reply, use.reserve, use.free)
        assert min(parts) >= 0
        assert use.used + use.reserve + use.free == max(total, use.used)
        assert replace(use, reserve=0).free >= use.free


def test_what_failed_or_was_taken_back_is_not_counted() -> None:
    conversation = Conversation()
    told(conversation, "a", "b", 7, 3)
    told(conversation, "c", "", 90, 0).status = TurnStatus.CANCELLED
    use = context_use(conversation, "", 100, WORDS)
    assert (use.used, use.exact) == (10, True)
