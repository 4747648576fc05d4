"""Intervals of means: how often they hold what they promise, and where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from engine.measuring.intervals import _quantile, mean_interval


def held(correlation: float, n: int, trials: int = 2000) -> float:
    """Share of texts whose interval holds the true mean 0; neighbouring tokens are correlated."""
    noise = np.random.default_rng(0).normal(size=(trials, n + 50))
    for i in range(1, noise.shape[1]):
        noise[:, i] += correlation * noise[:, i - 1]
    intervals = [mean_interval(values) for values in noise[:, 50:]]
    return float(np.mean([interval.low <= 0 <= interval.high for interval in intervals]))


@pytest.mark.parametrize("n", [16, 256, 1000])
def test_independent_tokens_give_an_interval_of_95_percent(n: int) -> None:
    assert held(0.0, n) == pytest.approx(0.95, abs=0.015)


def test_tokens_that_are_alike_give_nearly_one_too() -> None:
    # Counting each as a witness of its own holds in 73 % of such texts.
    assert held(0.5, 1000) > 0.93


def test_what_is_always_the_same_has_no_width() -> None:
    assert mean_interval(np.full(100, 3.0)) == (3, 3, 3)


def test_a_single_value_has_no_bounds() -> None:
    assert mean_interval(np.array([2.0])) == (2, -np.inf, np.inf)


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.706), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)],
)
def test_quantiles_are_those_of_tables(freedom: int, expected: float) -> None:
    assert _quantile(freedom) == pytest.approx(expected, abs=0.01)
