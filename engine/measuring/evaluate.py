"""How good a model's distributions are: perplexity over texts, and distance to reference logits.

Knows windows and the measures; does not know where ids come from. Ids are fed in chunks of the caller's
choosing: chunks of one go through the kernels that decode. Called by `scoring` (`tiercel perplexity`),
`quality` and the tests.

Letters: R rows asked for, V vocabulary, K ids asked about, N scored tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.backends.base import Float32Array
from engine.cancel import CancelToken
from engine.errors import ContextError
from engine.kv_cache import KVCache
from engine.measuring.intervals import mean_interval
from engine.measuring.reference_file import Reference
from engine.model import Transformer
from engine.skipping.skip_choice import NOTHING, SkipSet

Float64Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.integer[Any]]

_ROWS_AT_ONCE = 32
"""Distributions in memory at a time: 34 MB with Gemma's vocabulary of 262,144, and as much to sum them."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean negative log probability of the scored tokens."""

    perplexity: float
    perplexity_low: float
    """Lower end of its 95 % confidence interval: of texts like these."""
    perplexity_high: float
    tokens: int
    """How many tokens were scored."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours against a reference, over all its positions."""

    perplexity: float
    """Of the reference's ids under our model; the first id is not scored."""
    tokens: int
    """How many positions were compared."""
    kl_mean: float
    """KL64 (see `kl64`) in nats."""
    kl_p99: float
    kl_max: float
    top1: float
    """Share of positions with the same most probable token."""


class Window(NamedTuple):
    """Ids that are fed from position 0 on, and the positions whose distributions are asked for."""

    ids: Sequence[int]
    first: int = 0
    """Of the positions, the first; what follows it is the first token that is scored."""

    @property
    def n_scored(self) -> int:
        """How many tokens it scores."""
        return len(self.ids) - 1 - self.first


class Rows(NamedTuple):
    """Distributions of the next token at positions that follow each other."""

    position: int
    """Of the first row."""
    logits: Float32Array
    """[R, V]"""
    normaliser: Float64Array
    """[R]: a token's log probability is its logit without this."""

    def logprobs(self, token_ids: Ids) -> Float64Array:
        """Natural log probabilities of the ids, [R, K] -> [R, K]."""
        chosen = np.take_along_axis(self.logits, token_ids.astype(np.int64), axis=1).astype(np.float64)
        logprobs: Float64Array = chosen - self.normaliser[:, None]
        return logprobs

    def surprises(self, window: Window) -> Float64Array:
        """Negative log probabilities of the ids that came, for each row; the window's last id has none."""
        targets = window.ids[self.position + 1 :][: len(self.logits)]
        chosen = self.logits[np.arange(len(targets)), targets].astype(np.float64)
        surprises: Float64Array = self.normaliser[: len(targets)] - chosen
        return surprises


def measure_surprises(
    model: Transformer,
    windows: Iterable[Window],
    kv: KVCache,
    cancel: CancelToken,
    *,
    chunk: int,
    skip: SkipSet = NOTHING,
) -> Float64Array:
    """Negative log probabilities of the tokens that windows score, blocks in `skip` left out -> [N] nats.

    kv is used from position 0. There is at least one window (see `cut_windows`). Raises CancelledError.
    """
    return np.concatenate(
        [
            rows.surprises(window)
            for window in windows
            for rows in scored_rows(model, window, kv, cancel, chunk=chunk, skip=skip)
        ]
    )


def perplexity_of(surprises: Float64Array) -> Perplexity:
    """What negative log probabilities of tokens, in the order of their text, come to."""
    mean, low, high = np.exp(mean_interval(surprises))
    return Perplexity(float(mean), float(low), float(high), len(surprises))


