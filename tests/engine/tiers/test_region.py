"""Memory of our own: aligned, apart, and given back when it is said to be."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from engine.tiers.direct_io import ALIGNMENT
from engine.tiers.region import Region


def memory_in_use() -> int:
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        pytest.skip("no /proc here to look at memory")
    return int(statm.read_text().split()[1]) * mmap.PAGESIZE


def test_placements_are_aligned_and_do_not_touch_each_other() -> None:
    region = Region(6 * ALIGNMENT)
    views = [region.place(size) for size in (ALIGNMENT, 1, 2 * ALIGNMENT + 1)]
    for number, view in enumerate(views, 1):
        view[:] = number
    assert [set(view) for view in views] == [{1}, {2}, {3}]
    assert [view.ctypes.data % ALIGNMENT for view in views] == [0, 0, 0]
    assert views[0].ctypes.data % (2 << 20) == 0


def test_a_full_region_refuses() -> None:
    region = Region(2 * ALIGNMENT)
    region.place(ALIGNMENT + 1)
    with pytest.raises(ValueError, match="1 bytes do not fit a region with 0 left"):
        region.place(1)


@pytest.mark.parametrize("n_bytes", [1 << 60, 1 << 64])
def test_more_than_there_is_raises_memory_error(n_bytes: int) -> None:
    with pytest.raises(MemoryError, match=str(n_bytes)):
        Region(n_bytes)


def test_eviction_gives_memory_back_at_once_and_leaves_the_neighbours() -> None:
    size = 32 << 20
    region = Region(3 * size)
    views = [region.place(size) for _ in range(3)]
    for view in views:
        view[:] = 7
    before = memory_in_use()
    region.evict(views[1])
    assert before - memory_in_use() > size * 9 // 10
    assert not views[1].any()
    assert (views[0] == 7).all() and (views[2] == 7).all()
    views[1][:] = 8
    assert (views[1] == 8).all()


def test_only_whole_pages_of_the_view_are_evicted() -> None:
    page = mmap.PAGESIZE
    region = Region(4 * page)
    view = region.place(4 * page)
    view[:] = 7
    region.evict(view[1 : 2 * page + 1])
    assert (view[:page] == 7).all() and (view[2 * page :] == 7).all()
    assert not view[page : 2 * page].any()
    region.evict(view[3 * page : 3 * page + 1])
    assert (view[2 * page :] == 7).all()


def test_a_view_outlives_its_region() -> None:
    region = Region(ALIGNMENT)
    view = region.place(ALIGNMENT)
    del region
    view[:] = 3
    assert set(view) == {3}
