"""The cost model against rounds of scripted times, with drafts that are right as often as a script says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.config import MOST_DRAFTS, DraftKind
from engine.drafting.base import Draw
from engine.drafting.step_costs import PassTimes, StepCosts, expected_ids
from engine.logits import HostLogits, Logits
from engine.skipping.skip_choice import NOTHING
from engine.speculative import Speculation, Way
from tests.engine.chain_model import ChainModel

LOGITS = HostLogits(np.zeros(2, np.float32))


class World:
    """Replies in which nothing is computed and everything takes its time.

    The id at a position is that position modulo 100; drafts are right with the probability of the moment.
    """

    def __init__(
        self,
        pass_s: Callable[[int], float],
        *,
        draft_s: float = 0.0,
        computes: bool = False,
        outside_s: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.computes = computes
        self.costs = StepCosts()
        self.acceptance = 0.5
        self.rounds: list[int] = []
        """Drafts of each round so far."""
        self._pass_s, self._draft_s, self._outside_s = pass_s, draft_s, outside_s
        self._rng = np.random.default_rng(0)
        self._speculation = Speculation(self.costs, clock=lambda: self.now)
        self._session = ChainModel().new_session()
        self._ids = [0]

    def __call__(self, logits: Logits, history: Sequence[int]) -> int:
        return (len(history)) % 100

    def peek(self, logits: Logits, history: Sequence[int], ahead: int) -> int:
        raise AssertionError("scripted drafts peek at nothing")

    def draft(self, ids: Sequence[int], n_most: int, draw: Draw, cancel: CancelToken) -> list[int]:
        self.now += self._draft_s * n_most
        rights = self._rng.random(n_most) < self.acceptance
        return [(len(ids) + i) % 100 if right else 100 for i, right in enumerate(rights)]

    def reply(self, n_ids: int, k: int | None = None) -> float:
        """Ids per second."""
        begun, start = self.now, len(self._ids)
        while len(self._ids) - start < n_ids:
            way = Way(drafter=self, k=k, kind=DraftKind.NGRAM)
            drafts = self._speculation.draft(way, self._ids, MOST_DRAFTS, self, CancelToken())
            self.rounds.append(len(drafts))
            self.now += self._pass_s(1 + len(drafts))
            self._session.extend([self._ids[-1]])
            rows = [LOGITS] * (1 + len(drafts))
            drawn = self._speculation.accept(rows, drafts, self, self._session, frozenset())
            self._ids += [token.token_id for token in drawn]
            self.now += self._outside_s * len(drawn)
        return (len(self._ids) - start) / (self.now - begun)


def memory_bound(n_ids: int) -> float:
    """Several ids cost hardly more than one, up to eight."""
    return 1.0 + 0.03 * (n_ids - 1) + 0.4 * max(0, n_ids - 8)


def compute_bound(n_ids: int) -> float:
    return 1.0 + 0.45 * (n_ids - 1)


def best_fixed(pass_s: Callable[[int], float], acceptance: float, draft_s: float) -> float:
    """Ids per second of the best number of drafts, none among them, if all were known."""
    return max(expected_ids(acceptance, k) / (pass_s(k + 1) + k * draft_s) for k in range(MOST_DRAFTS + 1))


def test_a_round_gives_one_id_and_those_of_the_drafts_that_are_right_in_a_row() -> None:
    assert expected_ids(0.0, 5) == 1
    assert expected_ids(1.0, 5) == 6
    assert expected_ids(0.5, 2) == 1.75


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("outside_s", [0.0, 0.5])
def test_predicted_speed_is_measured_speed(acceptance: float, k: int, outside_s: float) -> None:
    world = World(memory_bound, draft_s=0.1, computes=True, outside_s=outside_s)
    world.acceptance = acceptance
    world.reply(40, k=k)
    measured = world.reply(4000, k=k)
    world.costs.record(DraftKind.NGRAM).saw(round(10_000 * acceptance), round(10_000 * (1 - acceptance)))
    gain = world.costs.gain(NOTHING, DraftKind.NGRAM, k)
    assert gain is not None
    plain_step_s = memory_bound(1) + outside_s
    assert world.costs.plain_step_s(NOTHING) == pytest.approx(plain_step_s)
    assert gain / plain_step_s == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("computes", [False, True])
@pytest.mark.parametrize("pass_s", [memory_bound, compute_bound])
@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8, 0.95])
def test_what_is_chosen_is_nearly_as_fast_as_the_best_that_could_be(
    acceptance: float, pass_s: Callable[[int], float], computes: bool
) -> None:
    world = World(pass_s, draft_s=0.2 if computes else 0.0001, computes=computes)
    world.acceptance = acceptance
    world.reply(200)
    best = best_fixed(pass_s, acceptance, 0.2 if computes else 0.0001)
    assert world.reply(3000) > 0.95 * best


@pytest.mark.parametrize("computes", [False, True])
@pytest.mark.parametrize("pass_s", [memory_bound, compute_bound])
@pytest.mark.parametrize("acceptance", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("n_ids", [128, 2000])
def test_drafts_that_do_not_pay_cost_next_to_nothing(
    n_ids: int, acceptance: float, pass_s: Callable[[int], float], computes: bool
) -> None:
    world = World(pass_s, draft_s=0.7 if computes else 0.0001, computes=computes)
    world.acceptance = acceptance
    assert world.reply(n_ids) > 0.97


def test_what_begins_to_pay_is_noticed_and_what_ceases_to_is_left_alone() -> None:
    world = World(memory_bound, draft_s=0.3, computes=True)
    world.acceptance = 0.02
    world.reply(1000)
    assert world.rounds[-1] == 0
    world.acceptance = 0.9
    world.reply(3000)
    assert world.reply(500) > 1.5
    world.acceptance = 0.02
    assert world.reply(3000) > 0.97
    assert np.count_nonzero(world.rounds[-500:]) < 25


def test_looking_up_begins_to_pay_within_a_few_ids() -> None:
    world = World(memory_bound, draft_s=0.0001)
    world.acceptance = 0.0
    world.reply(500)
    assert not any(world.rounds[-20:])
    world.acceptance = 1.0
    world.reply(30)
    assert world.rounds[-1] >= 4


def test_a_number_that_is_given_is_kept_whether_it_pays_or_not() -> None:
    world = World(compute_bound)
    world.acceptance = 0.0
    world.reply(40, k=3)
    # The first steps tell what there is to compare with.
    assert world.rounds == [0, 0, *[3] * 38]


def test_plain_steps_are_looked_at_again_while_drafts_pay() -> None:
    world = World(memory_bound)
    world.acceptance = 1.0
    world.reply(20)
    world.rounds.clear()
    world.reply(2000)
    assert 0 < world.rounds.count(0) <= len(world.rounds) / 50


def measured(times: PassTimes, points: dict[int, float]) -> None:
    for count, seconds in points.items():
        times.add(count, 100.0)  # not used: kernels come with the first one
        times.add(count, seconds)


def test_counts_that_were_not_measured_are_taken_to_cost_the_least_they_may() -> None:
    times = PassTimes()
    measured(times, {1: 1.0, 5: 3.0})
    assert [times.at(count) for count in (1, 5, 7)] == [1.0, 3.0, 4.0]
    assert times.at(3) == 1.5  # a guess, less than what lies on the line
    measured(times, {9: 3.2})
    assert times.at(7) == pytest.approx(3.1)  # on the line, which rises least


def test_a_prompt_tells_what_several_ids_cost_until_they_are_measured() -> None:
    times = PassTimes()
    measured(times, {1: 1.0})
    assert times.at(5) == 2.0
    times.add_prompt(8, 100.0)  # too few to tell
    assert times.at(5) == 2.0
    times.add_prompt(101, 11.0)
    assert times.at(5) == pytest.approx(1.4)
    measured(times, {5: 3.0})
    assert times.at(6) == pytest.approx(3.1)


def test_one_disturbance_does_not_count() -> None:
    times = PassTimes()
    assert times.at(1) is None
    for seconds in (9.0, 1.0, 1.0, 7.0, 1.0):
        times.add(1, seconds)
    assert times.at(1) == 1.0


def test_nothing_is_drafted_before_a_plain_step_was_measured() -> None:
    assert StepCosts().choose(NOTHING, DraftKind.NGRAM, 5, tries=True) == 0
    assert StepCosts().plain_step_s(NOTHING) == 0


def test_sets_that_were_left_out_long_ago_are_forgotten() -> None:
    costs = StepCosts()
    for block in range(20):
        costs.passes(frozenset({block}))
    assert len(costs._passes) < 20


def test_other_work_that_makes_all_passes_slower_changes_no_choice() -> None:
    times = PassTimes()
    measured(times, {1: 1.0, 9: 3.0})
    for _ in range(8):
        times.add(1, 2.0)
    assert times.at(9) == pytest.approx(6.0)
