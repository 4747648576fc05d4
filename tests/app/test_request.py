"""What the model is told of a conversation."""

from __future__ import annotations

from app.conversation import Conversation, TurnStatus
from app.request import COMPLETION_TOKENS, build_request, told_turns
from engine import Message, Overflow, SamplingParams


def test_unanswered_messages_are_left_out_so_that_roles_alternate() -> None:
    conversation = Conversation()
    conversation.add("user", "a")
    conversation.add("assistant", "", TurnStatus.ERROR)
    conversation.add("user", "b")
    conversation.add("assistant", "partial", TurnStatus.CANCELLED)
    conversation.add("user", "c")
    request = build_request(
        told_turns(conversation.turns),
        has_template=True,
        system="be kind",
        sampling=SamplingParams(),
        overflow=Overflow.DROP_OLDEST,
    )
    assert request.messages == (
        Message("system", "be kind"),
        Message("user", "b"),
        Message("assistant", "partial"),
        Message("user", "c"),
    )
    assert request.overflow is Overflow.DROP_OLDEST


def test_a_base_model_continues_one_text() -> None:
    conversation = Conversation()
    for role, text in (("user", "Once"), ("assistant", " upon"), ("user", "And")):
        conversation.add(role, text)
    request = build_request(
        told_turns(conversation.turns), has_template=False, system="ignored", sampling=SamplingParams()
    )
    assert request.prompt == "Once upon\nAnd"
    assert request.max_tokens == COMPLETION_TOKENS
    assert not request.messages


def test_what_was_left_out_once_stays_out_on_this_line_only() -> None:
    conversation = Conversation()
    for number in range(3):
        conversation.add("user", f"q{number}")
        conversation.add("assistant", f"a{number}")
    turns = conversation.turns
    turns[5].made_by = {"seen_from": turns[2].id}
    conversation.add("user", "q3")
    assert [turn.text for turn in told_turns(turns)] == ["q1", "a1", "q2", "a2", "q3"]
    conversation.cut(turns[5])
    assert [turn.text for turn in told_turns(turns)] == ["q0", "a0", "q1", "a1", "q2"]
