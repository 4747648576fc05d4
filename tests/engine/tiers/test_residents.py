"""Blocks that stay: reserved, filled, here, and given back, each in pages of its own."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from engine.errors import StreamError
from engine.tiers.blocks import Block, BlockKind
from engine.tiers.direct_io import DirectFiles
from engine.tiers.page_locks import PageLocks
from engine.tiers.residents import Residents, follows
from tests.engine.tiers.faulty_disk import block, piece, spoil, write_noise
from tests.engine.tiers.locking import Pages

ODD = 3 * 4096 + 777
BLOCKS = [
    block(0, piece(0, ODD), piece(ODD, 100)),
    block(1, piece(2 * ODD, 5)),
    block(2, piece(3 * ODD, ODD)),
    Block(3, BlockKind.HEAD, None, (piece(0, ODD),), 0),
    Block(4, BlockKind.HEAD, None, (piece(ODD, ODD),), 1),
]
ALL = frozenset(range(len(BLOCKS)))


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return write_noise(tmp_path / "a", 5 * ODD)


@pytest.fixture
def system() -> Pages:
    return Pages()


@pytest.fixture
def residents(tmp_path: Path, content: bytes, system: Pages) -> Iterator[Residents]:
    with closing(DirectFiles([tmp_path / "a"])) as files:
        yield Residents(files, BLOCKS, PageLocks(system))


def bytes_of(content: bytes, index: int) -> list[bytes]:
    return [content[p.offset : p.offset + p.n_bytes] for p in BLOCKS[index].pieces]


def test_blocks_come_and_those_of_layers_are_locked(
    residents: Residents, content: bytes, system: Pages
) -> None:
    arrived = list(residents.bring(ALL))
    assert [(b.index, done) for b, done in arrived if done == b.n_bytes] == [
        (b.index, b.n_bytes) for b in BLOCKS
    ]
    for index in ALL:
        views = residents.get(index)
        assert views is not None
        assert [view.tobytes() for view in views] == bytes_of(content, index)
        assert all(system.holds(view) for view in views) == (BLOCKS[index].layer is not None)
    head = residents.get(3), residents.get(4)
    assert head[0] is not None and head[1] is not None and follows(head[0][0], head[1][0])
    residents.clear()
    assert (residents.indices, system.locked) == (frozenset(), {})


def test_memory_that_somebody_else_fills_is_here_once_it_is_said_to_be(residents: Residents) -> None:
    residents.reserve(frozenset({0, 2}))
    views = residents.reserved[0]
    assert [view.size for view in views] == [ODD, 100]
    assert residents.get(0) is None
    for view in views:
        view[:] = 9
    residents.settle(0)
    assert residents.get(0) is views
    assert not any(view.flags.writeable for view in views)
    assert residents.reserved.keys() == {2}


def test_what_is_given_up_leaves_its_neighbours(residents: Residents, system: Pages) -> None:
    residents.reserve(ALL)
    views = {index: pieces[0] for index, pieces in residents.reserved.items()}
    for view in views.values():
        view[:] = 9
    residents.settle(1)
    residents.withdraw(0)
    residents.evict(1)
    assert not views[0].any()
    assert not views[1].any()
    assert all((views[index] == 9).all() for index in (2, 3, 4))
    assert system.locked == {}
    residents.withdraw(3)
    assert (views[4] == 9).all(), "the page between two parts of the head stays"
    assert np.count_nonzero(views[3]) < mmap.PAGESIZE


@pytest.mark.parametrize("after", [0, 2])
def test_a_disk_that_fails_gives_back_what_has_not_arrived(
    residents: Residents, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    spoil(monkeypatch, "EIO", after)
    with pytest.raises(StreamError):
        list(residents.bring(ALL))
    assert residents.reserved == {}
    assert len(residents.indices) == after // 2


def test_reading_that_is_left_in_the_middle_does_too(residents: Residents) -> None:
    with closing(residents.bring(ALL)) as blocks:
        for _, done in blocks:
            if done:
                break
    assert residents.reserved == {}
    assert residents.indices == frozenset(), "only the first of two pieces had come"
