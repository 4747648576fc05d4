"""What other programs take of a GPU's memory is yielded after a while, and taken back after a longer one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.tiers.pressure import VramPressure

MB = 1 << 20
GB = 1 << 30
FREE, USED = 2 * GB, 6 * GB
"""Of the GPU, when the model has been loaded."""
SLACK = FREE // 2
STEP = 256 * MB


class Card:
    """A GPU, and the time; other programs come and go."""

    def __init__(self) -> None:
        self.now, self.theirs, self.ours = 100.0, 0, USED
        self.reads = 0

    def read(self) -> tuple[int, int]:
        self.reads += 1
        return FREE + USED - self.theirs - self.ours, self.ours

    def watched(self) -> VramPressure:
        return VramPressure(self.read, clock=lambda: self.now)

    def later(self, seconds: float, *, theirs: int) -> None:
        self.now += seconds
        self.theirs = theirs


def test_what_others_leave_us_is_no_reason_to_move() -> None:
    card = Card()
    pressure = card.watched()
    for taken in (0, SLACK // 2, SLACK, SLACK + STEP - 1):
        card.later(20, theirs=taken)
        assert pressure.to_yield() is None


def test_on_a_large_card_others_may_take_nearly_all_that_is_free() -> None:
    card, theirs = Card(), 100 * GB

    def read() -> tuple[int, int]:
        return 100 * GB + FREE + USED - card.theirs - card.ours, card.ours

    pressure = VramPressure(read, clock=lambda: card.now)
    card.later(20, theirs=theirs)
    assert pressure.to_yield() is None
    card.later(20, theirs=theirs + FREE)
    assert pressure.to_yield() == GB


def test_what_others_take_beyond_half_of_what_was_free_is_yielded_once() -> None:
    card = Card()
    pressure = card.watched()
    card.later(1, theirs=SLACK + GB)
    assert pressure.to_yield() == GB
    for _ in range(30):
        card.later(1, theirs=SLACK + GB)
        assert pressure.to_yield() is None
    card.later(1, theirs=SLACK + GB + STEP)
    assert pressure.to_yield() == GB + STEP


def test_what_we_take_and_give_back_ourselves_counts_for_nothing() -> None:
    card = Card()
    pressure = card.watched()
    for ours in (USED - 3 * GB, USED + GB, USED):
        card.later(20, theirs=0)
        card.ours = ours
        assert pressure.to_yield() is None
    card.later(1, theirs=SLACK + GB)
    assert pressure.to_yield() == GB
    card.later(1, theirs=SLACK + GB)
    card.ours = USED - GB  # as asked
    assert pressure.to_yield() is None


def test_free_memory_is_taken_back_only_when_it_has_been_calm_for_a_while() -> None:
    card = Card()
    pressure = card.watched()
    card.later(1, theirs=SLACK + GB)
    assert pressure.to_yield() == GB
    card.later(9, theirs=0)
    assert pressure.to_yield() is None
    card.later(1, theirs=0)
    assert pressure.to_yield() == 0
    card.later(20, theirs=0)
    assert pressure.to_yield() is None


def test_the_last_bit_comes_back_however_small_it_is() -> None:
    card = Card()
    pressure = card.watched()
    card.later(1, theirs=SLACK + STEP)
    assert pressure.to_yield() == STEP
    card.later(20, theirs=SLACK + 1)
    assert pressure.to_yield() is None, "less than a step away, and not all"
    card.later(20, theirs=SLACK)
    assert pressure.to_yield() == 0


def test_it_is_looked_at_once_a_second_at_most() -> None:
    card = Card()
    pressure = card.watched()
    assert pressure.to_yield() is None
    reads = card.reads
    for _ in range(9):
        card.later(0.1, theirs=SLACK + GB)
        assert pressure.to_yield() is None
    assert card.reads == reads
    card.later(0.2, theirs=SLACK + GB)
    assert pressure.to_yield() == GB
    assert card.reads == reads + 1


def test_a_budget_that_is_chosen_anew_accounts_for_what_others_have() -> None:
    card = Card()
    pressure = card.watched()
    card.later(1, theirs=SLACK + GB)
    assert pressure.to_yield() == GB
    card.ours = USED - GB
    pressure.forget()
    free = card.read()[0]
    card.later(20, theirs=SLACK + GB)
    assert pressure.to_yield() is None
    card.later(20, theirs=SLACK + GB + free // 2 + STEP)
    assert pressure.to_yield() == STEP


@given(st.lists(st.tuples(st.floats(0, 15), st.integers(0, FREE + USED)), max_size=30))
def test_any_coming_and_going_is_followed_without_a_chase(steps: list[tuple[float, int]]) -> None:
    card = Card()
    pressure = card.watched()
    yielded, changed = 0, card.now
    for seconds, theirs in steps:
        card.later(seconds, theirs=theirs)
        answer = pressure.to_yield()
        if answer is not None:
            assert answer == max(0, theirs - SLACK)
            assert answer != yielded
            assert answer > yielded or card.now - changed >= 10
            yielded, changed = answer, card.now
    card.later(10.1, theirs=card.theirs)
    answer = pressure.to_yield()
    yielded = yielded if answer is None else answer
    assert abs(yielded - max(0, card.theirs - SLACK)) < STEP
