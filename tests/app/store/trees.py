"""Hypothesis strategies for conversations with all that they can hold."""

from __future__ import annotations

from hypothesis import strategies as st

from app.conversation import Attachment, Conversation, Turn, TurnStatus
from app.store.rows import tree_of
from engine import (
    MOST_DRAFTS,
    DecodingOptions,
    DraftKind,
    GenerationStats,
    Overflow,
    SamplingParams,
    SkipChoice,
    SkipEffect,
    SkipRule,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_SAMPLING = st.builds(
    SamplingParams,
    temperature=st.floats(0, 2),
    top_k=st.integers(0, 99),
    seed=st.none() | st.integers(0, 2**62),
)
_BLOCKS = st.frozensets(st.integers(0, 200), min_size=1, max_size=9)
_SKIP = st.builds(
    SkipChoice, st.sampled_from([SkipRule.COSINE, SkipRule.KL]), st.sampled_from([0.0, 0.05, 0.98, 1.0])
) | st.builds(SkipChoice, st.just(SkipRule.BLOCKS), blocks=_BLOCKS)
_DECODING = st.builds(
    DecodingOptions,
    skip=st.none() | _SKIP,
    draft=st.sampled_from(DraftKind),
    draft_k=st.none() | st.integers(1, MOST_DRAFTS),
    exit_layer=st.none() | st.integers(1, 200),
)
_FRACTION = st.floats(-1, 1e6)
_EFFECT = st.builds(SkipEffect, _BLOCKS, _FRACTION, _FRACTION, _FRACTION, _FRACTION, _FRACTION)
_STATS = st.builds(
    GenerationStats,
    prompt_tokens=st.integers(0, 9999),
    decode_s=st.floats(0, 1e6),
    drafted_tokens=st.integers(0, 99),
    skip_effect=st.none() | _EFFECT,
)
_ATTACHMENT = st.builds(Attachment, st.sampled_from(["file", "paste"]), TEXT, TEXT)
_STATUS = st.sampled_from([TurnStatus.DONE, TurnStatus.CANCELLED, TurnStatus.ERROR])


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """A conversation with branches that shows one of its turns last, or nothing."""
    conversation = Conversation(
        draw(TEXT),
        updated_at=draw(st.integers(0, 2**41)),
        persona=draw(TEXT),
        system=draw(st.none() | TEXT),
        sampling=draw(st.none() | _SAMPLING),
        overflow=draw(st.none() | st.sampled_from(Overflow)),
        id=draw(st.integers(1, 2**60)),
    )
    ids = sorted(draw(st.sets(st.integers(1, 2**60), max_size=8)))
    turns: list[Turn] = []
    for place, turn_id in enumerate(ids):
        parent = draw(st.none() | st.sampled_from(ids[:place])) if place else None
        is_reply = draw(st.booleans())
        turns.append(
            Turn(
                conversation.id,
                "assistant" if is_reply else "user",
                draw(TEXT),
                draw(_STATUS),
                draw(TEXT),
                parent,
                draw(TEXT) if is_reply else "",
                draw(st.none() | _SAMPLING),
                draw(st.none() | _DECODING),
                draw(_STATS) if is_reply else GenerationStats(),
                draw(st.dictionaries(TEXT, st.integers() | TEXT, max_size=2)) if is_reply else {},
                tuple(draw(st.lists(_ATTACHMENT, max_size=2))),
                draw(st.integers(0, 2**41)),
                turn_id,
            )
        )
    head_id = draw(st.sampled_from(ids)) if ids else None
    conversation.grow(turns, head_id)
    return conversation


def facts(conversation: Conversation) -> tuple[object, ...]:
    """All that two equal conversations have in common, in an order of its own."""
    about = (conversation.title, conversation.updated_at, conversation.id, conversation.persona)
    chosen = (conversation.system, conversation.sampling, conversation.overflow)
    tree = sorted(tree_of(conversation), key=lambda turn: turn.id)
    return (*about, *chosen, conversation.turns, tree)