def compare_with_reference(
    model: Transformer,
    reference: Reference,
    kv: KVCache,
    cancel: CancelToken,
    *,
    chunk: int,
    skip: SkipSet = NOTHING,
) -> Comparison:
    """Feed the reference's ids and measure how far our distributions are from its own."""
    window = Window(reference.token_ids.tolist())
    divergences, surprises, same = [], [], 0
    for rows in scored_rows(model, window, kv, cancel, chunk=chunk, skip=skip, to_the_end=True):
        place = slice(rows.position, rows.position + len(rows.logits))
        log_p = reference.top_logprobs[place].astype(np.float64)
        divergences.append(kl64(log_p, rows.logprobs(reference.top_ids[place])))
        same += int(np.sum(rows.logits.argmax(axis=1) == reference.top1[place]))
        surprises.append(rows.surprises(window))
    kl = np.concatenate(divergences)
    return Comparison(
        perplexity=float(np.exp(np.concatenate(surprises).sum() / max(1, len(kl) - 1))),
        tokens=len(kl),
        kl_mean=float(kl.mean()),
        kl_p99=float(np.percentile(kl, 99)),
        kl_max=float(kl.max()),
        top1=same / len(kl),
    )


def kl64(log_p: Float64Array, log_q: Float64Array) -> Float64Array:
    """Kullback-Leibler divergence over the reference's 64 best tokens and one bucket for the rest.

    log_p, log_q [R, 64]: natural log probabilities of the reference's best tokens, its own and ours -> [R]
    nats: sum of p (ln p - ln q). It is never more than the divergence over the whole vocabulary.
    """
    p_rest, q_rest = (_rest(log_x) for log_x in (log_p, log_q))
    top: Float64Array = np.sum(np.exp(log_p) * (log_p - log_q), axis=1)
    rest: Float64Array = p_rest * (np.log(p_rest) - np.log(q_rest))
    return top + rest


def _rest(log_x: Float64Array) -> Float64Array:
    """Probability of everything else; float32 references round sums of almost 1 to 1 or a little above."""
    rest: Float64Array = np.maximum(1.0 - np.exp(log_x).sum(axis=1), 1e-10)
    return rest


def cut_windows(token_ids: Sequence[int], *, window: int, stride: int, bos_id: int | None) -> list[Window]:
    """Cut a text into windows of `window` ids, each `stride` ids after the one before; the last is shorter.

    A window begins with BOS (where `bos_id` is given). Each token is scored once, with at least
    window - stride ids before it; the first of the text, which cannot have them, are not. The fewer ids the
    stride has, the more context the tokens have, and the longer it takes. Raises ContextError where the text
    is too short for a token to be scored.
    """
    bos = [] if bos_id is None else [bos_id]
    room = window - len(bos)
    windows = []
    for start in range(0, len(token_ids), stride):
        ids = bos + list(token_ids[start : start + room])
        if len(ids) > window - stride:
            windows.append(Window(ids, window - stride - 1))
        if start + room >= len(token_ids):
            break
    if not windows:
        raise ContextError(
            f"the text has {len(token_ids)} tokens and a window of {window} scores those after the first "
            f"{window - stride}: give a longer text or a smaller -c"
        )
    return windows


def scored_rows(
    model: Transformer,
    window: Window,
    kv: KVCache,
    cancel: CancelToken,
    *,
    chunk: int,
    skip: SkipSet = NOTHING,
    to_the_end: bool = False,
) -> Iterator[Rows]:
    """Feed a window in chunks and yield its distributions, from `first` to the last id that has a successor.

    `to_the_end` yields that after the last id too.
    """
    ids = window.ids
    end = len(ids) if to_the_end else len(ids) - 1
    for start in range(0, end, chunk):
        part = ids[start : min(start + chunk, end)]
        hidden = model.hidden(part, start, kv, cancel, skip)
        for row in range(max(0, window.first - start), len(part), _ROWS_AT_ONCE):
            logits = model.logits(hidden[row : row + _ROWS_AT_ONCE], cancel)
            yield Rows(start + row, logits, _normaliser(logits))


def _normaliser(logits: Float32Array) -> Float64Array:
    """Logarithm of the sum of exponentials, [R, V] -> [R]; single exponentials may err in the 7th digit."""
    best = logits.max(axis=1, keepdims=True)
    powers = logits - best
    np.exp(powers, out=powers)
    normaliser: Float64Array = best[:, 0] + np.log(powers.sum(axis=1, dtype=np.float64))
    return normaliser
