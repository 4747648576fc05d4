"""Each part of the chain on distributions small enough to check by hand, and the chain as a whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import sampler
from engine.config import SamplingParams
from engine.errors import KernelError
from engine.logits import DrawRequest, HostLogits
from engine.sampler import Candidates, Sampler

PROBABILITIES = [0.1, 0.4, 0.2, 0.3]
ALL_OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}


def candidates(probabilities: list[float]) -> Candidates:
    with np.errstate(divide="ignore"):
        return Candidates(np.arange(len(probabilities)), np.log(probabilities).astype(np.float32))


def kept(result: Candidates) -> set[int]:
    return set(result.ids.tolist())


def values(n: int = 1000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, n).astype(np.float32)


def logits(n: int = 1000, seed: int = 0) -> HostLogits:
    return HostLogits(values(n, seed))


class AwayLogits(HostLogits):
    """Logits that say which id was drawn where they are, or that this is not possible there."""

    def __init__(self, drawn: int | None) -> None:
        super().__init__(values())
        self.drawn = drawn
        self.requests: list[DrawRequest] = []

    def draw(self, request: DrawRequest) -> int | None:
        self.requests.append(request)
        return self.drawn


@pytest.mark.parametrize(
    ("k", "ids"), [(0, {0, 1, 2, 3}), (1, {1}), (2, {1, 3}), (4, {0, 1, 2, 3}), (9, {0, 1, 2, 3})]
)
def test_top_k_keeps_the_k_most_probable(k: int, ids: set[int]) -> None:
    assert kept(sampler.top_k(candidates(PROBABILITIES), k)) == ids


@pytest.mark.parametrize(
    ("mass", "ids"), [(0.0, {1}), (0.39, {1}), (0.5, {1, 3}), (0.75, {1, 2, 3}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_keeps_the_smallest_set_with_the_mass(mass: float, ids: set[int]) -> None:
    assert kept(sampler.top_p(candidates(PROBABILITIES), mass)) == ids


@pytest.mark.parametrize(
    ("share", "ids"), [(0.0, {0, 1, 2, 3}), (0.49, {1, 2, 3}), (0.7, {1, 3}), (1.0, {1})]
)
def test_min_p_drops_what_is_far_below_the_best(share: float, ids: set[int]) -> None:
    assert kept(sampler.min_p(candidates(PROBABILITIES), share)) == ids


def test_typical_prefers_expected_surprise_to_the_most_probable() -> None:
    # Entropy 1.28 nats; surprises 2.3, 0.92, 1.61, 1.2: the last one is nearest, then the third.
    assert kept(sampler.typical(candidates(PROBABILITIES), 0.25)) == {3}
    assert kept(sampler.typical(candidates(PROBABILITIES), 0.45)) == {3, 2}


def test_sets_larger_than_the_first_partial_sort_are_right() -> None:
    flat = candidates([1 / 1000] * 1000)
    assert len(sampler.top_p(flat, 0.9).ids) in (900, 901)
    assert len(sampler.typical(flat, 0.9).ids) in (900, 901)


@given(st.integers(1, 5000), st.integers(1, 200), st.sampled_from([0.0, 1.0, 30.0]))
def test_the_k_best_are_those_of_a_full_sort(n: int, k: int, spread: float) -> None:
    values = np.round(np.random.default_rng(n).normal(0, spread, n)).astype(np.float32)  # with many ties
    values[::7] = -np.inf
    best = sampler.top_k(Candidates(np.arange(n), values), k)
    if k < n:
        np.testing.assert_array_equal(best.ids, np.argsort(-values, kind="stable")[:k])
    np.testing.assert_array_equal(best.logits, values[best.ids])


def test_penalties_touch_each_distinct_id_in_the_window_once() -> None:
    params = SamplingParams(
        repeat_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25, penalty_window=3
    )
    before = np.array([4.0, 4.0, -4.0, 4.0], np.float32)
    after = sampler.penalize(before, sampler.penalties([3, 0, 2, 0], params), params)
    assert after.tolist() == [4 / 2 - 0.5 - 2 * 0.25, 4.0, -4 * 2 - 0.5 - 0.25, 4.0]
    assert before.tolist() == [4.0, 4.0, -4.0, 4.0]


@pytest.mark.parametrize(
    ("params", "history"),
    [
        (SamplingParams(), [1, 2]),
        (SamplingParams(repeat_penalty=2.0), []),
        (SamplingParams(repeat_penalty=2.0, penalty_window=0), [1, 2]),
    ],
)
def test_no_id_is_penalised_when_all_is_off_or_nothing_is_in_the_window(
    params: SamplingParams, history: list[int]
) -> None:
    assert not len(sampler.penalties(history, params).ids)


def test_temperature_0_is_greedy_and_ignores_the_seed() -> None:
    for seed in range(20):
        assert Sampler(SamplingParams(temperature=0, seed=seed))(logits(), []) == int(values().argmax())


def test_an_id_drawn_where_the_logits_are_is_taken() -> None:
    params = SamplingParams(seed=3, presence_penalty=0.5)
    away = AwayLogits(drawn=77)
    assert Sampler(params)(away, [5, 9, 5]) == 77
    [request] = away.requests
    assert request.params == params
    assert request.penalties.ids.tolist() == [5, 9]
    assert request.penalties.counts.tolist() == [2, 1]
    assert 0 <= request.uniform < 1


def test_a_seed_draws_the_same_whether_or_not_some_ids_were_drawn_elsewhere() -> None:
    here, mixed = (Sampler(SamplingParams(seed=3, temperature=2.0)) for _ in range(2))
    expected = [here(logits(seed=i), []) for i in range(20)]
    for i in range(20):
        assert mixed(AwayLogits(drawn=0), []) == 0 if i % 2 else mixed(logits(seed=i), []) == expected[i]


def test_what_cannot_be_drawn_elsewhere_is_drawn_here_from_the_same_number() -> None:
    params = SamplingParams(seed=3, temperature=2.0)
    assert Sampler(params)(AwayLogits(drawn=None), []) == Sampler(params)(logits(), [])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers_are_an_error(bad: float) -> None:
    row = values()
    row[7] = bad
    with pytest.raises(KernelError, match="not numbers"):
        HostLogits(row)
    with pytest.raises(KernelError, match="not numbers"):
        HostLogits(np.full(9, -np.inf, np.float32))


def test_the_same_seed_draws_the_same_ids_and_another_seed_others() -> None:
    def draws(seed: int) -> list[int]:
        sample = Sampler(SamplingParams(temperature=1.5, seed=seed))
        return [sample(logits(seed=i), []) for i in range(30)]

    assert draws(5) == draws(5)
    assert draws(5) != draws(6)


def test_draws_follow_the_distribution() -> None:
    sample = Sampler(SamplingParams(seed=1, **ALL_OFF))
    drawn = [sample(HostLogits(candidates(PROBABILITIES).logits), []) for _ in range(4000)]
    shares = np.bincount(drawn, minlength=4) / 4000
    # Four standard deviations of a share of 4,000 draws are 0.031.
    np.testing.assert_allclose(shares, PROBABILITIES, atol=0.032)


def test_a_high_temperature_flattens_and_a_tiny_one_is_greedy() -> None:
    options = {**ALL_OFF, "temperature": 1e-6}
    tiny = Sampler(SamplingParams(seed=1, **options))
    assert {tiny(logits(), []) for _ in range(50)} == {int(values().argmax())}
    hot = Sampler(SamplingParams(seed=1, **{**ALL_OFF, "temperature": 100.0}))
    assert len({hot(logits(), []) for _ in range(200)}) > 150


@given(
    temperature=st.floats(0, 5),
    top_k=st.integers(0, 60),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    typical_p=st.floats(0, 1),
    repeat_penalty=st.floats(0.1, 3),
    seed=st.integers(-5, 1 << 70),
)
def test_any_settings_draw_an_id_of_the_vocabulary(
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    typical_p: float,
    repeat_penalty: float,
    seed: int,
) -> None:
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical_p,
        repeat_penalty=repeat_penalty,
        seed=seed,
    )
    assert 0 <= Sampler(params)(logits(50), [1, 2, 3]) < 50


def test_hidden_ids_are_never_drawn() -> None:
    half_hidden = values(50)
    half_hidden[::2] = -np.inf
    sample = Sampler(SamplingParams(seed=1, typical_p=0.99, **ALL_OFF))
    assert all(sample(HostLogits(half_hidden), []) % 2 for _ in range(200))


def test_a_fresh_seed_is_reported() -> None:
    first, second = Sampler(SamplingParams()), Sampler(SamplingParams())
    assert first.seed != second.seed
    again = Sampler(SamplingParams(seed=first.seed))
    assert [again(logits(seed=i), []) for i in range(9)] == [first(logits(seed=i), []) for i in range(9)]


# -- looking ahead


@pytest.mark.parametrize("params", [SamplingParams(seed=3), SamplingParams(temperature=0)])
def test_a_peek_gives_the_id_that_is_drawn_from_the_same_logits(params: SamplingParams) -> None:
    sampler, plain = Sampler(params), Sampler(params)
    rows = [logits(seed=seed) for seed in range(8)]
    expected = [plain(row, []) for row in rows]
    peeked = [sampler.peek(row, [], ahead) for ahead, row in enumerate(rows[:5])]
    assert peeked == expected[:5]
    assert [sampler.peek(rows[2], [], 2), sampler.peek(rows[7], [], 7)] == [expected[2], expected[7]]
    assert [sampler(row, []) for row in rows] == expected


def test_draws_after_peeks_are_those_without_them() -> None:
    params = SamplingParams(seed=4, temperature=1.5)
    sampler, plain = Sampler(params), Sampler(params)
    row = logits(seed=1)
    for n_peeks in (0, 3, 1, 0, 6, 2, 0):
        for ahead in range(n_peeks):
            sampler.peek(logits(seed=ahead), [1, 2], ahead)
        assert sampler(row, []) == plain(row, [])


def test_a_peek_sees_the_penalties_of_its_history() -> None:
    params = SamplingParams(temperature=0, presence_penalty=100.0)
    row = logits()
    best = Sampler(params).peek(row, [], 0)
    assert Sampler(params).peek(row, [best], 0) != best


def test_a_peek_may_be_made_where_the_logits_are() -> None:
    away = AwayLogits(42)
    sampler = Sampler(SamplingParams(seed=5))
    assert sampler.peek(away, [], 1) == 42
    drawn = AwayLogits(None)
    sampler(drawn, []), sampler(drawn, [])
    assert drawn.requests[1].uniform == away.requests[0].uniform
