"""Conversations as data: a tree of turns, the line of it that is shown, and what a model is told of it.

An edited message or a second reply does not replace the first: both stay, as siblings below the same turn.
Knows turns and their order. Does not know widgets, SQL or the engine's thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from engine import DecodingOptions, GenerationStats, Overflow, SamplingParams

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


@dataclass(frozen=True, slots=True)
class Attachment:
    """Text that came with a message: a file, or something large that was pasted."""

    kind: str
    """file or paste."""
    name: str
    """What stands for it in the message: `@notes.txt`, `[paste 214 lines]`."""
    text: str


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
    """How the reply was drawn, to begin with."""
    decoding: DecodingOptions | None = None
    """How its tokens were computed, to begin with: what was left out, and who drafted."""
    stats: GenerationStats = field(default_factory=GenerationStats)
    """Counts and times of the reply."""
    made_by: dict[str, Any] = field(default_factory=dict)
    """The engine's settings while it replied (backend, threads, context, budget, changes on the way), and
    `seen_from`: the id of the first turn that the model was told. Plain JSON."""
    attachments: tuple[Attachment, ...] = ()
    created_at: int = field(default_factory=now_ms)
    """Milliseconds since 1970."""
    id: int = field(default_factory=new_id)

    @property
    def told(self) -> str:
        """The text as a model is given it: pastes in their places, files after the message."""
        text = self.text
        for part in self.attachments:
            if part.kind == "paste":
                text = text.replace(part.name, part.text, 1)
        files = (
            f"{part.name.removeprefix('@')}:\n{part.text}" for part in self.attachments if part.kind == "file"
        )
        return "\n\n".join([text, *files])


@dataclass(slots=True, weakref_slot=True)
class Conversation:
    """A tree of turns and the line through it that is shown."""

    title: str = ""
    turns: list[Turn] = field(default_factory=list)
    """The line that is shown, oldest first."""
    updated_at: int = field(default_factory=now_ms)
    """Milliseconds since 1970."""
    id: int = field(default_factory=new_id)
    persona: str = ""
    """Name of the persona it was begun with; empty for none."""
    system: str | None = None
    """Its own system prompt; None takes that of the settings."""
    sampling: SamplingParams | None = None
    """Its own way to draw tokens; None takes that of the settings."""
    overflow: Overflow | None = None
    """What happens when the context is full; None takes that of the settings."""
    _below: dict[int | None, list[Turn]] = field(default_factory=dict, repr=False)
    """Every turn of the tree by the id of the one before it, oldest first."""

    def __post_init__(self) -> None:
        """Grow the tree from the line that was given."""
        for turn in self.turns:
            self._below.setdefault(turn.parent_id, []).append(turn)

    def grow(self, turns: Iterable[Turn], head_id: int | None) -> None:
        """Take all turns of a stored tree, oldest first, and show the line that ends at `head_id`."""
        self._below.clear()
        known: dict[int, Turn] = {}
        for turn in turns:
            known[turn.id] = turn
            self._below.setdefault(turn.parent_id, []).append(turn)
        self.turns[:] = _line_to(known, head_id)

    def add(self, role: str, text: str = "", status: TurnStatus = TurnStatus.DONE) -> Turn:
        """Append a turn below the last one and return it; the first message names the conversation."""
        parent = self.turns[-1].id if self.turns else None
        turn = Turn(self.id, role, text, status, parent_id=parent)
        self._below.setdefault(parent, []).append(turn)
        self.turns.append(turn)
        self.updated_at = turn.created_at
        if not self.title:
            self.title = title_of(text)
        return turn

    def siblings(self, turn: Turn) -> list[Turn]:
        """All turns in the place of `turn`, itself included, oldest first."""
        return self._below.get(turn.parent_id, [])

    def cut(self, turn: Turn) -> None:
        """End the line before `turn`; what is added next becomes its sibling."""
        del self.turns[self.turns.index(turn) :]

    def show(self, turn: Turn) -> None:
        """Lead the line through `turn`, a sibling of one on it, and on to the newest turn below."""
        place = self.turns.index(next(other for other in self.siblings(turn) if other in self.turns))
        self.turns[place:] = self._newest_line(turn)

    def lead_through(self, turn_id: int) -> bool:
        """Lead the line through a turn that lies on another one; False when it is on the line or unknown."""
        known = {turn.id: turn for turns in self._below.values() for turn in turns}
        turn = known.get(turn_id)
        if turn is None or turn in self.turns:
            return False
        self.turns[:] = [*_line_to(known, turn.parent_id), *self._newest_line(turn)]
        return True

    def remove(self, turn: Turn) -> list[Turn]:
        """Take `turn` and all below it out of the tree and return them, for `restore`; its place in the line
        goes to the sibling before it, or after it."""
        siblings = self.siblings(turn)
        place, gone = siblings.index(turn), list(self._all_below(turn))
        siblings.remove(turn)
        if turn in self.turns:
            start = self.turns.index(turn)
            heir = siblings[max(0, place - 1)] if siblings else None
            self.turns[start:] = self._newest_line(heir) if heir is not None else []
        for other in gone:
            self._below.pop(other.id, None)
        return gone

    def restore(self, gone: list[Turn]) -> None:
        """Put back what `remove` took, and show it again."""
        for turn in gone:
            siblings = self._below.setdefault(turn.parent_id, [])
            siblings.append(turn)
            siblings.sort(key=lambda other: other.id)
        first = gone[0]
        line = [turn for turn in self.turns if turn.id != first.id]
        ids = [turn.id for turn in line]
        start = ids.index(first.parent_id) + 1 if first.parent_id in ids else 0
        self.turns[:] = [*line[:start], *self._newest_line(first)]

    def _newest_line(self, turn: Turn) -> list[Turn]:
        line = [turn]
        while below := self._below.get(line[-1].id):
            line.append(below[-1])
        return line

    def _all_below(self, turn: Turn) -> Iterator[Turn]:
        waiting = [turn]
        while waiting:
            place = waiting.pop()
            yield place
            waiting += reversed(self._below.get(place.id, []))

    @property
    def counted(self) -> Turn | None:
        """The newest reply whose tokens the engine has counted and that is in the context, if any."""
        return next(
            (
                turn
                for turn in reversed(self.turns)
                if turn.stats.prompt_tokens and (turn.text or turn.status is TurnStatus.STREAMING)
            ),
            None,
        )

    @property
    def context_used(self) -> int:
        """Tokens that the conversation takes of the context, as counted with its newest reply."""
        counted = self.counted
        return counted.stats.prompt_tokens + counted.stats.completion_tokens if counted is not None else 0

    @property
    def streaming(self) -> Turn | None:
        """The reply that is still to come or growing, if any."""
        last = self.turns[-1] if self.turns else None
        return last if last is not None and last.status is TurnStatus.STREAMING else None


def _line_to(known: Mapping[int, Turn], turn_id: int | None) -> list[Turn]:
    """Return the turns from the first one to `turn_id`."""
    line: list[Turn] = []
    while turn_id is not None and (turn := known.get(turn_id)) is not None:
        line.append(turn)
        turn_id = turn.parent_id
    return line[::-1]


def title_of(text: str) -> str:
    """Return the first line that says something, shortened."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= _TITLE_LENGTH else first[: _TITLE_LENGTH - 1] + "…"
