"""From logits to the next id: a chain of small parts.

penalties -> top-k -> typical -> top-p -> min-p -> temperature -> draw. Every filter sees the probabilities
at temperature 1. Whoever holds the logits may draw where they are; the chain here is for those on the host.
Knows distributions; does not know text, models or devices. The generator is NumPy's PCG64.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.config import SamplingParams
from engine.logits import DrawRequest, Float32Array, Logits, Penalties


class Candidates(NamedTuple):
    """The ids still in play with their logits, in the order in which a draw walks through them.

    That is by id at first. What drops some by their logits leaves the others by descending logit, the lower
    id first of equals; typical sampling has an order of its own.
    """

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
        self._ahead: deque[float] = deque()
        """Numbers that were looked at before their turn."""

    def __call__(self, logits: Logits, history: Sequence[int]) -> int:
        """Draw the id that follows `history` (all ids so far, for the penalties).

        One number of the generator is used for a draw, none when greedy, wherever the id is drawn. Raises
        KernelError when the logits are not numbers.
        """
        uniform = 0.0
        if self.params.temperature > 0:
            uniform = self._ahead.popleft() if self._ahead else self._random.random()
        return self._drawn(logits, history, uniform)

    def peek(self, logits: Logits, history: Sequence[int], ahead: int) -> int:
        """The id that the `ahead`-th draw from now, 0 being the next, would draw from these logits.

        No number is used up: draws are the same as without it. Raises KernelError as a draw does.
        """
        uniform = 0.0
        if self.params.temperature > 0:
            while len(self._ahead) <= ahead:
                self._ahead.append(self._random.random())
            uniform = self._ahead[ahead]
        return self._drawn(logits, history, uniform)

    def _drawn(self, logits: Logits, history: Sequence[int], uniform: float) -> int:
        request = DrawRequest(self.params, penalties(history, self.params), uniform)
        drawn = logits.draw(request)
        return choose(logits.all(), request) if drawn is None else drawn


def choose(logits: Float32Array, request: DrawRequest) -> int:
    """The id that `request` draws from logits [V] on the host."""
    p = request.params
    logits = penalize(logits, request.penalties, p)
    if p.temperature == 0:
        return int(logits.argmax())
    candidates = Candidates(np.arange(len(logits)), logits)
    candidates = min_p(top_p(typical(top_k(candidates, p.top_k), p.typical_p), p.top_p), p.min_p)
    return draw(candidates, p.temperature, request.uniform)


_NO_PENALTIES = Penalties(np.empty(0, np.int32), np.empty(0, np.int32))


def penalties(history: Sequence[int], params: SamplingParams) -> Penalties:
    """The distinct ids among the last `penalty_window`; none when no penalty is on."""
    off = params.repeat_penalty == 1 and not params.presence_penalty and not params.frequency_penalty
    if off or not history or not params.penalty_window:
        return _NO_PENALTIES
    window = history[-params.penalty_window :]
    ids, counts = np.unique(np.asarray(window, np.int32), return_counts=True)
    return Penalties(ids, counts.astype(np.int32))


def penalize(logits: Float32Array, penalties: Penalties, params: SamplingParams) -> Float32Array:
    """Lower the logits [V] of the penalised ids; each id once. Returns a copy, if any is lowered."""
    if not len(penalties.ids):
        return logits
    chosen = logits[penalties.ids]
    chosen = np.where(chosen > 0, chosen / params.repeat_penalty, chosen * params.repeat_penalty)
    chosen -= np.float32(params.presence_penalty)
    chosen -= np.float32(params.frequency_penalty) * penalties.counts.astype(np.float32)
    logits = logits.copy()
    logits[penalties.ids] = chosen
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


def draw(candidates: Candidates, temperature: float, uniform: float) -> int:
    """The id in whose share of the softmax of logits / temperature `uniform` lies."""
    cumulative = np.cumsum(_softmax(candidates.logits, temperature))
    index = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
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
        total = np.cumsum(probabilities[best])
        if total[-1] >= mass or reach == n:
            return best[: int(np.searchsorted(total, mass)) + 1]
        reach = min(n, reach * 8)


_GROUPS = 64


def _largest(values: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.intp]:
    """Indices of the k largest of more or as many values, in descending order, the lower first of equals.

    A partition of a whole vocabulary takes milliseconds. The k-th largest of the maxima of groups is a floor
    that at least k values reach, and hardly more do.
    """
    width = len(values) // _GROUPS
    if k < width:
        maxima = values[: width * _GROUPS].reshape(_GROUPS, width).max(axis=0)
        near = np.flatnonzero(values >= np.partition(maxima, -k)[-k])
    else:
        near = np.arange(len(values))
    if len(near) > 2 * k:  # then a partition is cheaper than a sort
        near = near[values[near] >= np.partition(values[near], -k)[-k]]
    return near[np.argsort(-values[near], kind="stable")[:k]]
