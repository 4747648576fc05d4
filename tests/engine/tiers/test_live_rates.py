"""Rates that follow what steps take: by how much, from when on, and within which bounds."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.tiers.live_rates import LiveRates
from engine.tiers.rates import LinkRates, Rates
from engine.tiers.step_pace import StepTimes
from kernels.quant_types import QuantType
from tests.engine.tiers.shapes import RATES

assert RATES.link is not None
LINK: LinkRates = RATES.link


def times(products_s: float | None, copy_rate: float | None) -> StepTimes:
    return StepTimes(0.2, products_s, copy_rate)


PROMISED = times(0.1, 40e9)


def live(link_limit: float | None = None) -> LiveRates:
    return LiveRates(RATES, LINK, link_limit)


def shares(rates: Rates, link: float = LINK.h2d) -> tuple[float, float]:
    """Of the probed rates, the processor's and the link's."""
    assert rates.link is not None and rates.cpu_flops is not None and RATES.cpu_flops is not None
    processor = {rates.product(quant_type) / RATES.product(quant_type) for quant_type in QuantType}
    processor.add(rates.cpu_flops / RATES.cpu_flops)
    assert max(processor) == pytest.approx(min(processor))
    return max(processor), rates.link.h2d / link


def test_what_is_about_as_promised_is_no_news() -> None:
    rates = live()
    assert rates.now == RATES
    assert not rates.are_others(PROMISED, PROMISED)
    assert not rates.are_others(PROMISED, times(0.104, 38.5e9))
    assert rates.are_others(PROMISED, times(0.106, 40e9))
    assert rates.are_others(PROMISED, times(0.1, 37e9))


def test_rates_are_as_much_slower_as_steps_were() -> None:
    rates = live()
    rates.correct(PROMISED, times(0.2, 30e9))
    assert shares(rates.now) == pytest.approx((0.5, 0.75))
    assert rates.now.link is not None
    assert rates.now.link.h2d_beside_cpu == pytest.approx(LINK.h2d_beside_cpu * 0.75)
    assert rates.now.link.cpu_beside_h2d == LINK.cpu_beside_h2d
    assert (rates.now.dram, rates.now.disk) == (RATES.dram, RATES.disk)
    # By these rates more was promised than by those, and so it goes on from there.
    rates.correct(times(0.2, 30e9), times(0.1, 40e9))
    assert shares(rates.now) == pytest.approx((1.0, 1.0))


def test_beside_copies_the_processor_is_not_thought_faster_than_it_has_to_be() -> None:
    """First it keeps more of its own rate; only what that does not explain makes it faster, also alone."""
    rates = live()
    rates.correct(PROMISED, times(0.1 / 1.05, 40e9))
    assert rates.now.link is not None
    assert (*shares(rates.now), rates.now.link.cpu_beside_h2d) == pytest.approx((1.0, 1.0, 0.945))
    rates.correct(PROMISED, times(0.1 / 1.2, 40e9))
    assert (*shares(rates.now), rates.now.link.cpu_beside_h2d) == pytest.approx((1.134, 1.0, 1.0))
    rates.correct(PROMISED, times(0.1 * 1.05, 40e9))
    assert (*shares(rates.now), rates.now.link.cpu_beside_h2d) == pytest.approx((1.134, 1.0, 1 / 1.05))
    rates.correct(PROMISED, times(0.2, 40e9))
    assert (*shares(rates.now), rates.now.link.cpu_beside_h2d) == pytest.approx((0.6, 1.0, 0.9))


def test_what_is_measured_without_copies_is_what_the_processor_does_alone() -> None:
    rates = live()
    rates.correct(times(0.1, None), times(0.08, None))
    assert rates.now.link is not None
    assert (*shares(rates.now), rates.now.link.cpu_beside_h2d) == pytest.approx((1.25, 1.0, 0.9))


@pytest.mark.parametrize("took", [times(None, 20e9), times(0.2, None), times(None, None)])
def test_what_is_not_known_stays(took: StepTimes) -> None:
    for promised, measured in ((PROMISED, took), (took, PROMISED)):
        rates = live()
        rates.correct(promised, measured)
        processor, link = shares(rates.now)
        assert (processor == 1.0) == (took.products_s is None)
        assert (link == 1.0) == (took.copy_rate is None)


@given(
    st.lists(st.tuples(st.floats(1e-9, 1e3), st.floats(1, 1e15)), min_size=1, max_size=6),
    st.sampled_from([None, 6.5e9, 25e9, 90e9]),
)
@example([(1.0, 1.0), (0.04296875, 1.0)], None)  # rounds to just below what the processor keeps at least
def test_rates_stay_within_bounds_whatever_is_measured(
    measured: list[tuple[float, float]], link_limit: float | None
) -> None:
    rates = live(link_limit)
    first = rates.now.link
    assert first is not None
    for took in measured:
        rates.correct(PROMISED, times(*took))
    processor, link = shares(rates.now, first.h2d)
    assert 0.25 - 1e-9 <= processor <= 2 + 1e-9
    assert 0.25 - 1e-9 <= link <= 2 + 1e-9
    assert rates.now.link is not None
    assert first.cpu_beside_h2d <= rates.now.link.cpu_beside_h2d <= 1
    assert link_limit is None or rates.now.link.h2d <= link_limit * (1 + 1e-9)


def test_what_is_out_of_bounds_is_no_news_twice() -> None:
    rates, garbage = live(), times(10.0, 1e9)
    assert rates.are_others(PROMISED, garbage)
    rates.correct(PROMISED, garbage)
    assert shares(rates.now) == pytest.approx((0.25, 0.25))
    assert not rates.are_others(times(0.4, 10e9), garbage)


def test_copies_that_are_held_back_are_not_slowed_twice() -> None:
    rates = live(20e9)
    assert rates.now.link is not None
    assert rates.now.link.h2d == 20e9
    rates.correct(times(0.1, 20e9), times(0.1, 16e9))
    assert rates.now.link.h2d == pytest.approx(16e9)
    rates.correct(times(0.1, 16e9), times(0.1, 16e9))
    assert rates.now.link.h2d == pytest.approx(16e9)


def test_the_rate_of_a_disk_stays_through_corrections() -> None:
    rates = live()
    rates.at_disk_rate(0.7e9)
    assert rates.now.disk == 0.7e9
    rates.correct(PROMISED, times(0.2, 40e9))
    assert rates.now.disk == 0.7e9
    rates.at_disk_rate(0.9e9)
    assert rates.now.disk == 0.9e9
    assert shares(rates.now) == pytest.approx((0.5, 1.0))
