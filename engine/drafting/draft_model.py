"""Drafts by a smaller model with the same vocabulary.

Knows that model and its own session, which follows the ids that it is asked to go on from: what it has
computed of them is kept, what it proposed in vain is overwritten, and no position is left out. Does not know
how it was loaded (`loading_draft` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.backends.base import Hidden
from engine.cancel import CancelToken
from engine.config import LoadOptions
from engine.drafting.base import Draw
from engine.drafting.draft_options import beside_draft
from engine.drafting.following import n_alike
from engine.events import ModelInfo
from engine.model import Transformer
from engine.session import Session
from engine.skipping.skip_choice import NOTHING


@dataclass(slots=True)
class DraftModel:
    """A loaded model that drafts for another one."""

    info: ModelInfo
    model: Transformer
    session: Session
    """What it has computed; not more than the ids it was last asked with and what it proposed then."""
    n_shared: int
    """Ids below this mean the same to both models; others are neither proposed nor understood."""
    computing_bytes: int
    """Memory it takes beside weights and cache."""
    _notices: tuple[str, ...] = ()
    """For as long as it is loaded."""

    @property
    def computes(self) -> bool:
        """A draft of k ids takes k passes."""
        return True

    def draft(self, ids: Sequence[int], n_most: int, draw: Draw, cancel: CancelToken) -> list[int]:
        """Propose up to `n_most` ids, as many as its context has room for. Raises CancelledError."""
        session = self.session
        # Computing the last id again gives the logits to draw from.
        session.cut(min(n_alike(session.ids, ids), len(ids) - 1))
        fed, history = list(ids[len(session.ids) :]), list(ids)
        if max(fed) >= self.n_shared:
            return []
        n_most = min(n_most, session.kv.max_context - len(ids) + 1)
        for ahead in range(n_most):
            last = ahead + 1 == n_most
            hidden = self._run(fed, cancel)
            logits = self.model.next_logits(hidden, cancel, None if last else NOTHING)
            token_id = draw.peek(logits, history, ahead)
            if token_id >= self.n_shared:
                break
            history.append(token_id)
            fed = [token_id]
        return history[len(ids) :]

    def _run(self, token_ids: Sequence[int], cancel: CancelToken) -> Hidden:
        """Run ids that follow the session's, and note them there -> hidden states of the last ones."""
        chunk = self.model.backend.chunk
        for start in range(0, len(token_ids), chunk):
            part = token_ids[start : start + chunk]
            hidden = self.model.hidden(part, len(self.session.ids), self.session.kv, cancel)
            self.session.extend(part)
        return hidden

    # -- what it takes

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know of it now."""
        tiers = self.model.backend.tiers
        return (*self._notices, *(tiers.notices if tiers is not None else ()))

    @property
    def ram_bytes(self) -> int:
        """Memory that it takes, cache included; nothing for weights that are mapped from the file."""
        tiers, cache = self.model.backend.tiers, self.session.kv.n_bytes
        if tiers is None:
            return self.computing_bytes + cache
        placed = tiers.snapshot()
        return placed.ram_bytes + placed.ring_bytes + self.computing_bytes + (0 if placed.gpu else cache)

    @property
    def vram_bytes(self) -> int:
        """The same of a GPU's memory."""
        tiers = self.model.backend.tiers
        return 0 if tiers is None else tiers.snapshot().vram_used_bytes

    def leave(self, options: LoadOptions) -> LoadOptions:
        """What is granted to the other model, `options` being for both."""
        return beside_draft(options, self.ram_bytes, self.vram_bytes)

    def close(self) -> None:
        """Stop its threads; weights and cache go with the last reference."""
        self.model.backend.close()
