"""Distance from the whole model, on cases that can be computed another way."""

from __future__ import annotations

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.errors import CancelledError
from engine.measuring.evaluate import Window, cut_windows
from engine.measuring.quality import Change, Distributions, _best, keep_distributions, measure_change
from engine.model import Transformer
from engine.skipping.skip_choice import NOTHING, SkipSet
from tests.engine.distributions import IDS, logprobs

SKIP = frozenset({1, 2})


def kept(model: Transformer, windows: list[Window]) -> Distributions:
    return keep_distributions(model, windows, model.backend.new_kv(70), CancelToken(), chunk=16)


def change(model: Transformer, windows: list[Window], skip: SkipSet) -> Change:
    whole = kept(model, windows)
    return measure_change(model, windows, whole, model.backend.new_kv(70), CancelToken(), chunk=9, skip=skip)


def test_a_model_is_at_no_distance_from_itself(tiny_model: Transformer) -> None:
    result = change(tiny_model, [Window(IDS)], NOTHING)
    assert (result.top1, result.tokens) == (1.0, 69)
    assert result.kl_max < 1e-6
    assert (result.perplexity_low, result.perplexity_high) == pytest.approx((0, 0), abs=1e-6)


def test_the_measures_are_those_of_whole_distributions(tiny_model: Transformer) -> None:
    result = change(tiny_model, [Window(IDS)], SKIP)
    p, q = logprobs(tiny_model, IDS)[:-1], logprobs(tiny_model, IDS, SKIP)[:-1]
    rows = np.arange(len(p))
    surprise_p, surprise_q = -p[rows, IDS[1:]], -q[rows, IDS[1:]]
    assert result.perplexity == pytest.approx(np.exp(surprise_q.mean()), rel=1e-5)
    assert result.perplexity_change == pytest.approx(np.expm1((surprise_q - surprise_p).mean()), rel=1e-4)
    assert result.perplexity_low < result.perplexity_change < result.perplexity_high
    assert result.top1 == np.mean(p.argmax(axis=1) == q.argmax(axis=1))
    # 64 tokens and a bucket for the others tell less than the whole vocabulary, but not much.
    whole = np.sum(np.exp(p) * (p - q), axis=1).mean()
    assert 0.5 * whole < result.kl_mean <= whole
    assert result.kl_mean <= result.kl_p99 <= result.kl_max


def test_the_windows_of_a_text_are_compared_as_one(tiny_model: Transformer) -> None:
    windows = cut_windows(IDS, window=20, stride=10, bos_id=1)
    whole = kept(tiny_model, windows)
    assert whole.perplexity.tokens == len(whole.top_ids) == len(IDS) - 9
    assert whole.top_ids.shape[1] == 64
    result = change(tiny_model, windows, SKIP)
    assert result.tokens == len(IDS) - 9
    alone = [change(tiny_model, [window], SKIP) for window in windows]
    mean = np.average([each.kl_mean for each in alone], weights=[each.tokens for each in alone])
    assert result.kl_mean == pytest.approx(mean)


def test_the_best_are_in_order_the_lower_id_first_of_equals() -> None:
    logits = np.random.default_rng(0).integers(0, 40, (5, 300)).astype(np.float32)
    logits[0] = 0
    best = _best(logits)
    values = np.take_along_axis(logits, best.astype(np.int64), axis=1)
    assert np.all(np.diff(values, axis=1) <= 0)
    assert np.all((np.diff(best, axis=1) > 0) | (np.diff(values, axis=1) < 0))
    assert np.array_equal(best[1:, 0], logits[1:].argmax(axis=1))
    assert _best(logits[:, :7]).shape == (5, 7)


def test_a_comparison_can_be_stopped(tiny_model: Transformer) -> None:
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(CancelledError):
        keep_distributions(tiny_model, [Window(IDS)], tiny_model.backend.new_kv(70), cancel, chunk=16)
