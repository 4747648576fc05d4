"""Reading ahead: what is read, in which order, how much of it, and that it ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from engine.gguf import open_gguf
from engine.model_config import read_model_config
from engine.tiers.blocks import Block, BlockKind, in_order_of_need, weight_blocks
from engine.tiers.direct_io import DirectFiles
from engine.tiers.read_ahead import STEP_BYTES, ReadAhead
from engine.weights import ModelWeights
from tests.engine.tiers.faulty_disk import PREADV, nothing_leaks, spoil, wait_until
from tests.tiny_gguf import write_tiny_model

PLENTY = 1 << 40


class Disk:
    """Counts reads by position, and holds them up while it is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[tuple[int, int]] = []
        self.open = threading.Event()
        self.open.set()
        lock, real = threading.Lock(), os.preadv

        def preadv(descriptor: int, buffers: Sequence[memoryview], position: int, flags: int = 0) -> int:
            if flags:  # whether it is cached: never
                raise BlockingIOError
            self.open.wait(10)
            with lock:
                self.read.append((position, len(buffers[0])))
            return real(descriptor, buffers, position)

        monkeypatch.setattr(PREADV, preadv)

    @property
    def n_bytes(self) -> int:
        return sum(n_bytes for _, n_bytes in self.read)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.open.set()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelWeights, tuple[Block, ...]]:
    path: Path = tmp_path_factory.mktemp("ahead") / "tiny.gguf"
    write_tiny_model(path, tied=False)
    gguf = open_gguf(path)
    config = read_model_config(gguf)
    return ModelWeights(gguf, config), weight_blocks(gguf, config)


def is_over(ahead: ReadAhead) -> bool:
    return not any(thread.is_alive() for thread in ahead._threads)


def test_everything_is_read_once(model: tuple[ModelWeights, tuple[Block, ...]], disk: Disk) -> None:
    weights, blocks = model
    with nothing_leaks(), closing(ReadAhead(weights, blocks, PLENTY)) as ahead:
        wait_until(lambda: is_over(ahead))
    pieces = [(piece.offset, piece.n_bytes) for block in blocks for piece in block.pieces]
    vectors = [weights.gguf.tensors[name] for name in weights]
    pieces += [(each.offset, each.n_bytes) for each in vectors if len(each.shape) == 1]
    assert sorted(disk.read) == sorted(pieces)


def test_vectors_come_first_and_an_embedding_of_its_own_last(
    model: tuple[ModelWeights, tuple[Block, ...]], disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, blocks = model
    monkeypatch.setattr("engine.tiers.read_ahead._READERS", 1)
    with closing(ReadAhead(weights, blocks, PLENTY)) as ahead:
        wait_until(lambda: is_over(ahead))
    n_vectors = sum(len(weights[name].shape) == 1 for name in weights)
    in_file = [piece.offset for block in in_order_of_need(blocks) for piece in block.pieces]
    assert [position for position, _ in disk.read[n_vectors:]] == in_file
    assert in_order_of_need(blocks)[-1].kind is BlockKind.EMBEDDING


def test_what_the_plan_does_not_bring_is_left_out(
    model: tuple[ModelWeights, tuple[Block, ...]], disk: Disk
) -> None:
    weights, blocks = model
    disk.open.clear()
    with closing(ReadAhead(weights, blocks, PLENTY)) as ahead:
        ahead.only({blocks[3].index})
        disk.open.set()
        wait_until(lambda: is_over(ahead))
    unwanted = {piece.offset for block in blocks if block is not blocks[3] for piece in block.pieces}
    read = {position for position, _ in disk.read}
    # What threads had begun before they were told is read; vectors come before that.
    assert len(read & unwanted) <= 4
    assert read >= {piece.offset for piece in blocks[3].pieces}


def test_no_more_is_read_than_may_be_unused(
    model: tuple[ModelWeights, tuple[Block, ...]], disk: Disk
) -> None:
    weights, blocks = model
    largest = max(min(piece.n_bytes, STEP_BYTES) for block in blocks for piece in block.pieces)
    total = sum(block.n_bytes for block in blocks)
    room = total // 4
    with closing(ReadAhead(weights, blocks, room)) as ahead:
        wait_until(lambda: disk.n_bytes >= room)
        assert not is_over(ahead)
        assert disk.n_bytes < room + largest
        ahead.taken(2 * total)
        wait_until(lambda: is_over(ahead))
    assert disk.n_bytes >= total


def test_closing_ends_it_in_the_middle_of_the_file(
    model: tuple[ModelWeights, tuple[Block, ...]], disk: Disk
) -> None:
    weights, blocks = model
    disk.open.clear()
    with nothing_leaks():
        ahead = ReadAhead(weights, blocks, PLENTY)
        disk.open.set()
        ahead.close()
        ahead.close()
        assert is_over(ahead)


@pytest.mark.parametrize("fault", ["EIO", "cut"])
def test_a_disk_that_fails_is_told_by_who_needs_the_bytes(
    model: tuple[ModelWeights, tuple[Block, ...]], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    spoil(monkeypatch, fault)
    with nothing_leaks(), closing(ReadAhead(*model, PLENTY)) as ahead:
        wait_until(lambda: is_over(ahead))


def test_what_is_in_the_page_cache_is_not_read_again(
    model: tuple[ModelWeights, tuple[Block, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, blocks = model
    files = DirectFiles(weights.gguf.part_paths)
    files.fill(0, 0, memoryview(bytearray(weights.gguf.n_bytes)))
    if not files.cached(0, 0, weights.gguf.n_bytes):
        pytest.skip("this file system does not tell what is cached")
    files.close()
    read: list[int] = []
    monkeypatch.setattr(DirectFiles, "fill", lambda self, part, offset, into: read.append(offset))
    with closing(ReadAhead(weights, blocks, 1)) as ahead:
        wait_until(lambda: is_over(ahead))
    assert read == []
