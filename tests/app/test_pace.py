"""Looks are so seldom that they take at most their share of a core."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from app.pace import LATE_S, SHARE, SOON_S, Pace


@pytest.mark.parametrize(
    ("cost_s", "wait_s"),
    [(0.0, SOON_S), (SOON_S * SHARE, SOON_S), (0.01, 0.01 / SHARE), (0.5, LATE_S)],
    ids=["nothing", "cheap", "dear", "very-dear"],
)
def test_the_next_look_is_the_later_the_more_the_last_one_cost(
    monkeypatch: pytest.MonkeyPatch, cost_s: float, wait_s: float
) -> None:
    times: Iterator[float] = iter([5.0, 7.0, 7.0 + cost_s])
    monkeypatch.setattr(time, "thread_time", lambda: next(times))
    pace = Pace()
    assert pace.begin() == SOON_S  # whatever was done while nobody looked
    assert pace.next() == pytest.approx(wait_s)
