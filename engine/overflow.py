"""A conversation that is longer than the context: its oldest turns are left out.

Knows messages and how many tokens they make; does not know templates, caches or the loop. Called by `answer`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import takewhile

from engine.config import Message

_MOST_RESERVED = 512
"""Tokens that a reply is promised."""


def prompt_room(max_context: int, max_tokens: int | None) -> int:
    """Tokens that a prompt may take of the context, so that the reply has room."""
    reserve = min(_MOST_RESERVED, max_context // 4)
    return max_context - max(1, reserve if max_tokens is None else min(reserve, max_tokens))


def drop_oldest(
    messages: Sequence[Message], room: int, count: Callable[[Sequence[Message]], int]
) -> tuple[Message, ...]:
    """The messages that are told: all where they make at most `room` tokens, else the last whole turns.

    A turn is a message of the person with the replies to it. System messages at the beginning and the last
    turn stay, whether they fit or not.
    """
    if count(messages) <= room:
        return tuple(messages)
    system = tuple(takewhile(lambda message: message.role == "system", messages))
    rest = messages[len(system) :]
    starts = [i for i, message in enumerate(rest) if message.role == "user"] or [0]
    # Every turn dropped moves all that follows, which must be computed anew. So a quarter of the room is made
    # at once: while the conversation grows into it, its beginning stays the same and is found in the cache,
    # provided that the caller leaves out from then on what was left out here.
    target = room * 3 // 4
    last = len(starts) - 1
    first = bisect_left(range(last), True, key=lambda n: count((*system, *rest[starts[n] :])) <= target)
    return (*system, *rest[starts[first] :])
