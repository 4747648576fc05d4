"""Drafts in a reply: how many to propose, which of them to accept, and what it cost.

From every row of a verified pass an id is drawn exactly as a plain step would draw it, and a draft is
accepted if it is that id: with the same seed a reply is the same with drafts and without. A draft d is so
accepted with its probability p(d), which is what rejection sampling accepts of a proposal that is certain of
itself, min(1, p(d) / 1), and what is drawn instead has p's shares of the rest (Leviathan and others,
https://arxiv.org/abs/2211.17192). Knows ids, drafters and times; does not know how a pass is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

from engine.cancel import CancelToken
from engine.config import MOST_DRAFTS, DraftKind
from engine.drafting.base import Drafter, Draw
from engine.drafting.following import n_alike
from engine.drafting.step_costs import StepCosts
from engine.logits import Logits
from engine.session import Session
from engine.skipping.skip_choice import NOTHING, SkipSet


class Way(NamedTuple):
    """How the next pass is to be computed."""

    skip: SkipSet = NOTHING
    """Left out of it."""
    drafter: Drafter | None = None
    """Who proposes ids; None for plain steps."""
    k: int | None = None
    """How many, always; None: as many as pay."""
    kind: DraftKind = DraftKind.OFF
    """Of the drafter: what is known of one is kept under it."""
    expected_loss: float = 0.0
    """Share of plain decoding's speed that its drafts promise, where that is why there is no drafter."""


class Drawn(NamedTuple):
    """An id of a reply."""

    token_id: int
    from_draft: bool = False
    """Whether it was proposed before it was drawn."""


class Speculation:
    """The drafts of one reply."""

    def __init__(self, costs: StepCosts, clock: Callable[[], float] = perf_counter) -> None:
        """Decide by `costs`, and add to them."""
        self.drafted = 0
        """Ids verified so far."""
        self.accepted = 0
        """Of those, drawn."""
        self.at_once = 0
        """How many ids are to be proposed now; 0 where none, or where that does not pay at present."""
        self.recomputed = 0
        """Ids computed again since other blocks are left out than before."""
        self._costs = costs
        self._clock = clock
        self._way = Way()
        self._watched: list[int] = []
        """What a drafter that costs nothing would have proposed."""
        self._began = self._drafted_at = 0.0
        self._ended: float | None = None
        self._gained = 1
        self._rounds = 0
        """With drafts. The first one is not counted: a model that drafts runs the prompt for it."""

    @property
    def off(self) -> bool:
        """Whether the next round will most likely have no drafts either: a plain step may be begun ahead."""
        return self._way.drafter is None or (self._way.k is None and not self.at_once)

    def draft(self, way: Way, ids: Sequence[int], most: int, draw: Draw, cancel: CancelToken) -> list[int]:
        """Begin a round: propose up to `most` ids to follow `ids`; none where a plain step is due.

        Raises CancelledError.
        """
        self._way, self._began = way, self._clock()
        if self._ended is not None:
            self._costs.waited((self._began - self._ended) / self._gained)
        drafts = self._propose(way, ids, min(most, MOST_DRAFTS), draw, cancel)
        self._drafted_at = self._clock()
        return drafts

    def _propose(self, way: Way, ids: Sequence[int], most: int, draw: Draw, cancel: CancelToken) -> list[int]:
        self._watched = []
        if most < 1:
            return []
        self.at_once = 0
        if way.drafter is None:
            return []
        costs, record, computes = self._costs, self._costs.record(way.kind), way.drafter.computes
        if way.k is None:
            self.at_once = costs.choose(way.skip, way.kind, most, tries=computes)
        elif costs.plain_step_s(way.skip):  # or nobody could tell what the drafts gain
            self.at_once = min(way.k, most)
        # What costs nothing is proposed in any case: so it is seen when it begins to pay.
        drafts = way.drafter.draft(ids, self.at_once if computes else most, draw, cancel)
        if drafts and self._rounds:
            record.took(len(drafts), self._clock() - self._began)
        if computes:
            return drafts
        self._watched = drafts
        if way.k is None and len(drafts) < self.at_once:
            return drafts[: costs.choose(way.skip, way.kind, len(drafts), tries=False)]
        return drafts[: self.at_once]

    def accept(
        self,
        rows: Sequence[Logits],
        drafts: Sequence[int],
        draw: Draw,
        session: Session,
        stop_ids: frozenset[int],
    ) -> list[Drawn]:
        """End a round: draw from rows [1 + drafts] in turn until an id is not the draft, or ends the reply.

        Notes the accepted drafts in the session, whose cache holds them all: the others count for nothing.
        Raises KernelError.
        """
        drawn: list[Drawn] = []
        first_at = 0.0
        for row, draft in zip(rows, [*drafts, None], strict=True):
            token_id = draw(row, session.ids)
            first_at = first_at or self._clock()
            drawn.append(Drawn(token_id, token_id == draft))
            if token_id != draft or token_id in stop_ids:
                break
            session.extend([token_id], self._way.skip)
        self._ended = self._clock()
        self.drafted += len(drafts)
        self.accepted += sum(token.from_draft for token in drawn)
        self._record(drafts, [token.token_id for token in drawn], first_at)
        return drawn

    def _record(self, drafts: Sequence[int], drawn: list[int], first_at: float) -> None:
        way, costs = self._way, self._costs
        ended, self._gained = self._ended or first_at, len(drawn)
        costs.passes(way.skip).add(1 + len(drafts), first_at - self._drafted_at)
        if len(drawn) > 1:
            costs.drew((ended - first_at) / (len(drawn) - 1))
        if way.drafter is None:
            return
        record, looked_at = costs.record(way.kind), self._watched or drafts
        right = n_alike(drawn, looked_at)
        record.saw(right, int(right < min(len(looked_at), len(drawn))))
        record.last = len(drafts) or record.last
        record.rounds = record.rounds + 1 if drafts else 0
        if way.k is None and (self._rounds or not drafts):
            costs.finished(way.skip, len(drawn), ended - self._began, drafted=bool(drafts))
        self._rounds += bool(drafts)
