"""What fills the context: system prompt, history, attachments, the reply that grows, and room kept for it.

The engine counts the whole of it with each reply; the parts are counted here, and estimated while no model is
loaded. Knows conversations and numbers; imports no widget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

from app.conversation import Conversation, Turn
from app.request import told_turns

_CHARACTERS_OF_TOKEN: Final = 4
_TOKENS_AROUND: Final = 4
"""What a template writes around a message, roughly."""
_MOST_COUNTS: Final = 4096
_MOST_CHARACTERS: Final = 1 << 15
"""Of a longer text as many are counted, for a frame must not wait, and the rest taken to be like them."""


@dataclass(frozen=True, slots=True)
class ContextUse:
    """Tokens by what they are for."""

    system: int = 0
    history: int = 0
    """Messages and earlier replies, and what the template writes around them."""
    attachments: int = 0
    reply: int = 0
    """Of the reply that grows."""
    reserve: int = 0
    """Kept for the reply that comes."""
    total: int = 0
    """The whole context."""
    exact: bool = True
    """Whether the engine counted what is used; False for an estimate."""
    dropped: int = 0
    """Messages that did not fit any more."""

    @property
    def used(self) -> int:
        """What is in the context now."""
        return self.system + self.history + self.attachments + self.reply

    @property
    def free(self) -> int:
        """What is left beside the reserve."""
        return max(0, self.total - self.used - self.reserve)

    @property
    def share(self) -> float:
        """How full the context is; more than 1 where it does not fit."""
        return self.used / self.total if self.total else 0.0


class TokenCounts:
    """Counts texts and remembers the counts, for they are asked for with every frame."""

    def __init__(self, count: Callable[[str], int | None]) -> None:
        """Count with `count`, which returns None while it cannot."""
        self._count = count
        self._known: dict[tuple[int, int], int] = {}

    def of(self, text: str) -> tuple[int, bool]:
        """Return how many tokens `text` takes, and whether that was counted, not estimated."""
        key = (hash(text), len(text))
        if (known := self._known.get(key)) is not None:
            return known, True
        counted = self._count(text[:_MOST_CHARACTERS]) if text else 0
        if counted is None:
            return math.ceil(len(text) / _CHARACTERS_OF_TOKEN), False
        counted = round(counted * max(1.0, len(text) / _MOST_CHARACTERS))
        if len(self._known) >= _MOST_COUNTS:
            for old in list(islice(self._known, _MOST_COUNTS // 4)):
                del self._known[old]
        self._known[key] = counted
        return counted, True

    def forget(self) -> None:
        """Count anew: another model has other tokens."""
        self._known.clear()


def context_use(
    conversation: Conversation, system: str, total: int, counts: TokenCounts, *, reserve: int = 0
) -> ContextUse:
    """Return what `conversation` takes of a context of `total` tokens, with `system` as its system prompt."""
    turns = conversation.turns
    streaming = conversation.streaming
    told = told_turns(turns[:-1] if streaming is not None else turns)
    system_tokens = counts.of(system)[0] + _TOKENS_AROUND if system else 0
    attached = sum(counts.of(part.text)[0] for turn in told for part in turn.attachments)
    reply = (
        streaming.stats.completion_tokens if streaming is not None and streaming.stats.prompt_tokens else 0
    )
    counted = conversation.counted
    # What the engine has not counted yet: what is told after the newest reply that it counted, or all.
    later = {turn.id for turn in takewhile(lambda turn: turn is not counted, reversed(turns))}
    news = [turn for turn in told if turn.id in later]
    used = conversation.context_used - reply + sum(_tokens(turn, counts) for turn in news)
    if counted is None:
        used += system_tokens
    # The engine's count of the whole is right; where our counts of parts exceed it, they give way.
    system_tokens = min(system_tokens, used)
    attached = min(attached, used - system_tokens)
    return ContextUse(
        system=system_tokens,
        history=used - system_tokens - attached,
        attachments=attached,
        reply=reply,
        reserve=min(reserve, max(0, total - used - reply)),
        total=total,
        exact=not news,
        dropped=counted.stats.dropped_messages if counted is not None else 0,
    )


def _tokens(turn: Turn, counts: TokenCounts) -> int:
    texts = (turn.text, *(part.text for part in turn.attachments))
    return sum(counts.of(text)[0] for text in texts) + _TOKENS_AROUND
