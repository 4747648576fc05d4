"""Blocks read in the background: every byte once and in its place, whatever slots, disk and caller do."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import StreamError
from engine.tiers import loader as loader_module
from engine.tiers.blocks import Block, BlockKind, Piece
from engine.tiers.direct_io import DirectFiles
from engine.tiers.loader import Arrival, Loader, slot_bytes
from kernels.quant_types import QuantType
from tests.engine.tiers.faulty_disk import Gate, nothing_leaks, spoil, wait_until, write_noise
from tests.engine.tiers.faulty_disk import gate as gate

N_BYTES = 300_000
ROW = 100


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("loader")
    paths = [folder / "a.gguf", folder / "b.gguf"]
    for seed, path in enumerate(paths):
        write_noise(path, N_BYTES, seed)
    return paths


def rows(offset: int, n_rows: int, part: int = 0, one_row: int = ROW) -> Piece:
    return Piece("t", part, offset, n_rows * one_row, QuantType.F32, 0, n_rows, one_row // 4)


def block_of(index: int, *pieces: Piece) -> Block:
    return Block(index, BlockKind.FEED_FORWARD, index, pieces)


def some(n: int, n_rows: int = 40) -> list[Block]:
    """Blocks of two pieces, one in each file."""
    return [block_of(i, rows(i * 7001 + 3, n_rows), rows(i * 6007 + 1, n_rows // 2, 1)) for i in range(n)]


def memory_for(block: Block) -> list[np.ndarray]:
    return [np.zeros(piece.n_bytes, np.uint8) for piece in block.pieces]


def contents(paths: Sequence[Path], block: Block) -> list[bytes]:
    return [paths[p.part].read_bytes()[p.offset : p.offset + p.n_bytes] for p in block.pieces]


@contextmanager
def runs_of(n_bytes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loader_module, "RUN_BYTES", n_bytes)
        yield


@contextmanager
def loading(
    paths: Sequence[Path], slots: int = 3, readers: int = 2, slot_size: int = 1000
) -> Iterator[Loader]:
    files = DirectFiles(paths)
    loader = Loader(files, [np.zeros(slot_size, np.uint8) for _ in range(slots)], readers)
    try:
        yield loader
    finally:
        loader.close()
        files.close()
        assert not any(thread.is_alive() for thread in loader._threads)


class Taken:
    """Takes what arrives and puts the bytes of slots where they belong."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.arrivals: list[Arrival] = []
        self.memory: dict[int, list[np.ndarray]] = {}
        self.left: dict[int, int] = defaultdict(int)

    def ask(self, block: Block, through_slots: bool) -> None:
        self.memory[block.index] = memory_for(block)
        self.left[block.index] = block.n_bytes
        self.loader.ask(block, None if through_slots else self.memory[block.index])

    def next(self, timeout: float = 10) -> Arrival | None:
        arrival = self.loader.take(timeout)
        if arrival is None:
            return None
        self.arrivals.append(arrival)
        assert (arrival.data is None) == (arrival.slot is None)
        assert arrival.error is None or arrival.slot is None
        if arrival.data is not None and arrival.slot is not None:
            one_row = (
                arrival.block.pieces[arrival.piece].n_bytes // arrival.block.pieces[arrival.piece].n_rows
            )
            start = arrival.first_row * one_row
            assert arrival.data.size == arrival.n_bytes == arrival.n_rows * one_row
            self.memory[arrival.block.index][arrival.piece][start : start + arrival.n_bytes] = arrival.data
            arrival.data[:] = 0xEE  # who reads it later sees that
            self.loader.free(arrival.slot)
        if arrival.error is None:
            self.left[arrival.block.index] -= arrival.n_bytes
        return arrival

    def all(self) -> None:
        while self.loader.pending:
            assert self.next() is not None, "what is pending comes"

    def bytes_of(self, block: Block) -> list[bytes]:
        return [memory.tobytes() for memory in self.memory[block.index]]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.booleans(), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([1, ROW, 250, 1000, 100_000]),
    st.sampled_from([ROW, 333, 5000]),
)
def test_every_byte_comes_once_and_into_its_place(
    paths: list[Path], ways: list[bool], slots: int, readers: int, run_bytes: int, slot_size: int
) -> None:
    blocks = some(len(ways))
    with runs_of(run_bytes), loading(paths, slots, readers, slot_size) as loader:
        taken = Taken(loader)
        for block, through_slots in zip(blocks, ways, strict=True):
            taken.ask(block, through_slots)
        taken.all()
        assert loader.take(0) is None
        assert set(taken.left.values()) == {0}
        for block in blocks:
            assert taken.bytes_of(block) == contents(paths, block)
        assert all(arrival.n_bytes <= max(run_bytes, ROW) for arrival in taken.arrivals)


