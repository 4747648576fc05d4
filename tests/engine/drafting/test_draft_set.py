"""The set that drafts: fast where blocks change little, far blocks first, always one where there is any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import MOST_DRAFTS
from engine.drafting.draft_set import draft_set, expected_gain, expected_loss
from engine.skipping.block_costs import BlockCosts
from engine.skipping.calibrated import Calibration, SkipEffect
from engine.skipping.skip_choice import NOTHING, SkipSet

N_BLOCKS = 8
ALL = frozenset(range(N_BLOCKS))


def calibration(top1: dict[SkipSet, float], grown: tuple[SkipSet, ...] = ()) -> Calibration:
    effects = tuple(SkipEffect(skipped, 1 - share, 0.1, 0.0, 0.2, share) for skipped, share in top1.items())
    return Calibration(N_BLOCKS, 256, "a text", 10.0, (), effects, grown)


def alone(*top1: float) -> dict[SkipSet, float]:
    return {frozenset((block,)): share for block, share in enumerate(top1)}


EQUAL = BlockCosts((1.0,) * N_BLOCKS, 1.0)


def test_drafts_that_always_agree_and_cost_next_to_nothing_give_most() -> None:
    assert expected_gain(1.0, 0.0) == pytest.approx(1.0 + MOST_DRAFTS)
    assert expected_gain(1.0, 1.0) == pytest.approx(1.0)
    assert expected_gain(0.0, 0.5) == pytest.approx(1 / 1.5)


def test_one_draft_at_a_time_is_the_best_where_they_rarely_agree() -> None:
    assert expected_gain(0.5, 0.5) == pytest.approx(1.5 / 1.5)


def test_a_grown_set_that_agrees_and_saves_is_taken() -> None:
    grown = frozenset({1, 3, 4, 5, 7})
    found = calibration({**alone(*[0.5] * N_BLOCKS), grown: 0.95}, (frozenset({1}), grown))
    assert draft_set(found, EQUAL, ALL) == grown


def hopeful(top1: float) -> Calibration:
    """Any set agrees as often as its blocks would one after the other, by the sets that were measured."""
    grown = tuple(frozenset(range(1, count)) for count in range(3, N_BLOCKS + 1))
    sets = {skipped: top1 ** len(skipped) for skipped in grown}
    return calibration({**alone(*[top1] * N_BLOCKS), **sets}, grown)


def test_sets_that_were_not_measured_are_taken_for_as_bad_as_those_that_were() -> None:
    pair = frozenset({1, 3})
    found = calibration({**alone(*[0.95] * N_BLOCKS), pair: 0.2}, (frozenset({1}), pair))
    # Alone every block seems good enough to leave half of them out; the pair tells otherwise.
    assert len(draft_set(found, EQUAL, ALL)) == 1


def test_what_is_far_goes_first() -> None:
    near = frozenset(range(6))
    costs = BlockCosts(tuple(1.0 if block in near else 8.0 for block in range(N_BLOCKS)), 1.0)
    assert draft_set(hopeful(0.9), costs, near) == {6, 7}


def test_of_what_is_near_the_blocks_that_cost_most_for_their_worth_go_first() -> None:
    costs = BlockCosts((1.0, 1.0, 1.0, 30.0, 1.0, 1.0, 1.0, 1.0), 0.1)
    assert draft_set(hopeful(0.95), costs, ALL) >= {3}


def test_there_is_a_set_even_where_none_pays() -> None:
    assert draft_set(calibration(alone(*[0.3] * N_BLOCKS)), EQUAL, ALL) != NOTHING


def test_attention_is_never_left_out_everywhere() -> None:
    skip = draft_set(hopeful(0.9999), EQUAL, frozenset({1, 3, 5, 7}))
    assert not {0, 2, 4, 6} <= skip


def test_a_loss_is_told_where_no_agreement_that_the_measured_one_allows_would_pay() -> None:
    # A block of nine costs 8 / 9 of a pass without it: drafts pay where more than eight of nine agree.
    skip = frozenset({1})
    losing = calibration(alone(*[0.8] * N_BLOCKS))
    assert expected_loss(losing, EQUAL, skip) == pytest.approx(1.8 / (1 + 8 / 9))
    assert expected_loss(calibration(alone(*[0.95] * N_BLOCKS)), EQUAL, skip) == 0.0
    # Of 256 ids 0.87 may as well be 0.89, of many more it is what it seems.
    near = calibration(alone(*[0.87] * N_BLOCKS))
    assert expected_loss(near, EQUAL, skip) == 0.0
    assert expected_loss(replace(near, tokens=100_000), EQUAL, skip) == pytest.approx(1.87 / (1 + 8 / 9))


def test_a_loss_where_everything_is_near_may_be_a_gain_where_what_is_left_out_is_far() -> None:
    found, skip = calibration(alone(*[0.8] * N_BLOCKS)), frozenset({1})
    far = BlockCosts((1.0, 8.0, *(1.0,) * (N_BLOCKS - 2)), 1.0)
    assert expected_loss(found, EQUAL, skip) > 0
    assert expected_loss(found, far, skip) == 0.0


def test_nothing_known_is_no_set() -> None:
    assert draft_set(calibration({}), EQUAL, ALL) == NOTHING
