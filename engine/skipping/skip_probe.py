"""Passes over a text that tell what leaving blocks out does to one model.

Knows how an effect and the cosines of layers are measured; does not know which sets are worth it
(`grown_skips` does). Uses the cache it is given from position 0 on, and allocates none.
Letters: T ids of a window, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from engine.backends.base import Float32Array
from engine.cancel import CancelToken
from engine.kv_cache import KVCache
from engine.measuring.evaluate import Float64Array, Window
from engine.measuring.quality import keep_distributions, measure_change
from engine.model import Transformer
from engine.skipping.calibrated import SkipEffect
from engine.skipping.skip_choice import SkipSet

_TINY = 1e-30
"""No division by the length of a state that is all zeros."""


class SkipProbe:
    """One model and one text. Everything raises CancelledError, and what else a pass raises."""

    def __init__(
        self,
        model: Transformer,
        windows: Sequence[Window],
        kv: KVCache,
        cancel: CancelToken,
        *,
        chunk: int,
        on_pass: Callable[[float], None],
    ) -> None:
        """Run the whole model. `on_pass` is told after each pass how much of one it was, 0 to 1."""
        self._model, self._windows, self._kv = model, windows, kv
        self._cancel, self._chunk, self._on_pass = cancel, chunk, on_pass
        self._whole = keep_distributions(model, windows, kv, cancel, chunk=chunk)
        self.perplexity = self._whole.perplexity
        on_pass(1.0)

    def effect(self, skip: SkipSet) -> SkipEffect:
        """Run with blocks left out, and compare."""
        change = measure_change(
            self._model, self._windows, self._whole, self._kv, self._cancel, chunk=self._chunk, skip=skip
        )
        self._on_pass(1.0)
        return SkipEffect(
            skipped=skip,
            kl=change.kl_mean,
            perplexity_change=change.perplexity_change,
            perplexity_low=change.perplexity_low,
            perplexity_high=change.perplexity_high,
            top1=change.top1,
        )

    def cosines(self) -> tuple[float, ...]:
        """For each layer, mean cosine between its input and its output, attention and feed-forward together.

        A backend runs all layers at once: what a layer gets is what a pass gives that leaves it and all
        after it out.
        """
        n_layers = self._model.config.n_layers
        before, cosines = self._states(0), []
        for layer in range(n_layers):
            after = self._states(layer + 1)
            products = np.einsum("td,td->t", before, after)
            lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
            cosines.append(float(np.mean(products / np.maximum(lengths, _TINY))))
            before = after
        return tuple(cosines)

    def _states(self, n_layers: int) -> Float64Array:
        """Hidden states of the scored positions after the first `n_layers` layers."""
        n_all = self._model.config.n_layers
        skip = frozenset(range(2 * n_layers, 2 * n_all))
        states = np.concatenate(
            [self._window_states(window, skip)[window.first :] for window in self._windows]
        )
        self._on_pass(n_layers / n_all)
        return states.astype(np.float64)

    def _window_states(self, window: Window, skip: SkipSet) -> Float32Array:
        """Hidden states [T, D] of a window."""
        parts = []
        for start in range(0, len(window.ids), self._chunk):
            part = window.ids[start : start + self._chunk]
            hidden = self._model.hidden(part, start, self._kv, self._cancel, skip)
            parts.append(self._model.backend.states(hidden).copy())
        return np.concatenate(parts)
