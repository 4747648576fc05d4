"""Locked memory: what the system allows and no more, and each lock undone once."""

from __future__ import annotations

from engine.tiers.direct_io import ALIGNMENT
from engine.tiers.page_locks import PageLocks
from engine.tiers.region import Region
from tests.engine.tiers.locking import Pages


def views(n: int) -> list:
    region = Region(n * ALIGNMENT)
    return [region.place(ALIGNMENT) for _ in range(n)]


def test_memory_is_locked_until_it_is_unlocked() -> None:
    pages = Pages()
    locks, (one, other) = PageLocks(pages), views(2)
    locks.lock(one)
    locks.lock(other)
    assert pages.holds(one) and pages.holds(other)
    locks.unlock(one)
    locks.unlock(one)
    assert not pages.holds(one) and pages.holds(other)
    assert locks.unlocked_bytes == 0


def test_after_one_refusal_nothing_more_is_asked_for_and_what_is_missing_is_counted() -> None:
    pages = Pages(limit=ALIGNMENT)
    locks, memory = PageLocks(pages), views(4)
    for view in memory:
        locks.lock(view)
    assert (pages.asked, pages.n_bytes, locks.unlocked_bytes) == (2, ALIGNMENT, 3 * ALIGNMENT)
    locks.unlock(memory[0])
    locks.lock(memory[0])
    assert (pages.asked, locks.unlocked_bytes) == (2, 4 * ALIGNMENT)
    for view in memory:
        locks.unlock(view)
    assert (pages.n_bytes, locks.unlocked_bytes) == (0, 0)


def test_without_a_locker_nothing_is_locked_and_nothing_missed() -> None:
    locks, (view,) = PageLocks(), views(1)
    locks.lock(view)
    assert locks.unlocked_bytes == 0
    locks.unlock(view)
    assert locks.unlocked_bytes == 0
