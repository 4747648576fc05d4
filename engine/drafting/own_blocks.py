"""Drafts by the model itself, some of its layer blocks left out.

Knows the model and its session; which blocks are left out, and why those, is chosen elsewhere: a calibrated
set in the middle (https://arxiv.org/abs/2309.08168), all blocks that would have to be fetched, or all layers
from one on, which is an early exit (https://arxiv.org/abs/2404.16710).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.cancel import CancelToken
from engine.drafting.base import Draw
from engine.errors import DecodingError
from engine.model import Transformer
from engine.session import Session
from engine.skipping.skip_choice import SkipSet


def blocks_from(layer: int, n_layers: int) -> SkipSet:
    """What an early exit before `layer` leaves out, of `n_layers`. Raises DecodingError where nothing is."""
    if not 0 < layer < n_layers:
        raise DecodingError(
            f"an exit after layer {layer} drafts nothing: the model has {n_layers} layers, so give 1 to "
            f"{n_layers - 1} (--early-exit)"
        )
    return frozenset(range(2 * layer, 2 * n_layers))


@dataclass(frozen=True, slots=True)
class OwnBlocks:
    """Proposes what the blocks that are left give, id by id.

    Keys and values of what it proposes go to the session's own cache, after those of the session's ids: the
    pass that verifies begins at the same position and overwrites them. Those of the session's ids serve,
    since they were computed with all blocks, or with a set left out that `skip` contains.
    """

    model: Transformer
    session: Session
    skip: SkipSet
    """Everything that a draft leaves out, what the verifying passes leave out among it."""

    @property
    def computes(self) -> bool:
        """A draft of k ids takes k passes over what is left of the model."""
        return True

    def draft(self, ids: Sequence[int], n_most: int, draw: Draw, cancel: CancelToken) -> list[int]:
        """Propose `n_most` ids: `ids` are the session's and at least one more. Raises CancelledError."""
        start = len(self.session.ids)
        history = list(ids)
        for ahead in range(n_most):
            fed = history[start:]
            hidden = self.model.hidden(fed, start, self.session.kv, cancel, self.skip)
            # A GPU begins the next pass as soon as the id is known there, unless this was the last one.
            follows = self.skip if ahead + 1 < n_most else None
            logits = self.model.next_logits(hidden, cancel, follows)
            start += len(fed)
            history.append(draw.peek(logits, history, ahead))
        return history[len(ids) :]
