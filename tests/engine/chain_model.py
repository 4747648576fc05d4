"""A model of a few ids whose next one depends on the last two, for the loop: its logits are a table.

What it computes goes through its cache, so that a reply is wrong where the loop left a wrong id there. Blocks
left out make another, similar table of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from engine.cancel import CancelToken
from engine.config import SamplingParams
from engine.drafting.base import Drafter, Draw
from engine.drafting.draft_model import DraftModel
from engine.drafting.ngram import NgramDrafter
from engine.drafting.own_blocks import OwnBlocks
from engine.errors import CancelledError
from engine.logits import HostLogits
from engine.session import Session
from engine.skipping.skip_choice import NOTHING, SkipSet

N_IDS = 6


class ChainCache:
    """The ids of all passes at their positions."""

    def __init__(self, max_context: int) -> None:
        self.max_context = max_context
        self.n_bytes = 0
        self.ids = [0] * max_context


class Row(NamedTuple):
    """A hidden state: the two ids that the next one depends on."""

    before: int
    last: int
    skip: SkipSet


class ChainModel:
    """As `Transformer`, as far as the loop and drafters use one."""

    chunk = 64

    def __init__(self, seed: int = 0, n_ids: int = N_IDS) -> None:
        self.n_ids = n_ids
        self._rng = np.random.default_rng(seed)
        self._whole = self._rng.normal(0, 1.2, (n_ids, n_ids, n_ids)).astype(np.float32)
        self._without: dict[SkipSet, np.ndarray] = {NOTHING: self._whole}
        self._logits: dict[Row, HostLogits] = {}
        self.passes: list[int] = []
        """Ids of each pass so far."""
        self.backend = self

    def new_session(self, max_context: int = 80) -> Session:
        return Session(ChainCache(max_context))

    def table(self, skip: SkipSet) -> np.ndarray:
        """Logits [id before, last id, V]."""
        if skip not in self._without:
            noise = np.random.default_rng(sorted(skip)).normal(0, 0.6, self._whole.shape)
            self._without[skip] = (self._whole + noise).astype(np.float32)
        return self._without[skip]

    def hidden(
        self, token_ids: Sequence[int], start_pos: int, kv: Any, cancel: CancelToken, skip: SkipSet = NOTHING
    ) -> list[Row]:
        assert token_ids
        end = start_pos + len(token_ids)
        assert end <= kv.max_context
        if cancel.cancelled:
            kv.ids[start_pos:] = [0] * (kv.max_context - start_pos)  # undefined from there on
            raise CancelledError("stopped")
        self.passes.append(len(token_ids))
        kv.ids[start_pos:] = [*token_ids, *[0] * (kv.max_context - end)]  # what followed is lost
        return [
            Row(kv.ids[position - 1] if position else 0, kv.ids[position], skip)
            for position in range(start_pos, end)
        ]

    def next_logits(
        self, hidden: Sequence[Row], cancel: CancelToken, ahead: SkipSet | None = None
    ) -> HostLogits:
        return self.each_logits(hidden[-1:], cancel)[0]

    def each_logits(self, hidden: Sequence[Row], cancel: CancelToken) -> list[HostLogits]:
        return [self._logits_of(row) for row in hidden]

    def _logits_of(self, row: Row) -> HostLogits:
        if row not in self._logits:  # checked once, as a table does not change
            self._logits[row] = HostLogits(self.table(row.skip)[row.before, row.last])
        return self._logits[row]


class ScriptedDrafter:
    """Proposes ids at random, or what was said to follow with a probability for each id."""

    computes = False

    def __init__(
        self,
        seed: int,
        *,
        follows: Sequence[int] = (),
        acceptance: float = 0.5,
        n_ids: int = N_IDS,
        varies: bool = True,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._follows, self._acceptance, self._n_ids = follows, acceptance, n_ids
        self._varies = varies
        """Whether it proposes fewer than it is asked for at times."""

    def draft(self, ids: Sequence[int], n_most: int, draw: Draw, cancel: CancelToken) -> list[int]:
        n = int(self._rng.integers(0, n_most + 1)) if self._varies else n_most
        drafts = []
        for token_id in [*self._follows[len(ids) : len(ids) + n], *self._rng.integers(0, self._n_ids, n)][:n]:
            wrong = len(ids) < len(self._follows) and self._rng.random() >= self._acceptance
            drafts.append(int(token_id + 1) % self._n_ids if wrong else int(token_id))
        return drafts


DRAFTERS = ("n-gram", "draft model", "self", "resident", "exit", "script")


def drafter_of(kind: str, model: Any, session: Session, seed: int) -> Drafter:
    """A real drafter over a chain model and its session; 'script' proposes at random."""
    if kind == "n-gram":
        return NgramDrafter()
    if kind == "draft model":
        other = ChainModel(seed=0)
        other._whole += np.random.default_rng(9).normal(0, 0.6, other._whole.shape).astype(np.float32)
        info: Any = None
        return DraftModel(info, other, other.new_session(), N_IDS, 0)  # type: ignore[arg-type]
    if kind == "script":
        return ScriptedDrafter(seed)
    left_out = {"self": {1, 4}, "resident": {2, 3, 4, 5}, "exit": {6, 7, 8, 9}}[kind]
    return OwnBlocks(model, session, frozenset(left_out))


def probabilities(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Of each id [V] under the chain of the sampler, written down anew: top-k, top-p, min-p, temperature."""

    def softmax(values: np.ndarray) -> np.ndarray:
        weights = np.exp(values.astype(np.float64) - values.max())
        return np.asarray(weights / weights.sum())

    order = np.argsort(-logits, kind="stable")
    kept = order[: params.top_k or len(order)]
    share = softmax(logits[kept])
    kept = kept[: int(np.searchsorted(np.cumsum(share), params.top_p)) + 1] if params.top_p < 1 else kept
    share = softmax(logits[kept])
    kept = kept[share >= params.min_p * share.max()]
    result = np.zeros(len(logits))
    result[kept] = softmax(logits[kept] / params.temperature)
    return result
