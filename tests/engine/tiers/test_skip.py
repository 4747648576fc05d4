"""Blocks that passes leave out are not read, their memory goes to others, and no logit changes for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cancel import CancelToken
from engine.config import Precision
from engine.errors import CancelledError, StreamError
from engine.events import TierSnapshot
from engine.model import Transformer
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.tiers.blocks import Block, BlockKind, slot_bytes_for
from engine.tiers.direct_io import ALIGNMENT
from engine.tiers.planner import plan
from engine.tiers.rates import Rates
from engine.tiers.store import TieredWeights
from kernels.quant_types import QuantType
from tests.engine.budgets import room_for
from tests.engine.conftest import open_numpy
from tests.engine.tiers.faulty_disk import PREADV, nothing_leaks, spoil, wait_until
from tests.tiny_gguf import write_tiny_model

pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")
from tests.engine.tiers.opened import GO_ON, IDS, Shortage, opened, tiers_of

LAYERS = 6
N_BLOCKS = 2 * LAYERS
SHARES = (0.0, 0.3, 0.6, 0.9)
skip_sets = st.frozensets(st.integers(0, N_BLOCKS - 1))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("skip")
    return write_tiny_model(
        folder / "m.gguf",
        architecture="gemma3",
        quant_type=QuantType.Q4_K,
        layers=LAYERS,
        vocab_size=2500,
        ffn_size=1024,
    )


Known = dict[SkipSet, np.ndarray]


@pytest.fixture(scope="module")
def known() -> Known:
    return {}


def one_pass(model: Transformer, skip: SkipSet) -> np.ndarray:
    """Logits of seven ids from position 0 on, [7, V]."""
    return model.logits(model.hidden(IDS[:7], 0, model.backend.new_kv(16), GO_ON, skip), GO_ON)


def expected(known: Known, path: Path, skip: SkipSet) -> np.ndarray:
    """The same where all weights are in memory."""
    if skip not in known:
        with opened(path) as model:
            known[skip] = one_pass(model, skip)
    return known[skip]


def indices(tiers: TieredWeights, skip: SkipSet) -> frozenset[int]:
    return frozenset(tiers.layer_blocks[number].index for number in skip)


def read_in_whole_pages(blocks: Sequence[Block]) -> int:
    """Most bytes that reading them takes."""
    return sum(map(slot_bytes_for, blocks))


def settled(tiers: TieredWeights) -> int:
    """Bytes that were read, once nothing more is being read."""
    wait_until(lambda: all(progress == 1.0 for _, progress in tiers.snapshot().in_flight))
    return tiers.stats.read_bytes


# -- the same logits


@pytest.mark.parametrize("threads", [1, 2])
@settings(deadline=None, max_examples=20)
@given(st.data())
def test_streamed_passes_that_leave_blocks_out_equal_resident_ones_bit_for_bit(
    path: Path, known: Known, threads: int, data: st.DataObject
) -> None:
    with opened(path, data.draw(st.sampled_from(SHARES)), threads=threads) as model:
        for skip in data.draw(st.lists(skip_sets, min_size=1, max_size=5)):
            np.testing.assert_array_equal(one_pass(model, skip), expected(known, path, skip))


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_whatever_is_left_out_and_moved_between_passes_no_logit_changes(
    path: Path, known: Known, data: st.DataObject
) -> None:
    watch = Shortage()
    with opened(path, data.draw(st.sampled_from(SHARES)), watch=watch) as model:
        tiers = tiers_of(model)
        for _ in range(data.draw(st.integers(1, 6))):
            what = data.draw(st.sampled_from(["leave out", "leave out", "budget", "stop", "shortage"]))
            if what == "leave out":
                tiers.leave_out(data.draw(skip_sets))
            elif what == "budget":
                tiers.change_budget(room_for(path, data.draw(st.sampled_from(SHARES))), lambda: False)
            elif what == "stop":
                asked = iter([False] * data.draw(st.integers(0, 5)))
                tiers.change_budget(
                    room_for(path, data.draw(st.sampled_from(SHARES))), lambda asked=asked: next(asked, True)
                )
            else:
                watch.next = data.draw(st.integers(1, 500_000))
            # Mostly with what is left out, and now and then as drafts and calibration do, with anything.
            steady = frozenset(
                n for n, block in enumerate(tiers.layer_blocks) if block.index in tiers.snapshot().skipped
            )
            skip = data.draw(st.sampled_from([steady, NOTHING]) | skip_sets)
            np.testing.assert_array_equal(one_pass(model, skip), expected(known, path, skip))
            assert_consistent(tiers)


def assert_consistent(tiers: TieredWeights) -> None:
    present, snapshot = tiers.plan, tiers.snapshot()
    here = {block.index for block in tiers.blocks if tiers.resident(block) is not None}
    assert here <= present.resident
    assert present.ram_bytes <= snapshot.budget_bytes
    assert not here.intersection(present.streamed)
    assert tiers.near == {n for n, block in enumerate(tiers.layer_blocks) if block.index in here}
    read = [tiers.blocks[index] for index in present.streamed if index not in snapshot.skipped]
    assert snapshot.pass_read_bytes == sum(block.n_bytes for block in read)


def test_passes_with_blocks_left_out_are_those_of_numpy(path: Path) -> None:
    oracle = open_numpy(path, Precision.FLOAT)
    some = [
        NOTHING,
        frozenset({0}),
        frozenset({3, 4, 9}),
        frozenset(range(0, N_BLOCKS, 2)),
        frozenset({1, 5}),
    ]
    with opened(path, 0.4, precision=Precision.FLOAT) as model:
        for skip in some:
            one, other = one_pass(model, skip), one_pass(oracle, skip)
            assert np.max(np.abs(one - other)) < 1e-4 * np.max(np.abs(other))


def test_a_pass_stopped_anywhere_leaves_one_with_another_set_right(path: Path, known: Known) -> None:
    token, stop_at, seen = CancelToken(), 0, 0

    def stop(snapshot: TierSnapshot) -> None:
        nonlocal seen
        seen += 1
        if seen == stop_at:
            token.cancel()

    sets = [NOTHING, frozenset({1, 2, 7}), frozenset({0, 1, 2, 3, 9})]
    with opened(path, 0.2, on_change=stop) as model:
        tiers = tiers_of(model)
        for number in range(8):
            now, then = sets[number % 3], sets[(number + 1) % 3]
            tiers.leave_out(now)
            token, seen, stop_at = CancelToken(), 0, number + 1
            with suppress(CancelledError):  # a pass that reads few blocks has ended by then
                model.logits(model.hidden(IDS[:7], 0, model.backend.new_kv(16), token, now), token)
            assert tiers.snapshot().active is None
            stop_at = 0
            np.testing.assert_array_equal(one_pass(model, then), expected(known, path, then))


def test_a_disk_that_fails_while_blocks_come_leaves_a_model_that_works(
    path: Path, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip = frozenset({1, 3, 5, 7})
    for after in range(0, 12, 3):
        with opened(path, 0.5) as model:
            with monkeypatch.context() as patched:
                spoil(patched, "EIO", after)
                tiers_of(model).leave_out(skip)
                with pytest.raises(StreamError):
                    for _ in range(20):
                        one_pass(model, skip)
            for each in (skip, NOTHING):
                np.testing.assert_array_equal(one_pass(model, each), expected(known, path, each))


# -- what is read


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("skip", [frozenset({1, 2, 3}), frozenset(range(4, 10)), frozenset(range(11))])
def test_blocks_that_are_left_out_are_not_read(path: Path, share: float, skip: SkipSet) -> None:
    n_passes = 6
    with opened(path, share) as model:
        tiers = tiers_of(model)
        one_pass(model, skip)  # what was read ahead before is dropped
        before = settled(tiers)
        for _ in range(n_passes):
            one_pass(model, skip)
        read = settled(tiers) - before
        left_out = indices(tiers, skip)
        used = [tiers.blocks[index] for index in tiers.plan.streamed if index not in left_out]
    assert n_passes * sum(block.n_bytes for block in used) <= read <= n_passes * read_in_whole_pages(used)


def test_skipping_reads_as_much_less_as_the_blocks_weigh(path: Path) -> None:
    read = {}
    for skip in (NOTHING, frozenset({2, 3, 6, 7})):
        with opened(path, 0.0) as model:
            tiers = tiers_of(model)
            one_pass(model, skip)
            before = settled(tiers)
            for _ in range(5):
                one_pass(model, skip)
            read[skip] = settled(tiers) - before
            weigh = sum(tiers.layer_blocks[number].n_bytes for number in skip)
    saved = (read[NOTHING] - read[skip]) / 5
    assert weigh <= saved <= weigh + 4 * 4 * ALIGNMENT


def test_passes_with_resident_blocks_only_leave_the_ring_alone(path: Path, known: Known) -> None:
    with opened(path, 0.7) as model:
        tiers, kv = tiers_of(model), model.backend.new_kv(16)
        far = frozenset(range(N_BLOCKS)) - tiers.near
        assert far
        one_pass(model, NOTHING)
        before, ahead = settled(tiers), tiers.snapshot().in_flight
        streamed_layers = [index for index in tiers.plan.streamed if tiers.blocks[index].layer is not None]
        assert ahead[0][0] == streamed_layers[0], "the next verification's"
        for position in range(5):
            model.hidden(IDS[position : position + 1], position, kv, GO_ON, far)
        assert (settled(tiers), tiers.snapshot().in_flight) == (before, ahead)
        assert tiers.stats.dropped_blocks == 0
        np.testing.assert_array_equal(one_pass(model, NOTHING), expected(known, path, NOTHING))
        assert tiers.stats.dropped_blocks == 0


def test_the_same_set_again_and_again_drops_nothing(path: Path) -> None:
    skip = frozenset({1, 4, 5, 8})
    with opened(path, 0.2) as model:
        tiers = tiers_of(model)
        one_pass(model, skip)
        dropped = tiers.stats.dropped_blocks
        for _ in range(5):
            one_pass(model, skip)
        assert tiers.stats.dropped_blocks == dropped


def slow_disk(monkeypatch: pytest.MonkeyPatch, rate: float) -> None:
    """Reads take their time one after another, at so many bytes per second."""
    real, lock = os.preadv, threading.Lock()

    def preadv(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        n_bytes = real(descriptor, buffers, position)
        with lock:
            time.sleep(n_bytes / rate)
        return n_bytes

    monkeypatch.setattr(PREADV, preadv)


def test_twenty_of_eighty_blocks_left_out_are_1_6_times_the_speed_where_the_disk_is_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", quant_type=QuantType.Q8_0, layers=40)
    skip = frozenset(n for n in range(80) if n // 2 % 4 == 1)
    seconds, read = {}, {}
    with opened(path, 0.45) as model:
        tiers, kv = tiers_of(model), model.backend.new_kv(64)
        slow_disk(monkeypatch, 60e6)
        for left_out in (NOTHING, skip):
            tiers.leave_out(left_out)
            model.hidden(IDS[:1], 0, kv, GO_ON, left_out)  # blocks come
            before, started = tiers.stats.read_bytes, time.perf_counter()
            for position in range(1, 5):
                model.next_logits(model.hidden([3], position, kv, GO_ON, left_out), GO_ON)
            seconds[left_out] = time.perf_counter() - started
            read[left_out] = tiers.stats.read_bytes - before
    assert read[NOTHING] >= 1.6 * read[skip]
    assert seconds[NOTHING] >= 1.6 * seconds[skip]


# -- whose memory it is


def test_what_is_left_out_gives_its_memory_to_others_and_gets_it_back(path: Path, known: Known) -> None:
    with opened(path, 0.5) as model:
        tiers = tiers_of(model)
        plain, near, events = tiers.plan, tiers.near, len(tiers.snapshot().events)
        skip = frozenset(sorted(near)[::2])
        tiers.leave_out(skip)
        assert tiers.snapshot().skipped == indices(tiers, skip)
        assert tiers.plan.read_bytes < plain.read_bytes - sum(tiers.layer_blocks[n].n_bytes for n in skip) / 2
        assert near - skip <= tiers.near, "others stay where they are"
        before = settled(tiers)
        np.testing.assert_array_equal(one_pass(model, skip), expected(known, path, skip))
        assert tiers.near >= near - skip
        came = tiers.near - near
        assert came, "they came as the pass read them"
        settled(tiers)
        assert tiers.near | skip >= near | came
        np.testing.assert_array_equal(one_pass(model, skip), expected(known, path, skip))
        read = settled(tiers)
        np.testing.assert_array_equal(one_pass(model, skip), expected(known, path, skip))
        used = [tiers.blocks[i] for i in tiers.plan.streamed if i not in tiers.snapshot().skipped]
        assert settled(tiers) - read <= read_in_whole_pages(used)
        assert read > before
        tiers.leave_out(NOTHING)
        assert tiers.plan == plain
        np.testing.assert_array_equal(one_pass(model, NOTHING), expected(known, path, NOTHING))
        assert tiers.near == near
        texts = [event.text for event in tiers.snapshot().events[events:]]
    assert len(texts) == 2
    assert texts[0].startswith("blk.") or texts[0].startswith(f"{len(skip)} blocks are left out: ")
    assert "come into memory as they are read" in texts[0]
    assert texts[1].startswith("no blocks are left out: ")


def test_blocks_come_without_being_read_once_more(path: Path) -> None:
    with opened(path, 0.5) as model:
        tiers = tiers_of(model)
        skip = frozenset(sorted(tiers.near)[::2])
        tiers.leave_out(skip)
        before = settled(tiers)
        coming = tiers.plan.resident - {b.index for b in tiers.blocks if tiers.resident(b) is not None}
        assert coming
        one_pass(model, skip)
        one_pass(model, skip)
        used = [
            b
            for i, b in enumerate(tiers.blocks)
            if i in tiers.plan.streamed and i not in indices(tiers, skip)
        ]
        once = [tiers.blocks[index] for index in coming]
        # Two passes, what is ahead for the third, and each of those that stay from then on once.
        most = 3 * read_in_whole_pages(used) + read_in_whole_pages(once) + tiers.plan.ring_bytes
        assert settled(tiers) - before <= most


def test_blocks_that_came_meanwhile_are_not_read_again(path: Path, known: Known) -> None:
    with opened(path, 0.5) as model:
        tiers = tiers_of(model)
        skip, budget = frozenset(sorted(tiers.near)[::2]), tiers.snapshot().budget_bytes
        tiers.leave_out(skip)
        tiers.ring.follow(skip)
        assert tiers.change_budget(budget, lambda: False), "the same budget brings what is to come"
        assert tiers.plan.resident == {b.index for b in tiers.blocks if tiers.resident(b) is not None}
        one_pass(model, skip)
        before = settled(tiers)
        for _ in range(3):
            np.testing.assert_array_equal(one_pass(model, skip), expected(known, path, skip))
        used = [tiers.blocks[i] for i in tiers.plan.streamed if i not in tiers.snapshot().skipped]
        assert settled(tiers) - before <= 3 * read_in_whole_pages(used)


def test_sets_that_take_turns_cost_no_reads_of_their_own(path: Path, known: Known) -> None:
    with opened(path, 0.5) as model:
        tiers = tiers_of(model)
        one, other = frozenset(sorted(tiers.near)[::2]), frozenset(sorted(tiers.near)[1::2])
        for skip in (one, NOTHING, other, one, NOTHING) * 2:
            tiers.leave_out(skip)
            left_out = indices(tiers, skip)
            used = [
                block
                for block in tiers.blocks
                if tiers.resident(block) is None
                and block.kind is not BlockKind.EMBEDDING
                and block.index not in left_out
            ]
            before = settled(tiers)
            np.testing.assert_array_equal(one_pass(model, skip), expected(known, path, skip))
            # What is not in memory, once, and what is ahead for the next pass.
            assert settled(tiers) - before <= read_in_whole_pages(used) + tiers.plan.ring_bytes
            assert_consistent(tiers)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_nothing_moves_where_nothing_is_gained(path: Path, share: float) -> None:
    with opened(path, share) as model:
        tiers = tiers_of(model)
        before, near = tiers.snapshot(), tiers.near
        tiers.leave_out(frozenset({2, 3, 8}))
        one_pass(model, frozenset({2, 3, 8}))
        after = tiers.snapshot()
        assert tiers.near == near
        assert after.events == before.events
        assert after.ram_bytes == before.ram_bytes


def test_the_same_wish_again_changes_nothing(path: Path) -> None:
    with opened(path, 0.5) as model:
        tiers = tiers_of(model)
        skip = frozenset(sorted(tiers.near)[:3])
        tiers.leave_out(skip)
        one_pass(model, skip)
        before, events = tiers.plan, tiers.snapshot().events
        for _ in range(3):
            tiers.leave_out(skip)
            one_pass(model, skip)
        assert tiers.plan is before
        assert tiers.snapshot().events == events


def test_memory_that_cannot_be_had_is_told_and_the_blocks_are_read(
    path: Path, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(n_bytes: int) -> None:
        raise MemoryError("so much cannot be had")

    with opened(path, 0.5) as model:
        tiers = tiers_of(model)
        skip = frozenset(sorted(tiers.near)[::2])
        with monkeypatch.context() as patched:
            patched.setattr("engine.tiers.residents.Region", fail)
            tiers.leave_out(skip)
        assert "so much cannot be had" in tiers.snapshot().events[-1].text
        for each in (skip, NOTHING):
            np.testing.assert_array_equal(one_pass(model, each), expected(known, path, each))
        assert_consistent(tiers)


def test_blocks_that_no_slot_holds_are_brought_at_once(path: Path, known: Known) -> None:
    with opened(path) as model:
        tiers, kinds = tiers_of(model), set[BlockKind]()
        feed_forward = frozenset(range(1, N_BLOCKS, 2))
        # Only small blocks are read; then large ones give them their places, and come back.
        for budget in range(tiers.plan.ram_bytes, room_for(path, 0), -ALIGNMENT):
            kinds = {tiers.blocks[index].kind for index in plan(tiers.blocks, budget, None).streamed}
            if kinds == {BlockKind.ATTENTION}:
                break
        assert kinds == {BlockKind.ATTENTION}
        assert tiers.change_budget(budget, lambda: False)
        small, near = tiers.plan.slot_bytes, tiers.near
        assert small < slot_bytes_for(tiers.layer_blocks[1])
        tiers.leave_out(feed_forward)
        np.testing.assert_array_equal(one_pass(model, feed_forward), expected(known, path, feed_forward))
        assert_consistent(tiers)
        assert not near <= tiers.near
        tiers.leave_out(NOTHING)
        assert near <= tiers.near
        np.testing.assert_array_equal(one_pass(model, NOTHING), expected(known, path, NOTHING))
        assert_consistent(tiers)


def test_the_prediction_is_that_of_what_is_left(path: Path) -> None:
    for share in (0.5, 1.0):
        with opened(path, share, rates=Rates(40e9, {}, 1e9)) as model:
            tiers = tiers_of(model)
            plain = tiers.predicted_decode_tok_s
            tiers.leave_out(frozenset({1, 3, 5}))
            skipping = tiers.predicted_decode_tok_s
            tiers.leave_out(NOTHING)
            assert plain is not None
            assert skipping is not None
            assert skipping > plain == tiers.predicted_decode_tok_s


def test_sets_that_change_leave_nothing_behind(path: Path) -> None:
    def use() -> None:
        with opened(path, 0.5) as model:
            for skip in (frozenset({1, 2}), frozenset({2, 5, 9}), NOTHING, frozenset(range(8))):
                tiers_of(model).leave_out(skip)
                one_pass(model, skip)

    with nothing_leaks():
        use()
