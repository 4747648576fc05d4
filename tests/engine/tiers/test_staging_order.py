"""Blocks come to the ring in their order, and no slot is filled while it is used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tiers.staging_order import StagingOrder

orders = st.lists(st.integers(0, 30), unique=True, max_size=8)


def fill(ring: StagingOrder) -> list[tuple[int, int]]:
    """Slots and blocks of all copies that can begin now."""
    fills = []
    while (one := ring.next_fill()) is not None:
        fills.append((one.slot, one.block))
    return fills


def test_copies_go_on_across_the_end_of_a_pass() -> None:
    ring = StagingOrder(2)
    ring.follow([7, 8, 9])
    assert fill(ring) == [(0, 7), (1, 8)]
    copied = []
    for block in (7, 8, 9, 7, 8, 9):
        assert ring.take(block) is not None
        assert ring.next_fill() is None
        ring.release(block)
        copied += [block for _, block in fill(ring)]
    assert copied == [9, 7, 8, 9, 7, 8]


def test_a_ring_longer_than_the_order_holds_no_block_twice() -> None:
    ring = StagingOrder(4)
    ring.follow([3, 5])
    assert fill(ring) == [(0, 3), (1, 5)]
    assert ring.take(3) == 0
    assert ring.next_fill() is None
    ring.release(3)
    assert [block for _, block in fill(ring)] == [3]


def test_what_lies_ahead_stays_as_far_as_a_new_order_begins_alike() -> None:
    ring = StagingOrder(3)
    ring.follow([1, 2, 3, 4])
    assert fill(ring) == [(0, 1), (1, 2), (2, 3)]
    ring.follow([1, 2, 4])
    assert fill(ring) == [(2, 4)]
    ring.follow([])
    assert fill(ring) == []


def test_what_a_pass_leaves_out_makes_room_for_what_comes_later() -> None:
    ring = StagingOrder(4)
    ring.follow([1, 2, 3, 4, 5, 6])
    assert fill(ring) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    ring.follow([2, 4, 6])
    assert fill(ring) == [(0, 6)]
    assert [ring.take(block) for block in (2, 4, 6)] == [1, 3, 0]


def test_a_block_that_is_not_ahead_is_aimed_at() -> None:
    ring = StagingOrder(2)
    ring.follow([1, 2, 3, 4])
    fill(ring)
    assert ring.take(4) is None
    ring.aim(4)
    assert [block for _, block in fill(ring)] == [4, 1]
    assert ring.take(4) is not None


@given(st.integers(2, 5), st.lists(st.tuples(orders, st.lists(st.booleans(), max_size=20)), max_size=5))
def test_a_slot_holds_what_was_copied_to_it_until_it_is_released(
    n_slots: int, passes: list[tuple[list[int], list[bool]]]
) -> None:
    ring = StagingOrder(n_slots)
    held: dict[int, int] = {}
    used: set[int] = set()

    def copy() -> None:
        for slot, block in fill(ring):
            assert slot not in used
            held[slot] = block

    for order, skips in passes:
        ring.follow(order)
        copy()
        for block, skipped in zip(order, skips, strict=False):
            if skipped:
                continue
            slot = ring.take(block)
            if slot is None:
                ring.aim(block)
                copy()
                slot = ring.take(block)
            assert slot is not None
            assert held[slot] == block
            used = {slot}
            copy()
            used = set()
            ring.release(block)
            copy()


@pytest.mark.parametrize("n_slots", [2, 3, 4])
def test_as_many_copies_are_ahead_as_there_are_slots(n_slots: int) -> None:
    ring = StagingOrder(n_slots)
    ring.follow(range(10))
    assert len(fill(ring)) == n_slots
    ring.take(0)
    assert fill(ring) == []
    ring.release(0)
    assert len(fill(ring)) == 1
