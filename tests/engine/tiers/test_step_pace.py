"""A window of steps: what counts, when there is enough, and where another one begins."""

from __future__ import annotations

import pytest

from engine.tiers.step_pace import Copies, StepPace, StepTimes

GB = 10**9


class Steps:
    """Steps of 0.2 s of which the processor's products take 0.15 s, and each copies 2 GB in 0.1 s."""

    def __init__(self) -> None:
        self.pace = StepPace()
        self.number, self.at, self.copies = 0, 100.0, Copies(0.0, 0)

    def run(self, n_steps: int, arrangement: int = 0, products_s: float = 0.15, step_s: float = 0.2) -> None:
        for _ in range(n_steps):
            self.number += 1
            self.at += step_s
            self.copies = Copies(self.copies.seconds + 0.1, self.copies.n_bytes + 2 * GB)
            self.pace.note(self.number, arrangement, self.at, products_s, self.copies)

    def other_pass(self, copy_s: float = 5.0) -> None:
        """Say a prompt, with slow copies."""
        self.number += 1
        self.at += 10.0
        self.copies = Copies(self.copies.seconds + copy_s, self.copies.n_bytes + 2 * GB)


def test_a_window_has_enough_steps_and_seconds() -> None:
    steps = Steps()
    steps.run(16)
    assert steps.pace.take(0) is None  # nobody knows when the first one began
    steps.run(1)
    assert steps.pace.take(0) == pytest.approx((0.2, 0.15, 20 * GB))
    quick = Steps()
    quick.run(190, step_s=0.01)
    assert quick.pace.take(0) is None
    quick.run(20, step_s=0.01)
    assert quick.pace.take(0) == pytest.approx((0.01, 0.15, 20 * GB))


def test_each_window_is_twice_as_long_up_to_a_minute_until_blocks_are_arranged_anew() -> None:
    steps = Steps()
    steps.run(1)
    for longer in (1, 2, 4, 8, 16, 32, 32, 32):
        steps.run(16 * longer - 1)
        assert steps.pace.take(0) is None
        steps.run(1)
        assert steps.pace.take(0) is not None
    steps.run(17, arrangement=1)
    assert steps.pace.take(1) is not None


def test_a_person_who_is_waited_for_does_not_count() -> None:
    steps = Steps()
    steps.run(9)
    steps.at += 300.0  # and the next reply needs no pass but for its last id
    steps.run(9)
    took = steps.pace.take(0)
    assert took is not None
    assert took.seconds == pytest.approx(0.2)


def test_what_another_program_takes_for_a_moment_does_not_count() -> None:
    steps = Steps()
    steps.run(9)
    steps.run(1, products_s=3.0, step_s=3.0)
    steps.copies = Copies(steps.copies.seconds + 2.0, steps.copies.n_bytes)
    steps.run(9)
    assert steps.pace.take(0) == pytest.approx((0.2, 0.15, 20 * GB))


def test_a_new_window_follows() -> None:
    steps = Steps()
    steps.run(20)
    steps.pace.take(0)
    assert steps.pace.take(0) is None
    steps.run(32, products_s=0.3)
    assert steps.pace.take(0) == pytest.approx((0.2, 0.3, 20 * GB))


def test_what_other_passes_copy_and_take_is_left_out() -> None:
    steps = Steps()
    for _ in range(10):
        steps.run(1)
        steps.other_pass()
    assert steps.pace.take(0) is None
    steps.run(20)
    assert steps.pace.take(0) == pytest.approx((0.2, 0.15, 20 * GB))


def test_another_arrangement_begins_a_window() -> None:
    steps = Steps()
    steps.run(20)
    assert steps.pace.take(1) is None
    steps.run(20, arrangement=1, products_s=0.4)
    assert steps.pace.take(0) is None
    assert steps.pace.take(1) == pytest.approx((0.2, 0.4, 20 * GB))


def test_what_there_is_none_of_is_not_known() -> None:
    pace = StepPace()
    for number in range(20):
        pace.note(number, 0, number * 1.0, 0.0, Copies(0.0, 0))
    assert pace.take(0) == StepTimes(1.0, None, None)
