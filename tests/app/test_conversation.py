"""What the model is told of a conversation."""

from __future__ import annotations

from app.conversation import COMPLETION_TOKENS, Conversation, TurnStatus, build_request, new_id, title_of
from engine import Message, SamplingParams


def test_unanswered_messages_are_left_out_so_that_roles_alternate() -> None:
    conversation = Conversation()
    conversation.add("user", "a")
    conversation.add("assistant", "", TurnStatus.ERROR)
    conversation.add("user", "b")
    conversation.add("assistant", "partial", TurnStatus.CANCELLED)
    conversation.add("user", "c")
    request = build_request(
        conversation.turns, has_template=True, system="be kind", sampling=SamplingParams()
    )
    assert request.messages == (
        Message("system", "be kind"),
        Message("user", "b"),
        Message("assistant", "partial"),
        Message("user", "c"),
    )


def test_a_base_model_continues_one_text() -> None:
    conversation = Conversation()
    for role, text in (("user", "Once"), ("assistant", " upon"), ("user", "And")):
        conversation.add(role, text)
    request = build_request(
        conversation.turns, has_template=False, system="ignored", sampling=SamplingParams()
    )
    assert request.prompt == "Once upon\nAnd"
    assert request.max_tokens == COMPLETION_TOKENS
    assert not request.messages


def test_turns_form_a_chain_and_the_first_message_names_it() -> None:
    conversation = Conversation()
    first = conversation.add("user", "\n  A question\nwith more")
    second = conversation.add("assistant", "answer")
    assert conversation.title == "A question"
    assert (first.parent_id, second.parent_id) == (None, first.id)


def test_titles_are_bounded_and_ids_fit_sqlite() -> None:
    assert len(title_of("x" * 1000)) == 80
    assert title_of(" \n ") == ""
    ids = [Conversation().add("user", "x").id for _ in range(100)]
    assert ids == sorted(set(ids))
    assert 0 < new_id() < 1 << 63
