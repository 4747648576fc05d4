"""How far a model that is computed otherwise is from the whole one: skipped blocks, other KV, other weights.

The whole model's distributions are kept as far as comparing needs them, so that any number of settings can be
compared with one pass over the text for each. Knows two sets of distributions over the same windows; does not
know what the settings are. Called by `scoring` and `skip_probe`.

Letters: N scored tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.cancel import CancelToken
from engine.kv_cache import KVCache
from engine.measuring.evaluate import Float64Array, Perplexity, Window, kl64, perplexity_of, scored_rows
from engine.measuring.intervals import mean_interval
from engine.model import Transformer
from engine.skipping.skip_choice import NOTHING, SkipSet

_BEST = 64


@dataclass(frozen=True, slots=True)
class Distributions:
    """What a model expected at each scored token of some windows."""

    top_ids: npt.NDArray[np.int32]
    """[N, 64], the most probable tokens, best first; fewer where the vocabulary has fewer."""
    top_logprobs: Float64Array
    """[N, 64], their natural log probabilities."""
    surprises: Float64Array
    """[N], negative log probabilities of the tokens that came."""

    @property
    def perplexity(self) -> Perplexity:
        """Of the tokens that came."""
        return perplexity_of(self.surprises)


@dataclass(frozen=True, slots=True)
class Change:
    """What a setting does to the distributions of the next token."""

    perplexity: float
    """With the setting."""
    perplexity_change: float
    """Perplexity / that of the whole model - 1."""
    perplexity_low: float
    """Lower end of the change's 95 % confidence interval, both models on the same tokens."""
    perplexity_high: float
    kl_mean: float
    """KL64 (see `evaluate.kl64`) from the whole model, nats."""
    kl_p99: float
    kl_max: float
    top1: float
    """Share of positions with the same most probable token."""
    tokens: int
    """How many tokens were scored."""


def keep_distributions(
    model: Transformer,
    windows: Iterable[Window],
    kv: KVCache,
    cancel: CancelToken,
    *,
    chunk: int,
    skip: SkipSet = NOTHING,
) -> Distributions:
    """Feed the windows, `chunk` ids at a time, kv used from position 0. Raises CancelledError."""
    top_ids, top_logprobs, surprises = [], [], []
    for window in windows:
        for rows in scored_rows(model, window, kv, cancel, chunk=chunk, skip=skip):
            best = _best(rows.logits)
            top_ids.append(best)
            top_logprobs.append(rows.logprobs(best))
            surprises.append(rows.surprises(window))
    return Distributions(np.concatenate(top_ids), np.concatenate(top_logprobs), np.concatenate(surprises))


def measure_change(
    model: Transformer,
    windows: Iterable[Window],
    whole: Distributions,
    kv: KVCache,
    cancel: CancelToken,
    *,
    chunk: int,
    skip: SkipSet = NOTHING,
) -> Change:
    """Feed the windows that `whole` was kept for, and compare. Raises CancelledError."""
    divergences, surprises, n_same, n_done = [], [], 0, 0
    for window in windows:
        for rows in scored_rows(model, window, kv, cancel, chunk=chunk, skip=skip):
            place = slice(n_done, n_done + len(rows.logits))
            n_done = place.stop
            divergences.append(kl64(whole.top_logprobs[place], rows.logprobs(whole.top_ids[place])))
            n_same += int(np.sum(rows.logits.argmax(axis=1) == whole.top_ids[place, 0]))
            surprises.append(rows.surprises(window))
    kl, ours = np.concatenate(divergences), np.concatenate(surprises)
    change, low, high = np.expm1(mean_interval(ours - whole.surprises))
    return Change(
        perplexity=perplexity_of(ours).perplexity,
        perplexity_change=float(change),
        perplexity_low=float(low),
        perplexity_high=float(high),
        kl_mean=max(0.0, float(kl.mean())),  # rounding takes what is almost 0 below it
        kl_p99=max(0.0, float(np.percentile(kl, 99))),
        kl_max=max(0.0, float(kl.max())),
        top1=n_same / len(kl),
        tokens=len(kl),
    )


def _best(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """Ids of the largest logits, [R, V] -> [R, 64], best first, the lower id of equals as argmax has it."""
    n_best = min(_BEST, logits.shape[1])
    near = np.sort(np.argpartition(logits, -n_best, axis=1)[:, -n_best:], axis=1)
    order = np.argsort(-np.take_along_axis(logits, near, axis=1), axis=1, kind="stable")
    return np.take_along_axis(near, order, axis=1).astype(np.int32)
