"""The staging ring: the file's bytes in every slot, whatever the order of use and whatever the disk does."""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cancel import CancelToken
from engine.errors import CancelledError, StreamError
from engine.tiers.blocks import Block, slot_bytes_for
from engine.tiers.direct_io import ALIGNMENT, DirectFiles
from engine.tiers.page_locks import PageLocks
from engine.tiers.streamer import Streamer
from tests.engine.tiers.faulty_disk import PREADV, Gate, block, piece, wait_until, write_noise
from tests.engine.tiers.faulty_disk import gate as gate
from tests.engine.tiers.locking import Pages

N_BYTES = 60 * ALIGNMENT + 777
GO_ON = CancelToken()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("streamer")
    paths = [folder / "a.gguf", folder / "b.gguf"]
    for seed, path in enumerate(paths):
        write_noise(path, N_BYTES, seed)
    return paths


@contextmanager
def streaming(
    paths: Sequence[Path], blocks: Sequence[Block], slots: int, used: Set[int] | None = None, **options: int
) -> Iterator[Streamer]:
    files = DirectFiles(paths)
    slot_bytes = max(slot_bytes_for(block) for block in blocks)
    streamer = Streamer(files, blocks, slots=slots, slot_bytes=slot_bytes, used=used, **options)
    try:
        yield streamer
    finally:
        streamer.close()
        files.close()
        assert not any(thread.is_alive() for thread in streamer._threads)


def contents(paths: Sequence[Path], block: Block) -> list[bytes]:
    return [
        paths[piece.part].read_bytes()[piece.offset : piece.offset + piece.n_bytes] for piece in block.pieces
    ]


def check(streamer: Streamer, paths: Sequence[Path], block: Block) -> None:
    """Acquire the block, compare it with the file and release it."""
    assert [view.tobytes() for view in streamer.acquire(block, GO_ON)] == contents(paths, block)
    streamer.release(block)


def pages(*sizes: int) -> list[Block]:
    """Blocks of so many pages, one after another in the first file."""
    starts = np.cumsum([0, *sizes]).tolist()
    return [block(i, piece(starts[i] * ALIGNMENT, size * ALIGNMENT)) for i, size in enumerate(sizes)]


def all_ready(streamer: Streamer) -> bool:
    return all(progress == 1.0 for _, progress in streamer.in_flight)


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Run `work` in a thread; its result or error comes into the list."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:  # noqa: BLE001  looked at by the test
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


# -- the bytes


@st.composite
def some_blocks(draw: st.DrawFn) -> list[Block]:
    """Up to six blocks, very small and large ones, of pieces from both files, in any order."""
    pieces = []
    for part in range(2):
        cuts = sorted(draw(st.sets(st.integers(0, N_BYTES), min_size=4, max_size=16)))
        pieces += [piece(a, b - a, part) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    shuffled = draw(st.permutations(pieces))
    n_blocks = draw(st.integers(1, min(6, len(shuffled))))
    return [block(10 + i, *shuffled[i::n_blocks]) for i in range(n_blocks)]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_order_of_use_gives_the_bytes_of_the_file(paths: list[Path], data: st.DataObject) -> None:
    blocks = data.draw(some_blocks())
    slots = data.draw(st.integers(1, 5))
    held_at_most = data.draw(st.integers(0, slots - 1))
    depth, request_pages = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 20))
    held: deque[tuple[Block, list[np.ndarray]]] = deque()
    position = 0
    with streaming(paths, blocks, slots, depth=depth, request_bytes=request_pages * ALIGNMENT) as streamer:
        # Mostly the next one, now and then another: a pass that was cut short or begins anew.
        for skip in data.draw(st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, -1]), max_size=20)):
            position = (position + skip) % len(blocks)
            wanted = blocks[position]
            if all(wanted is not block for block, _ in held):
                held.append((wanted, streamer.acquire(wanted, GO_ON)))
            position += 1
            while len(held) > held_at_most:
                block, views = held.popleft()
                assert [view.tobytes() for view in views] == contents(paths, block)
                streamer.release(block)


def test_two_slots_take_blocks_of_very_different_size(paths: list[Path]) -> None:
    blocks = pages(1, 40, 1, 2, 15)
    with streaming(paths, blocks, 2, request_bytes=3 * ALIGNMENT) as streamer:
        for _ in range(3):
            for wanted in blocks:
                check(streamer, paths, wanted)


