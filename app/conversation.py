"""Conversations as data: turns in order, their state, and the request that asks for the next reply.

Knows what a turn is and which turns a model gets to see. Does not know widgets, SQL or the engine's thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import zip_longest
from typing import Final

from engine import GenerationStats, Message, Request, SamplingParams

COMPLETION_TOKENS: Final = 256
"""A base model seldom ends by itself; this many tokens are continued at a time."""
_TITLE_LENGTH: Final = 80


def now_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def new_id() -> int:
    """Return an id that needs no database: nanoseconds since 1970, the last 8 bits random."""
    return time.time_ns() & ~0xFF | os.urandom(1)[0]


class TurnStatus(StrEnum):
    """Where a turn stands; the values are stored."""

    STREAMING = "streaming"
    DONE = "done"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(slots=True)
class Turn:
    """One message of a conversation, with what made it."""

    conversation_id: int
    role: str
    """user or assistant."""
    text: str = ""
    """Exactly as typed or generated; cleaned only when shown."""
    status: TurnStatus = TurnStatus.DONE
    note: str = ""
    """Why it ended early, in one line."""
    parent_id: int | None = None
    """The turn before; conversations are trees."""
    model: str = ""
    """Which model replied."""
    sampling: SamplingParams | None = None
    """How the reply was drawn."""
    stats: GenerationStats = field(default_factory=GenerationStats)
    """Counts and times of the reply."""
    created_at: int = field(default_factory=now_ms)
    """Milliseconds since 1970."""
    id: int = field(default_factory=new_id)


@dataclass(slots=True)
class Conversation:
    """A line of turns, oldest first."""

    title: str = ""
    turns: list[Turn] = field(default_factory=list)
    updated_at: int = field(default_factory=now_ms)
    """Milliseconds since 1970."""
    id: int = field(default_factory=new_id)

    def add(self, role: str, text: str = "", status: TurnStatus = TurnStatus.DONE) -> Turn:
        """Append a turn below the last one and return it; the first message names the conversation."""
        parent = self.turns[-1].id if self.turns else None
        turn = Turn(self.id, role, text, status, parent_id=parent)
        self.turns.append(turn)
        self.updated_at = turn.created_at
        if not self.title:
            self.title = title_of(text)
        return turn

    @property
    def context_used(self) -> int:
        """Tokens that the conversation takes of the context, as counted with its newest reply."""
        counted = (
            turn.stats.prompt_tokens + turn.stats.completion_tokens
            for turn in reversed(self.turns)
            if turn.text or turn.status is TurnStatus.STREAMING
        )
        return next(filter(None, counted), 0)

    @property
    def streaming(self) -> Turn | None:
        """The reply that is still to come or growing, if any."""
        last = self.turns[-1] if self.turns else None
        return last if last is not None and last.status is TurnStatus.STREAMING else None


def title_of(text: str) -> str:
    """Return the first line that says something, shortened."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= _TITLE_LENGTH else first[: _TITLE_LENGTH - 1] + "…"


def build_request(
    turns: Sequence[Turn], *, has_template: bool, system: str, sampling: SamplingParams
) -> Request:
    """Return the request for the reply that follows `turns`.

    With a chat template the model sees a conversation. Without one (a base model) it is given the whole
    text so far to continue. A message whose reply failed or was stopped before its first word is left out,
    reply and all: it may be what the model could not take, and most templates insist that roles alternate.
    """
    told = [
        turn
        for turn, following in zip_longest(turns, turns[1:])
        if turn.text and (turn.role == "assistant" or following is None or following.text)
    ]
    if not has_template:
        prompt = "".join(turn.text if turn.role == "assistant" else "\n" + turn.text for turn in told)
        return Request(prompt=prompt.removeprefix("\n"), sampling=sampling, max_tokens=COMPLETION_TOKENS)
    messages = [Message("system", system)] if system else []
    messages += [Message(turn.role, turn.text) for turn in told]
    return Request(messages=tuple(messages), sampling=sampling)
