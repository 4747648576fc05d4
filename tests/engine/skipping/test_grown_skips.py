"""Growing sets over effects that are made up, so that the best sets are known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.skipping.calibrated import SkipEffect
from engine.skipping.grown_skips import Grown, grow, leaves_too_little
from engine.skipping.skip_choice import MOST_KL, SkipSet


def effect(skipped: SkipSet, kl: float) -> SkipEffect:
    return SkipEffect(skipped, kl, kl, kl / 2, 2 * kl, max(0.0, 1 - kl))


def grown(costs: list[float], kl: Callable[[SkipSet], float]) -> tuple[Grown, list[SkipSet], list[float]]:
    """What growing finds, what it measured, and the progress that it told."""
    measured: list[SkipSet] = []
    told: list[float] = []

    def measure(skipped: SkipSet) -> SkipEffect:
        measured.append(skipped)
        return effect(skipped, kl(skipped))

    return grow(costs, measure, told.append), measured, told


def test_where_effects_add_up_the_least_comes_first() -> None:
    kls = [0.05, 0.01, 0.04, 0.02, 0.03, 0.9, 0.8, 0.7]
    found, _, _ = grown([1.0] * 8, lambda skipped: sum(kls[block] for block in skipped))
    assert found.sets == ({1}, {1, 3}, {1, 3, 4}, {1, 2, 3, 4})


def test_blocks_that_stand_in_for_each_other_are_not_left_out_together() -> None:
    # Alone, 0 and 1 seem to matter least; together they matter more than any other.
    kls = [0.01, 0.02, 0.03, 0.04, 0.5, 0.5, 0.5, 0.5]
    found, _, _ = grown(
        [1.0] * 8, lambda skipped: sum(kls[block] for block in skipped) + 0.8 * ({0, 1} <= skipped)
    )
    assert found.sets[:3] == ({0}, {0, 2}, {0, 2, 3})


def test_a_larger_block_may_change_more_but_not_more_than_double() -> None:
    kls = [0.02, 0.05, 0.03, 0.9, 0.04, 0.9]

    def add(skipped: SkipSet) -> float:
        return sum(kls[block] for block in skipped)

    # After 0.02 a block of 0.05 would be too much, however large; after 0.05 it is not.
    found, _, _ = grown([1.0, 5.0, 1.0, 5.0, 1.0, 5.0], add)
    assert found.sets == ({0}, {0, 2}, {0, 1, 2})


def test_the_attention_of_every_layer_is_never_left_out() -> None:
    found, measured, _ = grown([1.0] * 4, lambda skipped: sum(0.001 if not b % 2 else 0.4 for b in skipped))
    assert found.sets[-1] == {0, 1} or found.sets[-1] == {1, 2} or found.sets[-1] == {0, 3}
    assert {0, 2} not in measured


@given(
    n_layers=st.integers(1, 12),
    seed=st.lists(st.floats(0, 2), min_size=24, max_size=24),
    sizes=st.lists(st.floats(0.1, 10), min_size=24, max_size=24),
)
def test_sets_are_nested_measured_and_bounded(n_layers: int, seed: list[float], sizes: list[float]) -> None:
    n_blocks = 2 * n_layers
    found, measured, told = grown(sizes[:n_blocks], lambda skipped: sum(seed[block] for block in skipped))
    by_set = {effect.skipped: effect.kl for effect in found.effects}
    assert len(measured) == len(found.effects) <= n_blocks + 3 * (n_blocks // 2)
    assert len(set(measured)) == len(measured)
    for smaller, larger in zip(found.sets, found.sets[1:], strict=False):
        assert smaller < larger and len(larger) == len(smaller) + 1
    for skipped in found.sets:
        assert by_set[skipped] <= MOST_KL
        assert not leaves_too_little(skipped, n_blocks)
        assert len(skipped) <= n_layers
    assert all(0 < share <= 1 + 1e-9 for share in told)


@pytest.mark.parametrize(
    ("skipped", "too_little"),
    [({0, 2}, True), ({0, 1, 2, 3}, True), ({1, 3}, False), ({0, 1, 3}, False), (set(), False)],
)
def test_a_model_without_attention_is_none(skipped: set[int], too_little: bool) -> None:
    assert leaves_too_little(frozenset(skipped), 4) is too_little
