"""Which results of a matrix are worth looking at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.measuring.matrix_case import CaseResult, pareto_front

FIGURES = st.sampled_from([None, 0.0, 0.01, 0.5, 1.0, 2.0])
RESULTS = st.lists(st.builds(CaseResult, decode_tok_s=FIGURES, kl_mean=FIGURES), max_size=12)


def results(*figures: tuple[float | None, float | None]) -> list[CaseResult]:
    return [CaseResult(decode_tok_s=speed, kl_mean=kl) for speed, kl in figures]


def test_the_front_is_what_no_other_one_beats_in_both_the_fastest_first() -> None:
    assert pareto_front(results((10, 0.0), (20, 0.1), (15, 0.2), (30, 0.5), (9, 0.0), (None, 0.0))) == [
        3,
        1,
        0,
    ]


def test_of_equals_the_first_one_stands_for_all() -> None:
    assert pareto_front(results((10, 0.1), (10, 0.1), (10, 0.2))) == [0]
    assert pareto_front([]) == []


@given(RESULTS)
def test_every_result_is_on_the_front_or_beaten_by_one_that_is(found: list[CaseResult]) -> None:
    front = pareto_front(found)
    figures = [(r.decode_tok_s, r.kl_mean) for r in found]
    for index, (speed, kl) in enumerate(figures):
        if speed is None or kl is None:
            assert index not in front
            continue
        better = [i for i in front if figures[i][0] >= speed and figures[i][1] <= kl]  # type: ignore[operator]
        assert better
        if index in front:
            assert better == [index]
