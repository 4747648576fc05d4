"""One prompt answered twice, with one switch changed: how the two replies are made, and how they compare.

Knows turns and options; does not know the screen, nor who asks the engine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from typing import Final, NamedTuple

from app.conversation import Conversation, Turn, TurnStatus
from app.decoding_words import draft_name
from app.i18n import _
from app.request import ORDINARY
from engine import DecodingOptions, DraftKind, SamplingParams, SkipChoice

_MOST_SEED: Final = 1 << 31


class Way(NamedTuple):
    """How a reply is made."""

    sampling: SamplingParams
    decoding: DecodingOptions

    @property
    def words(self) -> list[str]:
        """What there is to tell apart: blocks, drafts, and how tokens are drawn."""
        skip, draft = self.decoding.skip, self.decoding.draft
        return [
            _("skip {rule}").format(rule=skip) if skip is not None else _("all blocks"),
            _("no drafts") if draft is DraftKind.OFF else _("drafts: {kind}").format(kind=draft_name(draft)),
            f"T {self.sampling.temperature:g}" if self.sampling.temperature else _("greedy"),
        ]


class Switched(StrEnum):
    """What the second reply is made with that the first is not, or the other way round."""

    SKIP = "skip"
    DRAFT = "draft"
    GREEDY = "greedy"


class Usual(NamedTuple):
    """What a switch turns on where it is off, and how tokens are drawn where greedy is taken away."""

    skip: SkipChoice
    draft: DraftKind
    temperature: float


def switched(way: Way, what: Switched, usual: Usual) -> Way:
    """Return `way` with one switch the other way round."""
    sampling, decoding = way
    match what:
        case Switched.SKIP:
            return Way(sampling, replace(decoding, skip=None if decoding.skip else usual.skip))
        case Switched.DRAFT:
            off = decoding.draft is DraftKind.OFF
            return Way(sampling, replace(decoding, draft=usual.draft if off else DraftKind.OFF))
        case Switched.GREEDY:
            temperature = 0.0 if sampling.temperature else usual.temperature
            return Way(replace(sampling, temperature=temperature), decoding)


@dataclass(slots=True)
class Candidate:
    """One of the two replies."""

    name: str
    """A or B."""
    way: Way
    turn: Turn | None = None
    """None before it was asked for."""

    @property
    def ended(self) -> bool:
        """Whether no more text will come."""
        return self.turn is not None and self.turn.status is not TurnStatus.STREAMING


@dataclass(slots=True)
class Comparison:
    """Two replies to one message."""

    conversation: Conversation
    message: Turn
    first: Candidate
    second: Candidate
    stopped: bool = False
    """Whether nothing more is asked for."""

    @property
    def both(self) -> tuple[Candidate, Candidate]:
        """Both, in their order."""
        return self.first, self.second

    @property
    def next(self) -> Candidate | None:
        """The one to be asked for now; None while the other grows, and when both are there."""
        if self.stopped or any(each.turn is not None and not each.ended for each in self.both):
            return None
        return next((each for each in self.both if each.turn is None), None)

    @property
    def over(self) -> bool:
        """Whether both have come, or no more will."""
        waits = any(each.turn is None for each in self.both) and not self.stopped
        return not waits and all(each.turn is None or each.ended for each in self.both)

    def note_end(self, turn: Turn) -> None:
        """Take note that a reply has ended: where one was stopped or failed, the other is not asked for."""
        mine = any(each.turn is turn for each in self.both)
        if mine and turn.status is not TurnStatus.DONE:
            self.stopped = True

    @property
    def verdict(self) -> str:
        """Say how far the two texts agree; empty before both have begun."""
        one, other = (each.turn.text if each.turn is not None else "" for each in self.both)
        if not one or not other:
            return ""
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
        alike = sum(1 for _pair in pairs)
        if alike == min(len(one), len(other)) and not self.over:
            return _("the same text so far")
        if one == other:
            return _("the same text, to the last character")
        if not alike:
            return _("different from the first character on")
        return _("the same text for {count:,} characters, then not").format(count=alike)


def first_of(conversation: Conversation, message: Turn, model: str, now: Way) -> Candidate:
    """Return the first of two replies to `message` by the model called `model`.

    It is the reply on the line where another can be made in the same way: whole, by this model, made in one
    way, with a seed that is known. Else it is to be made as chosen `now`, with a seed for both.
    """
    line = conversation.turns
    place = line.index(message) + 1
    reply = line[place] if place < len(line) else None
    if reply is not None and (way := _repeatable(reply, model)) is not None:
        return Candidate("A", way, reply)
    seed = random.randrange(_MOST_SEED) if now.sampling.seed is None else now.sampling.seed
    return Candidate("A", Way(replace(now.sampling, seed=seed), now.decoding))


def _repeatable(reply: Turn, model: str) -> Way | None:
    """How a reply was made; None where another could not be made in the same way."""
    changed = "changes" in reply.made_by or "decoding_changes" in reply.made_by
    if reply.status is not TurnStatus.DONE or changed or reply.model != model or not reply.text:
        return None
    if reply.sampling is None or not reply.stats.completion_tokens:
        return None
    return Way(replace(reply.sampling, seed=reply.stats.seed), reply.decoding or ORDINARY)
