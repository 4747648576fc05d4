"""Confidence intervals of means over a text.

Pure arithmetic; knows nothing of models. Called by `evaluate` and `quality`.
"""

from __future__ import annotations

from math import inf, isqrt, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_Z = 1.959964
"""Of the normal distribution: 95 % lie within so many standard deviations."""
_FEW = (12.706, 4.303, 3.182, 2.776)
"""The same of Student's distribution with 1 to 4 degrees of freedom."""


class Interval(NamedTuple):
    """A mean, and between which bounds that of all such texts lies with a confidence of 95 %."""

    mean: float
    low: float
    high: float


def mean_interval(values: npt.NDArray[np.float64]) -> Interval:
    """Of one value or more for each token, in the order of the text.

    Tokens near each other are alike (a name that surprises once is expected then), so that counting each as a
    witness of its own would promise too much. Means of about sqrt(n) stretches of the text are as good as
    independent, and their spread gives the interval (batch means; Law, Simulation Modeling and Analysis,
    section 9.5.3). A single value has no bounds.
    """
    n_stretches = max(2, isqrt(len(values)))
    mean = float(values.mean())
    if len(values) < n_stretches:
        return Interval(mean, -inf, inf)
    means = [stretch.mean() for stretch in np.array_split(values, n_stretches)]
    half = _quantile(n_stretches - 1) * float(np.std(means, ddof=1)) / sqrt(n_stretches)
    return Interval(mean, mean - half, mean + half)


def _quantile(freedom: int) -> float:
    """Student's quantile for 95 % in the middle, by its expansion (Abramowitz and Stegun, 26.7.5)."""
    if freedom <= len(_FEW):
        return _FEW[freedom - 1]
    first = (_Z**3 + _Z) / 4
    second = (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96
    third = (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384
    return _Z + first / freedom + second / freedom**2 + third / freedom**3