def test_blocks_may_be_asked_for_at_any_time_and_again(paths: list[Path]) -> None:
    blocks = some(6)
    with loading(paths) as loader:
        taken = Taken(loader)
        for through_slots in (True, False, True):
            for block in blocks:
                taken.ask(block, through_slots)
                taken.next()
            taken.all()
            assert all(taken.bytes_of(block) == contents(paths, block) for block in blocks)


def test_one_reader_hands_out_in_the_order_of_asking(paths: list[Path]) -> None:
    blocks = some(8)
    with loading(paths, slots=2, readers=1) as loader:
        taken = Taken(loader)
        for block in blocks:
            taken.ask(block, through_slots=block.index % 2 == 0)
        taken.all()
    slotted = [arrival.block.index for arrival in taken.arrivals if arrival.slot is not None]
    direct = [arrival.block.index for arrival in taken.arrivals if arrival.slot is None]
    assert slotted == sorted(slotted)
    assert direct == sorted(direct)


def test_with_slots_enough_both_ways_are_one_order(paths: list[Path], gate: Gate) -> None:
    blocks = some(6)
    with loading(paths, slots=40, readers=1) as loader:
        taken = Taken(loader)
        for block in blocks:
            taken.ask(block, through_slots=block.index % 2 == 0)
        gate.open()
        taken.all()
    order = [arrival.block.index for arrival in taken.arrivals]
    assert order == sorted(order)


def test_a_block_for_memory_does_not_wait_for_slots(paths: list[Path]) -> None:
    first, second = some(2)
    with loading(paths, slots=1) as loader:
        taken = Taken(loader)
        loader.ask(first, None)
        taken.ask(second, through_slots=False)
        while taken.left[second.index]:
            arrival = loader.take(10)
            assert arrival is not None
            if arrival.block is second:  # the only slot, with rows of the first, is never given back
                taken.left[second.index] -= arrival.n_bytes
        assert taken.bytes_of(second) == contents(paths, second)


def test_all_readers_work_at_one_block(paths: list[Path], gate: Gate) -> None:
    (block,) = some(1)
    with runs_of(ROW), loading(paths, readers=4) as loader:
        taken = Taken(loader)
        taken.ask(block, through_slots=False)
        wait_until(lambda: len(gate.started) == 4)
        gate.open()
        taken.all()
        assert taken.bytes_of(block) == contents(paths, block)


def test_nothing_is_waited_for_when_nothing_comes(paths: list[Path], gate: Gate) -> None:
    (block,) = some(1)
    with loading(paths) as loader:
        assert loader.take(0) is None
        assert loader.pending == 0
        loader.ask(block, None)
        assert loader.take(0.01) is None
        assert loader.pending > 0
        gate.open()


# -- forgetting


def test_what_was_forgotten_does_not_arrive(paths: list[Path], gate: Gate) -> None:
    blocks = some(6)
    kept, dropped = blocks[:3], blocks[3:]
    with loading(paths, slots=2, readers=2) as loader:
        taken = Taken(loader)
        for block in [*dropped, *kept]:  # the dropped ones are being read
            taken.ask(block, through_slots=True)
        wait_until(lambda: len(gate.started) == 2)
        loader.forget(frozenset(block.index for block in dropped))
        gate.open()
        taken.all()
        assert {arrival.block.index for arrival in taken.arrivals} == {block.index for block in kept}
        assert all(taken.bytes_of(block) == contents(paths, block) for block in kept)
        taken.ask(dropped[0], through_slots=True)  # all slots are there again
        taken.all()
        assert taken.bytes_of(dropped[0]) == contents(paths, dropped[0])


