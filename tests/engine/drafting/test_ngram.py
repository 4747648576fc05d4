"""Looking up what followed the same ids: against a search of everything, over any history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cancel import CancelToken
from engine.drafting.following import n_alike
from engine.drafting.ngram import NgramDrafter
from tests.engine.drafting.draws import NoDraw

FAR, PLACES = 32, 16
few_ids = st.integers(0, 3)
"""So few that the same ids come in a row again and again."""


def drafted(drafter: NgramDrafter, ids: Sequence[int], n_most: int = 8) -> list[int]:
    return drafter.draft(ids, n_most, NoDraw(), CancelToken())


def searched(ids: list[int], n_most: int) -> list[int]:
    """The proposal, found by comparing the end with every earlier place."""

    def n_agreeing(place: int) -> int:
        most = min(FAR, place)
        return next((n for n in range(most) if ids[place - 1 - n] != ids[-1 - n]), most)

    agreeing = [(place, n_agreeing(place)) for place in range(len(ids) - 1, 0, -1)]
    near = [(place, n) for place, n in agreeing if n >= 4][:PLACES] or agreeing
    place, n = max(near, key=lambda each: each[1], default=(0, 0))
    proposed = list(ids)
    for i in range(min(n_most, n * n // 4) if n > 1 else 0):
        proposed.append(proposed[place + i])
    return proposed[len(ids) :]


@given(st.lists(few_ids, max_size=120), st.integers(1, 15))
def test_the_longest_agreement_among_the_latest_places_is_taken(ids: list[int], n_most: int) -> None:
    assert drafted(NgramDrafter(), ids, n_most) == searched(ids, n_most)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1), st.lists(few_ids, max_size=30)), max_size=12))
def test_a_history_that_is_cut_and_goes_on_is_followed(turns: list[tuple[float, list[int]]]) -> None:
    drafter, ids = NgramDrafter(), list[int]()
    for kept, more in turns:
        del ids[round(kept * len(ids)) :]
        drafted(drafter, ids)  # so that it sees the cut: what comes instead may begin alike
        for token_id in more:
            ids.append(token_id)
            assert drafted(drafter, ids) == searched(ids, 8)


def test_what_was_said_twice_is_proposed_as_it_went_on_last_time() -> None:
    assert drafted(NgramDrafter(), [1, 2, 7, 8, 1, 2, 9, 9, 1, 2], 4) == [9]
    assert drafted(NgramDrafter(), [5, 1, 2, 3, 4, 6, 7, 8, 1, 2, 3, 4], 3) == [6, 7, 8]


def test_the_longer_agreement_wins_over_the_later_place() -> None:
    a_line, ends = [4, 5, 6, 7], ([10, 11], [20, 21])
    ids = [1, *a_line, *ends[0], 2, *a_line, *ends[1], 1, *a_line]
    assert drafted(NgramDrafter(), ids, 2) == ends[0]


def test_a_period_goes_on() -> None:
    assert drafted(NgramDrafter(), [1, 2, 3] * 4, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_new_ids_have_no_draft() -> None:
    assert drafted(NgramDrafter(), list(range(50))) == []
    assert drafted(NgramDrafter(), []) == []
    assert drafted(NgramDrafter(), [1]) == []


def test_little_agreement_proposes_little() -> None:
    ids = [*range(20), 30, 4, 5]
    assert drafted(NgramDrafter(), ids, 8) == [6]
    assert drafted(NgramDrafter(), [*ids[:-2], 3, 4, 5], 8) == [6, 7]


class Watched(list[int]):
    """Counts the ids that are read from it."""

    def __init__(self, ids: Sequence[int]) -> None:
        super().__init__(ids)
        self.n_read = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        self.n_read += len(found) if isinstance(key, slice) else 1
        return found


def test_a_long_history_is_not_read_again_for_one_more_id() -> None:
    drafter, ids = NgramDrafter(), Watched([i * i % 997 for i in range(20_000)])
    drafted(drafter, ids)
    ids.append(3)
    ids.n_read = 0
    drafted(drafter, ids)
    assert ids.n_read < 100


def test_a_copy_with_one_change_is_nearly_all_drafts() -> None:
    source = [i * 7919 % 263 for i in range(400)]
    reply = [*source[:200], 300, 301, *source[203:]]
    drafter, ids, rounds = NgramDrafter(), [999, *source, 998, reply[0]], 0
    while (n_done := len(ids) - 402) < len(reply):
        proposed = drafted(drafter, ids)
        n_right = n_alike(proposed, reply[n_done:])
        ids += reply[n_done : n_done + n_right + 1]
        rounds += 1
    assert len(reply) / rounds > 6


@given(st.lists(few_ids, max_size=40), st.lists(few_ids, max_size=40), st.lists(few_ids, max_size=40))
def test_the_common_beginning_is_exact(common: list[int], one: list[int], other: list[int]) -> None:
    ids, others = common + one, common + other
    expected = next((i for i, (a, b) in enumerate(zip(ids, others, strict=False)) if a != b), None)
    assert n_alike(ids, others) == (min(len(ids), len(others)) if expected is None else expected)
    assert n_alike(ids, tuple(others)) == n_alike(ids, others)
