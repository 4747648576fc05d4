"""The transformer: embed, layers, head, over whatever backend computes them.

Knows the order of the steps and that logits are made only for the rows asked for; does not know arithmetic
(the backend does), sampling or text.

Letters: T tokens of one call, D hidden size, V vocabulary, R rows asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.backends.base import AnyBackend, Float32Array, Hidden
from engine.cancel import CancelToken
from engine.kv_cache import KVCache
from engine.logits import Logits, checked
from engine.model_config import ModelConfig
from engine.skipping.skip_choice import NOTHING, SkipSet


class Transformer:
    """One loaded model."""

    def __init__(self, config: ModelConfig, backend: AnyBackend) -> None:
        """Run `config`'s model on `backend`."""
        self.config = config
        self.backend = backend

    def hidden(
        self,
        token_ids: Sequence[int],
        start_pos: int,
        kv: KVCache,
        cancel: CancelToken,
        skip: SkipSet = NOTHING,
    ) -> Hidden:
        """Run all layers but the blocks in `skip` over the ids -> hidden states [T, D]; fills kv there.

        The ids are at start_pos onwards. Raises CancelledError when it is told to stop; kv from start_pos on
        is then undefined.
        """
        x: Hidden = self.backend.embed(np.asarray(token_ids, np.int32))
        self.backend.layers(0, self.config.n_layers, x, start_pos, kv, cancel, skip)
        return x

    def logits(self, hidden: Hidden, cancel: CancelToken) -> Float32Array:
        """Logits of the rows given, [R, D] -> [R, V]; KernelError when they are not numbers."""
        return checked(self.backend.head(hidden, cancel))

    def next_logits(self, hidden: Hidden, cancel: CancelToken, ahead: SkipSet | None = None) -> Logits:
        """Logits [V] after the last row, where they were computed; `ahead` as in `Backend.next_logits`.

        Raises KernelError when they are not numbers, here or when they are drawn from.
        """
        return self.backend.next_logits(hidden, cancel, ahead)

    def each_logits(self, hidden: Hidden, cancel: CancelToken) -> Sequence[Logits]:
        """Logits [V] after every row, to be drawn from in that order. Raises as `next_logits`."""
        return self.backend.each_logits(hidden, cancel)