def test_what_has_arrived_may_be_forgotten_too_and_gives_its_slots_back(paths: list[Path]) -> None:
    first, second = some(2)
    with runs_of(1000), loading(paths, slots=2) as loader:
        taken = Taken(loader)
        taken.ask(first, through_slots=True)
        wait_until(lambda: len(loader._arrived) == 2)
        loader.forget(frozenset({first.index}))
        assert loader.pending == 0
        taken.ask(second, through_slots=True)
        taken.all()
        assert {arrival.block.index for arrival in taken.arrivals} == {second.index}
        assert taken.bytes_of(second) == contents(paths, second)


def test_forgotten_memory_is_not_written_to_afterwards(paths: list[Path], gate: Gate) -> None:
    (block,) = some(1)
    with runs_of(ROW), loading(paths, readers=3) as loader:
        memory = memory_for(block)
        loader.ask(block, memory)
        wait_until(lambda: len(gate.started) == 3)
        opener = threading.Timer(0.05, gate.open)
        opener.start()
        loader.forget(frozenset({block.index}))  # waits for the three
        opener.join()
        before = [piece.tobytes() for piece in memory]
        assert sum(map(np.count_nonzero, memory)) > 2 * ROW
        time.sleep(0.05)
        assert [piece.tobytes() for piece in memory] == before
        assert loader.pending == 0


@pytest.mark.parametrize("through_slots", [True, False])
def test_forgetting_and_asking_again_at_once_gives_the_whole_block(
    paths: list[Path], through_slots: bool
) -> None:
    blocks = some(5)
    with runs_of(300), loading(paths, slots=2, readers=3) as loader:
        taken = Taken(loader)
        for turn in range(20):
            for block in blocks:
                taken.ask(block, through_slots)
            for _ in range(turn):
                taken.next()
            loader.forget(frozenset(block.index for block in blocks))
        for block in blocks:
            taken.ask(block, through_slots)
        taken.all()
        assert set(taken.left.values()) == {0}
        assert all(taken.bytes_of(block) == contents(paths, block) for block in blocks)


# -- faults


@pytest.mark.parametrize("through_slots", [True, False])
@pytest.mark.parametrize(("fault", "said"), [("EIO", "Input/output error"), ("cut", "cut short")])
def test_errors_arrive_in_the_place_of_rows_and_the_loader_goes_on(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch, fault: str, said: str, through_slots: bool
) -> None:
    blocks = some(4)
    with runs_of(500), loading(paths, slots=2) as loader:
        taken = Taken(loader)
        with monkeypatch.context() as patched:
            spoil(patched, fault, after=3)
            for block in blocks:
                taken.ask(block, through_slots)
            taken.all()
        errors = [arrival.error for arrival in taken.arrivals if arrival.error is not None]
        assert len(errors) == len(taken.arrivals) - 3
        assert all(isinstance(error, StreamError) and said in str(error) for error in errors)
        assert "\n" not in str(errors[0])
        for block in blocks:
            taken.ask(block, through_slots)
        taken.all()
        assert all(taken.bytes_of(block) == contents(paths, block) for block in blocks)


def test_a_row_that_fits_no_slot_is_refused_and_nothing_is_asked_for(paths: list[Path]) -> None:
    block = block_of(0, rows(0, 2), rows(0, 2, one_row=2000))
    with loading(paths, slot_size=1000) as loader:
        with pytest.raises(ValueError, match="a row of 2000 bytes, a slot of 1000"):
            loader.ask(block, None)
        assert loader.pending == 0


def test_closing_drops_what_was_not_read_and_leaves_nothing(paths: list[Path]) -> None:
    def use() -> None:
        with loading(paths, slots=1) as loader:
            for block in some(6):
                loader.ask(block, None)
            assert loader.take(10) is not None
            loader.close()
            assert loader.pending == 0
            assert loader.take(0) is None

    with nothing_leaks():
        use()


def test_what_is_being_read_while_it_closes_does_not_arrive(paths: list[Path], gate: Gate) -> None:
    with loading(paths) as loader:
        loader.ask(some(1)[0], None)
        wait_until(lambda: len(gate.started) == 2)
        opener = threading.Timer(0.02, gate.open)
        opener.start()
        loader.close()
        opener.join()
        assert loader.take(0) is None
        assert loader.pending == 0


def test_slots_hold_a_run_of_any_block() -> None:
    assert slot_bytes([]) == 0
    assert slot_bytes(some(3)) == 40 * ROW
    with runs_of(250):
        assert slot_bytes(some(3)) == 250
    with runs_of(10):
        assert slot_bytes(some(3)) == ROW
