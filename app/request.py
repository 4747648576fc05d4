"""What the engine is asked for the next reply: the turns that the model gets to see, as a request.

Knows turns and requests; does not know widgets, SQL or the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from app.conversation import Turn
from engine import DecodingOptions, Message, Overflow, Request, SamplingParams

COMPLETION_TOKENS: Final = 256
"""A base model seldom ends by itself; this many tokens are continued at a time."""
ORDINARY: Final = DecodingOptions()
"""All blocks in every pass, and no drafts."""


def seen_from(turns: Sequence[Turn]) -> int | None:
    """Return the id of the first turn that the newest reply's model was told; None for the first of all."""
    return next((turn.made_by.get("seen_from") for turn in reversed(turns) if turn.made_by), None)


def told_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns that a model is told of `turns`, which end with a message of the person.

    Those before `seen_from` of the last reply did not fit any more. A message whose reply failed or was
    stopped before its first word is left out, reply and all: it may be what the model could not take, and
    most templates insist that roles alternate.
    """
    first = seen_from(turns)
    start = next((place for place, turn in enumerate(turns) if turn.id == first), 0)
    seen = turns[start:]
    return [
        turn
        for turn, following in zip_longest(seen, seen[1:])
        if turn.text and (turn.role == "assistant" or following is None or following.text)
    ]


def build_request(
    told: Sequence[Turn],
    *,
    has_template: bool,
    system: str,
    sampling: SamplingParams,
    overflow: Overflow = Overflow.STOP,
    decoding: DecodingOptions = ORDINARY,
) -> Request:
    """Return the request for the reply that follows `told` (see `told_turns`).

    With a chat template the model sees a conversation. Without one (a base model) it is given the whole
    text so far to continue.
    """
    if not has_template:
        prompt = "".join(turn.text if turn.role == "assistant" else "\n" + turn.told for turn in told)
        return Request(
            prompt=prompt.removeprefix("\n"),
            sampling=sampling,
            decoding=decoding,
            max_tokens=COMPLETION_TOKENS,
        )
    messages = [Message("system", system)] if system else []
    messages += [Message(turn.role, turn.told) for turn in told]
    return Request(messages=tuple(messages), sampling=sampling, decoding=decoding, overflow=overflow)
