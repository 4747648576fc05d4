"""The measures on cases that can be computed another way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.errors import ContextError, KernelError
from engine.measuring.evaluate import (
    Perplexity,
    compare_with_reference,
    cut_windows,
    kl64,
    measure_surprises,
    perplexity_of,
)
from engine.measuring.reference_file import read_reference
from engine.model import Transformer
from engine.skipping.skip_choice import NOTHING, SkipSet
from tests.engine.distributions import IDS, logprobs, write_reference


def perplexity(
    model: Transformer,
    ids: list[int],
    window: int,
    *,
    stride: int | None = None,
    chunk: int = 8,
    bos_id: int | None = None,
    skip: SkipSet = NOTHING,
) -> Perplexity:
    windows = cut_windows(ids, window=window, stride=stride or window // 2, bos_id=bos_id)
    kv = model.backend.new_kv(window)
    return perplexity_of(measure_surprises(model, windows, kv, CancelToken(), chunk=chunk, skip=skip))


def test_a_text_of_one_window_is_scored_from_its_middle(tiny_model: Transformer) -> None:
    result = perplexity(tiny_model, IDS[:20], window=20)
    table = logprobs(tiny_model, IDS[:20])
    scored = [table[i - 1, IDS[i]] for i in range(10, 20)]
    assert result.tokens == 10
    assert result.perplexity == pytest.approx(np.exp(-np.mean(scored)), rel=1e-4)


@pytest.mark.parametrize("n_ids", [11, 20, 21, 29, 30, 31, 70])
@pytest.mark.parametrize("bos_id", [None, 1])
def test_every_token_after_the_first_half_window_is_scored_once(
    tiny_model: Transformer, n_ids: int, bos_id: int | None
) -> None:
    # The BOS takes one place of the first half window.
    first_scored = 10 if bos_id is None else 9
    assert perplexity(tiny_model, IDS[:n_ids], window=20, bos_id=bos_id).tokens == n_ids - first_scored


@pytest.mark.parametrize("stride", [1, 3, 10, 19])
@pytest.mark.parametrize("bos_id", [None, 1])
def test_with_any_stride_each_token_is_scored_once_after_enough_others(
    stride: int, bos_id: int | None
) -> None:
    ids = list(range(100, 147))
    windows = cut_windows(ids, window=20, stride=stride, bos_id=bos_id)
    scored = [token_id for window in windows for token_id in window.ids[window.first + 1 :]]
    assert scored == ids[20 - stride - (bos_id is not None) :]
    assert all(window.first + 1 == 20 - stride for window in windows)
    assert all(len(window.ids) <= 20 for window in windows)


def test_blocks_that_are_left_out_are_left_out_of_every_pass(tiny_model: Transformer) -> None:
    skip = frozenset({1, 2})
    result = perplexity(tiny_model, IDS[:20], window=20, skip=skip)
    table = logprobs(tiny_model, IDS[:20], skip)
    assert result.perplexity == pytest.approx(np.exp(-np.mean([table[i - 1, IDS[i]] for i in range(10, 20)])))
    assert result.perplexity != pytest.approx(perplexity(tiny_model, IDS[:20], window=20).perplexity)


def test_the_interval_is_around_the_perplexity(tiny_model: Transformer) -> None:
    result = perplexity(tiny_model, IDS, window=20)
    assert 0 < result.perplexity_low < result.perplexity < result.perplexity_high < np.inf


@pytest.mark.parametrize("chunk", [1, 3, 512])
def test_chunks_do_not_change_the_perplexity(tiny_model: Transformer, chunk: int) -> None:
    expected = perplexity(tiny_model, IDS, window=20).perplexity
    assert perplexity(tiny_model, IDS, window=20, chunk=chunk).perplexity == pytest.approx(expected, rel=1e-4)


def test_a_text_without_a_scored_token_is_refused_with_its_length(tiny_model: Transformer) -> None:
    with pytest.raises(ContextError, match="has 10 tokens"):
        perplexity(tiny_model, IDS[:10], window=20)


def test_a_model_is_at_no_distance_from_itself(tiny_model: Transformer, tmp_path: Path) -> None:
    reference = read_reference(write_reference(tmp_path / "r.npz", tiny_model))
    result = compare_with_reference(
        tiny_model, reference, tiny_model.backend.new_kv(70), CancelToken(), chunk=16
    )
    assert result.kl_max < 1e-6
    assert result.top1 == 1.0
    assert result.tokens == 70
    table = logprobs(tiny_model, IDS)
    nll = -np.mean([table[i - 1, IDS[i]] for i in range(1, 70)])
    assert result.perplexity == pytest.approx(np.exp(nll), rel=1e-4)


def test_kl64_is_that_of_the_merged_distributions() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(200)), rng.dirichlet(np.ones(200))
    best = np.argsort(-p)[:64].astype(np.int32)
    merged_p, merged_q = (np.append(x[best], 1 - x[best].sum()) for x in (p, q))
    expected = np.sum(merged_p * np.log(merged_p / merged_q))
    ours = kl64(np.log(p[best])[None], np.log(q[best])[None])
    assert ours[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_that_computes_no_numbers_is_an_error_and_no_score(
    tiny_model: Transformer, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    head = tiny_model.backend.head

    def broken(x: np.ndarray, cancel: CancelToken) -> np.ndarray:
        logits = head(x, cancel)
        logits[-1, 7] = bad
        return logits

    monkeypatch.setattr(tiny_model.backend, "head", broken)
    with pytest.raises(KernelError, match="not numbers"):
        perplexity(tiny_model, IDS, window=20)