def test_slots_are_locked_once_and_until_it_is_closed(paths: list[Path]) -> None:
    system, blocks = Pages(), pages(1, 3, 2)
    files = DirectFiles(paths)
    streamer = Streamer(files, blocks, slots=2, slot_bytes=4 * ALIGNMENT, locks=PageLocks(system))
    for _ in range(2):
        for wanted in blocks:
            assert all(system.holds(view) for view in streamer.acquire(wanted, GO_ON))
            streamer.release(wanted)
    assert (system.asked, system.n_bytes) == (2, 8 * ALIGNMENT)
    for _ in range(2):
        streamer.close()
        assert system.locked == {}
    files.close()


def test_views_cannot_be_written(paths: list[Path]) -> None:
    (only,) = pages(1)
    with streaming(paths, [only], 2) as streamer:
        (view,) = streamer.acquire(only, GO_ON)
        assert view.ndim == 1 and not view.flags.writeable


# -- reading ahead


def test_a_pass_reads_every_block_once(paths: list[Path]) -> None:
    blocks = pages(1, 2, 3, 4, 5)
    with streaming(paths, blocks, 3) as streamer:
        for _ in range(4):
            for wanted in blocks:
                check(streamer, paths, wanted)
        wait_until(lambda: all_ready(streamer))
        stats = streamer.stats
    # Four passes, and the three slots hold the beginning of the fifth.
    assert stats.read_bytes == (4 * 15 + 1 + 2 + 3) * ALIGNMENT
    assert (stats.blocks, stats.dropped_blocks) == (20, 0)
    assert stats.read_s > 0


def test_requests_of_several_blocks_and_of_the_next_pass_are_under_way_together(
    paths: list[Path], gate: Gate
) -> None:
    blocks = pages(2, 1)
    with streaming(paths, blocks, 3, depth=4, request_bytes=ALIGNMENT) as streamer:
        wait_until(lambda: len(gate.started) == 4)
        assert sorted(gate.started) == [0, 0, ALIGNMENT, 2 * ALIGNMENT]
        assert streamer.in_flight == ((0, 0.0), (1, 0.0), (0, 0.0))
        gate.open()


def test_a_full_ring_waits_for_a_slot(paths: list[Path], gate: Gate) -> None:
    gate.open()
    blocks = pages(1, 1, 1, 1)
    with streaming(paths, blocks, 2) as streamer:
        streamer.acquire(blocks[0], GO_ON)
        wait_until(lambda: streamer.in_flight == ((1, 1.0),))
        assert sorted(gate.started) == [0, ALIGNMENT]
        streamer.release(blocks[0])
        wait_until(lambda: streamer.in_flight == ((1, 1.0), (2, 1.0)))
        assert sorted(gate.started) == [0, ALIGNMENT, 2 * ALIGNMENT]


def test_progress_counts_the_bytes_that_are_there(paths: list[Path], gate: Gate) -> None:
    gate.is_held = lambda position: position == 3 * ALIGNMENT
    with streaming(paths, pages(4), 1, depth=1, request_bytes=ALIGNMENT) as streamer:
        wait_until(lambda: streamer.in_flight == ((0, 0.75),))
        gate.open()
        wait_until(lambda: streamer.in_flight == ((0, 1.0),))


def test_a_pass_without_its_last_block_drops_only_that(paths: list[Path]) -> None:
    blocks = pages(1, 2, 3)
    with streaming(paths, blocks, 3) as streamer:
        check(streamer, paths, blocks[0])
        check(streamer, paths, blocks[1])
        wait_until(lambda: streamer.in_flight == ((2, 1.0), (0, 1.0), (1, 1.0)))
        check(streamer, paths, blocks[0])
        wait_until(lambda: streamer.in_flight == ((1, 1.0), (2, 1.0), (0, 1.0)))
        stats = streamer.stats
    assert stats.dropped_blocks == 1
    assert stats.read_bytes == (1 + 2 + 3 + 1 + 2 + 3 + 1) * ALIGNMENT


