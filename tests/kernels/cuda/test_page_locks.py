"""Copies are cut where a locked run begins or ends, and nowhere else."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cuda.page_locks import PAGE, LockedRuns, whole_pages

RUNS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=6)
"""Gap before a run, and its bytes."""


def locked(runs: list[tuple[int, int]]) -> tuple[LockedRuns, list[int]]:
    """The runs, and for every byte the run that it lies in, or 0."""
    found, owner = LockedRuns(), []
    for number, (gap, size) in enumerate(runs, start=1):
        owner += [0] * gap
        found.add(100 + len(owner), size)
        owner += [number] * size
    return found, owner + [0] * 20


@given(RUNS, st.integers(0, 30), st.integers(0, 40))
def test_parts_are_the_runs(runs: list[tuple[int, int]], first: int, n_bytes: int) -> None:
    found, owner = locked(runs)
    owner += [0] * 80
    parts = found.cut(100 + first, n_bytes)
    assert sum(part.n_bytes for part in parts) == n_bytes
    at = 0
    for part in parts:
        assert part.first == at and part.n_bytes > 0
        at += part.n_bytes
        owners = set(owner[first + part.first : first + at])
        assert len(owners) == 1 and part.locked == (owners != {0})
    for one, two in pairwise(parts):
        assert owner[first + one.first] != owner[first + two.first]


@given(RUNS)
def test_a_run_that_was_removed_is_ordinary_memory_again(runs: list[tuple[int, int]]) -> None:
    found, owner = locked(runs)
    starts = [100 + owner.index(number) for number in range(1, len(runs) + 1)]
    for start in starts[::2]:
        assert start in found
        found.remove(start)
        assert start not in found
    kept = starts[1::2]
    assert sum(part.locked for part in found.cut(0, 1000)) == len(kept)
    assert found.clear() == kept and not found.clear()


def test_what_is_locked_is_not_locked_again() -> None:
    found = LockedRuns()
    found.add(10, 10)
    for address, n_bytes in ((10, 10), (0, 11), (19, 1), (5, 30)):
        with pytest.raises(ValueError, match="already"):
            found.add(address, n_bytes)
    found.add(20, 5)
    found.add(5, 5)
    with pytest.raises(KeyError):
        found.remove(6)


@given(st.integers(0, 5 * PAGE), st.integers(0, 5 * PAGE))
def test_whole_pages_lie_inside(address: int, n_bytes: int) -> None:
    first, size = whole_pages(address, n_bytes)
    assert first % PAGE == size % PAGE == 0
    assert address <= first and (not size or first + size <= address + n_bytes)
    assert n_bytes - size < 2 * PAGE
