"""From logits to the next id: a chain of small parts.

penalties -> top-k -> typical -> top-p -> min-p -> temperature -> draw. Every filter sees the probabilities
at temperature 1. Knows distributions; does not know text or models. The generator is NumPy's PCG64.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.config import SamplingParams

Float32Array = npt.NDArray[np.float32]


class Candidates(NamedTuple):
    """The ids still in play, in no order, with their logits."""

    ids: npt.NDArray[np.intp]
    logits: Float32Array

    def keep(self, which: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Candidates:
        """Those at the indices, or under the mask."""
        return Candidates(self.ids[which], self.logits[which])


class Sampler:
    """Draws ids as `SamplingParams` say; the same seed draws the same from the same logits."""

    def __init__(self, params: SamplingParams) -> None:
        """Seed the generator, with a fresh seed where the parameters name none."""
        self.params = params
        self.seed = secrets.randbits(32) if params.seed is None else params.seed
        # Seeds are whole numbers of any sign to people, natural ones to NumPy.
        self._random = np.random.Generator(np.random.PCG64(self.seed % (1 << 64)))

    def __call__(self, logits: Float32Array, history: Sequence[int]) -> int:
        """Draw the id that follows `history` (all ids so far, for the penalties) from logits [V]."""
        p = self.params
        logits = penalize(logits, history, p)
        if p.temperature == 0:
            return int(logits.argmax())
        candidates = Candidates(np.arange(len(logits)), logits)
        candidates = min_p(top_p(typical(top_k(candidates, p.top_k), p.typical_p), p.top_p), p.min_p)
        return draw(candidates, p.temperature, self._random)


def penalize(logits: Float32Array, history: Sequence[int], params: SamplingParams) -> Float32Array:
    """Lower the logits of ids among the last `penalty_window`; each distinct id once. Returns a copy."""
    window = history[-params.penalty_window :] if params.penalty_window else ()
    off = params.repeat_penalty == 1 and not params.presence_penalty and not params.frequency_penalty
    if off or not window:
        return logits
    ids, counts = np.unique(np.asarray(window), return_counts=True)
    chosen = logits[ids]
    chosen = np.where(chosen > 0, chosen / params.repeat_penalty, chosen * params.repeat_penalty)
    logits = logits.copy()
    logits[ids] = chosen - params.presence_penalty - params.frequency_penalty * counts
    return logits


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keep the k most probable; 0 keeps all."""
    if not 0 < k < len(candidates.ids):
        return candidates
    return candidates.keep(_largest(candidates.logits, k))


def typical(candidates: Candidates, mass: float) -> Candidates:
    """Keep the ids whose surprise is nearest to the expected one, until they hold `mass`; 1 keeps all.

    Locally typical sampling, https://arxiv.org/abs/2202.00666.
    """
    if mass >= 1:
        return candidates
    probabilities = _softmax(candidates.logits)
    with np.errstate(divide="ignore"):
        surprise = -np.log(probabilities)
    seen = probabilities > 0
    entropy = np.sum(probabilities[seen] * surprise[seen])
    return candidates.keep(_smallest_set(-np.abs(surprise - entropy), probabilities, mass))


def top_p(candidates: Candidates, mass: float) -> Candidates:
    """Keep the smallest set of most probable ids that hold `mass`; 1 keeps all."""
    if mass >= 1:
        return candidates
    probabilities = _softmax(candidates.logits)
    return candidates.keep(_smallest_set(probabilities, probabilities, mass))


def min_p(candidates: Candidates, share: float) -> Candidates:
    """Drop ids less probable than this share of the best one; 0 keeps all."""
    if share <= 0:
        return candidates
    return candidates.keep(candidates.logits >= candidates.logits.max() + np.log(share))


def draw(candidates: Candidates, temperature: float, random: np.random.Generator) -> int:
    """Draw one id from the softmax of logits / temperature."""
    cumulative = np.cumsum(_softmax(candidates.logits, temperature))
    index = np.searchsorted(cumulative, random.random() * cumulative[-1], side="right")
    return int(candidates.ids[min(int(index), len(cumulative) - 1)])


def _softmax(logits: Float32Array, temperature: float = 1.0) -> npt.NDArray[np.float64]:
    shifted = (logits - logits.max()).astype(np.float64)
    with np.errstate(
        over="ignore"
    ):  # a tiny temperature takes all but the best to -inf, which is probability 0
        weights: npt.NDArray[np.float64] = np.exp(shifted / temperature)
    weights /= weights.sum()
    return weights


def _smallest_set(
    worth: npt.NDArray[np.float64], probabilities: npt.NDArray[np.float64], mass: float
) -> npt.NDArray[np.intp]:
    """Indices by descending `worth` until their probabilities reach `mass`; at least one.

    Sorts only as many as it needs: a vocabulary has 262,144 ids, the set usually less than a hundred.
    """
    n = len(worth)
    reach = min(n, 256)
    while True:
        best = _largest(worth, reach)
        best = best[np.argsort(-worth[best], kind="stable")]
        total = np.cumsum(probabilities[best])
        if total[-1] >= mass or reach == n:
            return best[: int(np.searchsorted(total, mass)) + 1]
        reach = min(n, reach * 8)


_GROUPS = 64


def _largest(values: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.intp]:
    """Indices of the k largest of more or as many values, in no order.

    A partition of a whole vocabulary takes milliseconds. The k-th largest of the maxima of groups is a floor
    that at least k values reach, and hardly more do.
    """
    width = len(values) // _GROUPS
    if k < width:
        maxima = values[: width * _GROUPS].reshape(_GROUPS, width).max(axis=0)
        near = np.flatnonzero(values >= np.partition(maxima, -k)[-k])
    else:
        near = np.arange(len(values))
    return near[np.argpartition(-values[near], k - 1)[:k]]