def test_a_block_out_of_order_is_read_first(paths: list[Path]) -> None:
    blocks = pages(*[1] * 9)
    with streaming(paths, blocks, 2) as streamer:
        wait_until(lambda: streamer.in_flight == ((0, 1.0), (1, 1.0)))
        check(streamer, paths, blocks[6])
        wait_until(lambda: streamer.in_flight == ((7, 1.0), (8, 1.0)))
        assert streamer.stats.dropped_blocks == 2


def test_a_slot_is_not_filled_again_while_a_dropped_block_is_still_being_read_into_it(
    paths: list[Path], gate: Gate
) -> None:
    blocks = pages(1, 1, 1)
    with streaming(paths, blocks, 2, depth=3) as streamer:
        wait_until(lambda: sorted(gate.started) == [0, ALIGNMENT])
        thread, results = in_thread(lambda: [view.tobytes() for view in streamer.acquire(blocks[2], GO_ON)])
        wait_until(lambda: streamer.in_flight == ())
        # The third thread is idle, and the block is wanted; only the slots are not free.
        assert streamer.stats.dropped_blocks == 2
        assert len(gate.started) == 2 and thread.is_alive()
        gate.open()
        thread.join(10)
        assert results == [contents(paths, blocks[2])]


def test_a_wait_is_ended_by_the_block_and_not_by_a_timer(
    paths: list[Path], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.tiers.streamer._CANCEL_POLL_S", 60)
    (only,) = pages(1)
    with streaming(paths, [only], 1) as streamer:
        thread, results = in_thread(lambda: len(streamer.acquire(only, GO_ON)))
        wait_until(lambda: bool(streamer._arrived._waiters))
        gate.open()
        thread.join(10)
        assert results == [1]


# -- passes that leave blocks out


def test_only_blocks_that_are_used_are_read(paths: list[Path]) -> None:
    blocks = pages(1, 2, 3, 4, 5)
    with streaming(paths, blocks, 2, used={1, 4}) as streamer:
        wait_until(lambda: streamer.in_flight == ((1, 1.0), (4, 1.0)))
        for _ in range(3):
            for wanted in (blocks[1], blocks[4]):
                check(streamer, paths, wanted)
        wait_until(lambda: streamer.in_flight == ((1, 1.0), (4, 1.0)))
        assert streamer.stats.read_bytes == 4 * (2 + 5) * ALIGNMENT
        assert streamer.stats.dropped_blocks == 0


def test_of_what_is_ahead_that_which_comes_next_is_kept(paths: list[Path]) -> None:
    blocks = pages(1, 1, 1, 1, 1)
    with streaming(paths, blocks, 3) as streamer:
        wait_until(lambda: streamer.in_flight == ((0, 1.0), (1, 1.0), (2, 1.0)))
        streamer.follow({1, 2, 4})
        wait_until(lambda: streamer.in_flight == ((1, 1.0), (2, 1.0), (4, 1.0)))
        assert streamer.stats.read_bytes == 4 * ALIGNMENT
        assert streamer.stats.dropped_blocks == 1
        streamer.follow({0, 1, 2, 4})  # block 0 comes first again
        wait_until(lambda: streamer.in_flight == ((0, 1.0), (1, 1.0), (2, 1.0)))
        streamer.follow({0, 1, 2, 4})
        assert streamer.stats.dropped_blocks == 4


def test_in_the_middle_of_a_pass_reading_goes_on_from_there(paths: list[Path]) -> None:
    blocks = pages(1, 1, 1, 1)
    with streaming(paths, blocks, 2) as streamer:
        check(streamer, paths, blocks[0])
        wait_until(lambda: streamer.in_flight == ((1, 1.0), (2, 1.0)))
        streamer.follow({0, 2, 3}, start=1)
        wait_until(lambda: streamer.in_flight == ((2, 1.0), (3, 1.0)))
        streamer.follow({0, 2}, start=4)
        wait_until(lambda: streamer.in_flight == ((0, 1.0), (2, 1.0)))


def test_where_nothing_is_used_nothing_is_read_and_all_can_be_had(paths: list[Path]) -> None:
    blocks = pages(1, 2, 3)
    with streaming(paths, blocks, 2, used=set()) as streamer:
        for wanted in (blocks[2], blocks[0], blocks[0]):
            check(streamer, paths, wanted)
        assert streamer.in_flight == ()
        assert streamer.stats.read_bytes == 5 * ALIGNMENT
        streamer.follow({1})
        check(streamer, paths, blocks[1])
        streamer.follow(set())
        assert streamer.in_flight == ()


def test_a_slot_that_is_still_read_into_is_not_given_to_the_new_order(paths: list[Path], gate: Gate) -> None:
    blocks = pages(1, 1, 1)
    with streaming(paths, blocks, 2, depth=3) as streamer:
        wait_until(lambda: sorted(gate.started) == [0, ALIGNMENT])
        streamer.follow({2})
        assert streamer.in_flight == ()
        assert len(gate.started) == 2
        gate.open()
        check(streamer, paths, blocks[2])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_passes_with_any_sets_in_turn_get_the_bytes_of_the_file(
    paths: list[Path], data: st.DataObject
) -> None:
    blocks = data.draw(some_blocks())
    slots, depth = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    everything = [block.index for block in blocks]
    with streaming(paths, blocks, slots, depth=depth, request_bytes=3 * ALIGNMENT) as streamer:
        for used in data.draw(st.lists(st.frozensets(st.sampled_from(everything)), max_size=8)):
            streamer.follow(used)
            # Mostly what was said, to the end; now and then less, or something else, too.
            other = data.draw(st.none() | st.frozensets(st.sampled_from(everything)))
            for wanted in blocks:
                if wanted.index in (used if other is None else other):
                    check(streamer, paths, wanted)
            assert {index for index, _ in streamer.in_flight} <= used


# -- faults


def failing_at(monkeypatch: pytest.MonkeyPatch, bad: set[int]) -> None:
    """Reads that begin at one of these bytes fail."""
    real = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        if position in bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, buffers, position)

    monkeypatch.setattr(PREADV, preadv)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_a_read_error_is_raised_for_its_block_and_tried_again(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    blocks = pages(2, 3, 2)
    bad = {3 * ALIGNMENT}
    failing_at(monkeypatch, bad)
    with streaming(paths, blocks, slots, depth=2, request_bytes=ALIGNMENT) as streamer:
        for _ in range(2):
            check(streamer, paths, blocks[0])
            with pytest.raises(StreamError, match=r"a\.gguf: reading at byte 12288 failed \(Input/output"):
                streamer.acquire(blocks[1], GO_ON)
        check(streamer, paths, blocks[2])
        bad.clear()
        for wanted in (blocks[1], blocks[2], *blocks, *blocks):
            check(streamer, paths, wanted)


def test_the_rest_of_a_block_that_failed_is_not_read(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    gate.open()
    failing_at(monkeypatch, {0})
    with streaming(paths, pages(5, 1), 2, depth=1, request_bytes=ALIGNMENT) as streamer:
        wait_until(lambda: streamer.in_flight == ((0, 0.0), (1, 1.0)))
        assert gate.started == [5 * ALIGNMENT]


def test_an_error_that_nobody_waited_for_and_that_has_passed_is_not_raised(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = pages(1, 1, 1)
    bad = {ALIGNMENT}
    failing_at(monkeypatch, bad)
    with streaming(paths, blocks, 3) as streamer:
        wait_until(lambda: streamer._ahead[1].error is not None)
        bad.clear()
        for wanted in blocks:
            check(streamer, paths, wanted)


def test_an_unforeseen_error_of_a_disk_thread_reaches_the_caller(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (only,) = pages(1)
    with monkeypatch.context() as patched:
        patched.setattr(DirectFiles, "read", lambda *_: 1 // 0)  # no StreamError
        with streaming(paths, [only], 1) as streamer, pytest.raises(ZeroDivisionError):
            streamer.acquire(only, GO_ON)


def test_a_file_that_is_cut_short_while_it_is_streamed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_noise(path, 8 * ALIGNMENT)
    blocks = pages(2, 2, 2, 2)
    with streaming([path], blocks, 2) as streamer:
        check(streamer, [path], blocks[0])
        wait_until(lambda: streamer.in_flight == ((1, 1.0), (2, 1.0)))
        os.truncate(path, 5 * ALIGNMENT)
        streamer.acquire(blocks[1], GO_ON)
        streamer.release(blocks[1])
        streamer.acquire(blocks[2], GO_ON)  # read before
        streamer.release(blocks[2])
        with pytest.raises(StreamError, match=r"model\.gguf was cut short .* byte 24576 is missing"):
            streamer.acquire(blocks[3], GO_ON)
        check(streamer, [path], blocks[0])


def test_short_reads_change_nothing(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    data = paths[0].read_bytes()

    def preadv(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        some = data[position : position + min(5001, len(buffers[0]))]
        buffers[0][: len(some)] = some
        return len(some)

    monkeypatch.setattr(PREADV, preadv)
    blocks = [block(0, piece(100, 30_000)), block(1, piece(N_BYTES - 9000, 9000))]
    with streaming(paths, blocks, 2, request_bytes=2 * ALIGNMENT) as streamer:
        for wanted in blocks * 2:
            check(streamer, paths, wanted)


# -- cancelling and closing


def test_a_cancel_ends_the_wait_and_the_block_can_be_had_later(paths: list[Path], gate: Gate) -> None:
    blocks = pages(1, 1)
    with streaming(paths, blocks, 2) as streamer:
        cancel = CancelToken()
        thread, results = in_thread(lambda: streamer.acquire(blocks[0], cancel))
        wait_until(lambda: len(gate.started) == 2)
        assert thread.is_alive()
        cancel.cancel()
        thread.join(10)
        assert isinstance(results[0], CancelledError)
        assert streamer.stats.stall_s > 0
        gate.open()
        check(streamer, paths, blocks[0])
        assert streamer.stats.blocks == 1


def test_closing_waits_for_the_reads_that_are_under_way(paths: list[Path], gate: Gate) -> None:
    blocks = pages(8, 8)
    with streaming(paths, blocks, 2, depth=2, request_bytes=ALIGNMENT) as streamer:
        wait_until(lambda: len(gate.started) == 2)
        closing, _ = in_thread(streamer.close)
        wait_until(lambda: streamer._closed)
        assert closing.is_alive()
        gate.open()
        closing.join(10)
        assert not any(thread.is_alive() for thread in streamer._threads)
        assert len(gate.started) == 2


def test_closing_ends_a_wait_and_nothing_can_be_acquired_afterwards(paths: list[Path], gate: Gate) -> None:
    blocks = pages(1, 1)
    with streaming(paths, blocks, 2) as streamer:
        thread, results = in_thread(lambda: streamer.acquire(blocks[0], GO_ON))
        wait_until(lambda: len(gate.started) == 2)
        closing, _ = in_thread(streamer.close)
        thread.join(10)
        assert isinstance(results[0], CancelledError)
        gate.open()
        closing.join(10)
        with pytest.raises(CancelledError):
            streamer.acquire(blocks[0], GO_ON)
        streamer.close()


def test_closing_gives_the_memory_back(paths: list[Path]) -> None:
    (only,) = pages(40)
    with streaming(paths, [only], 2) as streamer:
        (view,) = streamer.acquire(only, GO_ON)
        assert view.any()
        wait_until(lambda: all_ready(streamer))
        streamer.close()
        assert not view.any()


# -- wrong use


def test_more_blocks_than_slots_at_a_time_are_refused_rather_than_waited_for(paths: list[Path]) -> None:
    blocks = pages(1, 1, 1)
    with streaming(paths, blocks, 2) as streamer:
        streamer.acquire(blocks[0], GO_ON)
        with pytest.raises(RuntimeError, match=r"blk\.0 feed_forward is wanted while it"):
            streamer.acquire(blocks[0], GO_ON)
        streamer.acquire(blocks[1], GO_ON)
        with pytest.raises(RuntimeError, match=r"blk\.2 feed_forward is wanted while it or all slots"):
            streamer.acquire(blocks[2], GO_ON)
        streamer.release(blocks[0])
        check(streamer, paths, blocks[2])


@pytest.mark.parametrize(
    ("slot_bytes", "request_bytes"), [(ALIGNMENT, 4 << 20), (9000, 4 << 20), (1 << 20, 5000)]
)
def test_sizes_that_cannot_work_are_refused(paths: list[Path], slot_bytes: int, request_bytes: int) -> None:
    files = DirectFiles(paths)
    with pytest.raises(ValueError, match="multiples of 4096"):
        Streamer(files, pages(2), slots=2, slot_bytes=slot_bytes, request_bytes=request_bytes)
    files.close()
