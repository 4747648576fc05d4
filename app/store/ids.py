"""Ids for messages that were not written here. Knows what an id is made of; reads no database."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from app.conversation import Conversation, Turn
from app.store.rows import tree_of


def fresh_ids(times: Iterable[int]) -> Iterator[int]:
    """Yield an id for each message by when it was written (milliseconds since 1970), each above the last.

    Like `new_id`, so that messages that come from elsewhere stand among our own by their time.
    """
    last = 0
    for time_ms in times:
        last = max(time_ms * 1_000_000 + random.randrange(1_000_000), last + 1)
        yield last


def renumbered(conversation: Conversation) -> Conversation:
    """Return a copy with fresh ids, its messages in the order that they have."""
    turns = sorted(tree_of(conversation), key=lambda turn: turn.id)
    ids = dict(zip((turn.id for turn in turns), fresh_ids(turn.created_at for turn in turns), strict=True))
    (own_id,) = fresh_ids([turns[0].created_at if turns else conversation.updated_at])
    copy = Conversation(
        conversation.title,
        updated_at=conversation.updated_at,
        id=own_id,
        persona=conversation.persona,
        system=conversation.system,
        sampling=conversation.sampling,
        overflow=conversation.overflow,
    )
    head_id = ids[conversation.turns[-1].id] if conversation.turns else None
    copy.grow([_renumbered(turn, own_id, ids) for turn in turns], head_id)
    return copy


def _renumbered(turn: Turn, conversation_id: int, ids: dict[int, int]) -> Turn:
    parent_id = ids[turn.parent_id] if turn.parent_id is not None else None
    made_by = dict(turn.made_by)
    seen_from = made_by.get("seen_from")
    if isinstance(seen_from, int) and seen_from in ids:
        made_by["seen_from"] = ids[seen_from]
    return replace(
        turn, id=ids[turn.id], conversation_id=conversation_id, parent_id=parent_id, made_by=made_by
    )
