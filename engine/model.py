"""The transformer: embed, layers, head, over whatever backend computes them.

Knows the order of the steps and that logits are made only for the rows asked for; does not know arithmetic
(the backend does), sampling or text.

Letters: T tokens of one call, D hidden size, V vocabulary, R rows asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.backends.base import Backend, Float32Array
from engine.cancel import CancelToken
from engine.errors import KernelError
from engine.kv_cache import KVCache
from engine.model_config import ModelConfig


class Transformer:
    """One loaded model."""

    def __init__(self, config: ModelConfig, backend: Backend) -> None:
        """Run `config`'s model on `backend`."""
        self.config = config
        self.backend = backend

    def hidden(
        self, token_ids: Sequence[int], start_pos: int, kv: KVCache, cancel: CancelToken
    ) -> Float32Array:
        """Run all layers over the ids at start_pos onwards -> hidden states [T, D]; fills kv there.

        Raises CancelledError when it is told to stop; kv from start_pos on is then undefined.
        """
        x = self.backend.embed(np.asarray(token_ids, np.int32))
        self.backend.layers(0, self.config.n_layers, x, start_pos, kv, cancel)
        return x

    def logits(self, hidden: Float32Array, cancel: CancelToken) -> Float32Array:
        """Logits of the rows given, [R, D] -> [R, V]; KernelError when they are not numbers."""
        logits = self.backend.head(hidden, cancel)
        if not np.all(np.isfinite(logits.max(axis=1))):
            raise KernelError(
                "the model computed values that are not numbers; the file may be damaged: fetch it again, or "
                "try --precision float"
            )
        return logits
