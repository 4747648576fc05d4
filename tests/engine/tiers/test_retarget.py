"""The host's part of a model on a GPU: blocks go and come as others are apart, locked while they are here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cancel import CancelToken
from engine.errors import BudgetError
from engine.events import Tier
from engine.gguf import open_gguf
from engine.model_config import read_model_config
from engine.tiers.blocks import Block, BlockKind, slot_bytes_for, weight_blocks
from engine.tiers.direct_io import DirectFiles
from engine.tiers.loader import Loader, slot_bytes
from engine.tiers.planner import least_memory, plan
from engine.tiers.store import TieredWeights
from engine.tiers.vocabulary_rows import VocabularyRows
from kernels.quant_types import QuantType
from tests.engine.tiers.faulty_disk import nothing_leaks
from tests.engine.tiers.locking import Pages
from tests.tiny_gguf import write_tiny_model

pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")
from tests.engine.tiers.opened import GO_ON, Shortage

NONE: frozenset[int] = frozenset()
PLENTY = 1 << 30


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("retarget")
    return write_tiny_model(
        folder / "m.gguf", quant_type=QuantType.Q8_0, layers=6, vocab_size=3000, split_max_tensors=9
    )


class Host:
    """A model's weights with a locker, a loader beside them, and the file to compare with."""

    def __init__(self, path: Path, apart: frozenset[int], budget: int) -> None:
        gguf = open_gguf(path)
        self.gguf = gguf
        self.blocks = weight_blocks(gguf, read_model_config(gguf))
        self.pages, self.watch = Pages(), Shortage()
        self.files = DirectFiles(gguf.part_paths)
        self.tiers = TieredWeights(
            self.files,
            self.blocks,
            budget,
            None,
            watch=self.watch,
            on_change=lambda snapshot: None,
            apart=apart,
            locker=self.pages,
        )
        slots = [np.zeros(slot_bytes(self.blocks), np.uint8) for _ in range(2)]
        self.loader = Loader(self.files, slots, 2)

    def close(self) -> None:
        self.loader.close()
        self.tiers.close()
        assert self.pages.locked == {}, "all that was locked is unlocked before it is given back"

    def content(self, block: Block) -> list[bytes]:
        return [
            self.gguf.part_paths[p.part].read_bytes()[p.offset : p.offset + p.n_bytes] for p in block.pieces
        ]

    def bring(self, memory: dict[int, list[np.ndarray]], n_blocks: int | None = None) -> None:
        """Read reserved blocks and say that they have arrived."""
        for index in sorted(memory)[:n_blocks]:
            self.loader.ask(self.blocks[index], memory[index])
            while self.loader.pending:
                arrival = self.loader.take(10)
                assert arrival is not None
                assert arrival.error is None
            assert self.tiers.arrived(index)

    @property
    def coming(self) -> frozenset[int]:
        """Blocks whose memory is reserved."""
        return frozenset(self.tiers._residents.reserved)

    def check(self, apart: frozenset[int]) -> None:
        """Every block that is not apart is here or can be had, and has the bytes of the file."""
        tiers, locked = self.tiers, 0
        assert tiers.plan.ram_bytes <= tiers.snapshot().budget_bytes
        assert apart.isdisjoint(tiers.plan.streamed)
        for block, place in zip(self.blocks, tiers.snapshot().blocks, strict=True):
            views = tiers.resident(block)
            assert (place.tier is Tier.RAM) == (views is not None)
            if views is not None:
                assert block.index in tiers.plan.resident - apart
                assert [view.tobytes() for view in views] == self.content(block)
                assert not any(view.flags.writeable for view in views)
                if block.layer is not None:
                    assert all(self.pages.holds(view) for view in views)
                    locked += slot_bytes_for(block)
            elif block.index in tiers.plan.streamed:
                streamed = tiers.acquire(block, GO_ON)
                assert [view.tobytes() for view in streamed] == self.content(block)
                assert all(self.pages.holds(view) for view in streamed)
                tiers.release(block)
            else:
                assert block.index in apart | self.coming or block.kind is BlockKind.EMBEDDING
        assert self.pages.n_bytes <= locked + tiers.plan.ring_bytes


@contextmanager
def hosting(path: Path, apart: frozenset[int] = NONE, budget: int = PLENTY) -> Iterator[Host]:
    with closing(Host(path, apart, budget)) as host:
        yield host


def room(blocks: tuple[Block, ...], apart: frozenset[int], share: float) -> int:
    """Memory for blocks that are not apart: 0 is the least that works, 1 holds all."""
    least = least_memory(blocks, apart=apart)
    whole = sum(slot_bytes_for(block) for block in blocks if block.index not in apart)
    return least + int(max(0, whole - least) * share)


# -- going over to other plans


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_whatever_is_apart_and_however_often_that_changes_all_else_is_there(
    path: Path, data: st.DataObject
) -> None:
    blocks = weight_blocks(gguf := open_gguf(path), read_model_config(gguf))
    sets = st.frozensets(st.sampled_from(range(len(blocks))))
    shares = st.sampled_from([0.0, 0.3, 0.7, 1.0])
    apart = data.draw(sets)
    with hosting(path, apart, room(blocks, apart, data.draw(shares))) as host:
        host.bring(host.tiers.retarget(apart))
        host.check(apart)
        for _ in range(data.draw(st.integers(1, 4))):
            apart = data.draw(sets)
            memory = host.tiers.retarget(apart, room(blocks, apart, data.draw(shares)))
            assert memory.keys() == host.coming
            host.check(apart)
            host.bring(memory, data.draw(st.none() | st.integers(0, len(memory))))
            host.check(apart)


def test_a_plan_that_was_chosen_is_taken(path: Path) -> None:
    with hosting(path) as host:
        wanted = plan(host.blocks, PLENTY, None, among=frozenset(range(2, 7)))
        memory = host.tiers.retarget(NONE, PLENTY, wanted)
        assert host.tiers.plan is wanted
        assert memory.keys() == wanted.resident
        host.bring(memory)
        host.check(NONE)


def test_a_store_may_begin_with_a_chosen_plan(path: Path) -> None:
    with hosting(path) as host, closing(DirectFiles(host.gguf.part_paths)) as files:
        wanted = plan(host.blocks, PLENTY, None, among=frozenset({3}))
        tiers = TieredWeights(
            files,
            host.blocks,
            PLENTY,
            None,
            watch=Shortage(),
            on_change=lambda snapshot: None,
            chosen=wanted,
        )
        assert tiers.plan is wanted


def test_memory_that_was_reserved_is_the_same_until_it_is_not_wanted(path: Path) -> None:
    with hosting(path) as host:
        before = host.tiers.retarget(NONE)
        after = host.tiers.retarget(frozenset({4}))
        assert after.keys() == before.keys() - {4}
        assert all(one is other for i in after for one, other in zip(after[i], before[i], strict=True))
        before[4][0][:] = 1
        assert not host.tiers.arrived(4), "it was withdrawn"
        host.bring(after)
        host.check(frozenset({4}))
        assert host.tiers.retarget(NONE).keys() == {4}


def test_a_block_that_is_given_up_shows_zeros_and_is_not_locked(path: Path) -> None:
    with hosting(path) as host:
        host.bring(host.tiers.retarget(NONE))
        block = next(block for block in host.blocks if block.layer == 2)
        views = host.tiers.resident(block)
        assert views is not None
        host.tiers.retarget(frozenset({block.index}))
        assert not any(view.any() for view in views), "pages that no other block touches"
        assert not any(host.pages.holds(view) for view in views)


def test_all_may_be_apart_and_rows_of_the_embedding_come_from_the_file(path: Path) -> None:
    with hosting(path, budget=0, apart=frozenset(range(100))) as host:
        assert host.tiers.retarget(frozenset(range(100))) == {}
        assert host.tiers.plan.ram_bytes == 0
        assert host.tiers.notices == ()
        assert host.tiers.predicted_decode_tok_s is None
        table = host.gguf.tensor_bytes("token_embd.weight").reshape(3000, -1)
        rows = VocabularyRows(host.tiers).embedding(np.array([0, 7, 2999], np.int32))
        np.testing.assert_array_equal(rows.reshape(3, -1), table[[0, 7, 2999]])


def test_a_budget_that_is_too_small_changes_nothing(path: Path) -> None:
    with hosting(path) as host:
        host.bring(host.tiers.retarget(frozenset({1})))
        before = host.tiers.plan
        with pytest.raises(BudgetError):
            host.tiers.retarget(NONE, 10)
        assert host.tiers.plan is before
        host.check(frozenset({1}))


def test_the_ring_goes_on_where_it_is_the_same(path: Path) -> None:
    with hosting(path) as host:
        among = frozenset(range(4, 9))
        chosen = plan(host.blocks, PLENTY, None, among=among)
        host.bring(host.tiers.retarget(NONE, PLENTY, chosen))
        host.check(NONE)
        read, asked = host.tiers.stats.read_bytes, host.pages.asked
        host.tiers.retarget(NONE, PLENTY + 1, replace(chosen, predicted_decode_s=1.0))
        assert host.tiers.stats.read_bytes >= read
        host.check(NONE)
        assert host.pages.asked == asked, "no slot is locked anew"


# -- blocks that do not come, or go again


def test_memory_that_runs_short_takes_blocks_that_are_still_to_come_too(path: Path) -> None:
    with hosting(path, apart=frozenset({1, 2})) as host:
        memory = host.tiers.retarget(frozenset({1, 2}))
        host.bring(memory, 4)
        host.watch.next = host.tiers.plan.ram_bytes // 2
        host.tiers.before_pass()
        assert host.coming < memory.keys()
        host.check(frozenset({1, 2}))
        host.bring({index: memory[index] for index in host.coming})
        host.check(frozenset({1, 2}))


def test_memory_that_cannot_be_had_leaves_what_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(n_bytes: int) -> None:
        raise MemoryError

    with hosting(path) as host:
        apart = frozenset(range(6, 20))
        memory = host.tiers.retarget(apart)
        host.bring(memory, len(memory) - 2)
        coming = host.coming
        with monkeypatch.context() as patched:
            patched.setattr("engine.tiers.residents.Region", fail)
            with pytest.raises(MemoryError):
                host.tiers.retarget(NONE)
        assert host.tiers.plan.streamed
        assert host.coming == coming
        host.check(NONE)


def test_blocks_that_arrive_are_new_to_the_backend(path: Path) -> None:
    with hosting(path) as host:
        host.bring(host.tiers.retarget(NONE))
        changes = list(host.tiers.take_changes())
        assert [block.index for block, _ in changes] == [b.index for b in host.blocks if b.layer is not None]
        assert all(matrices is not None for _, matrices in changes)
        assert not list(host.tiers.take_changes())


def test_the_backend_hears_of_blocks_that_leave(path: Path) -> None:
    with hosting(path) as host:
        host.bring(host.tiers.retarget(NONE))
        list(host.tiers.take_changes())
        host.tiers.retarget(frozenset({3}))
        assert [(block.index, matrices) for block, matrices in host.tiers.take_changes()] == [(3, None)]


def test_who_copies_is_told_before_memory_is_given_up(path: Path) -> None:
    with hosting(path) as host:
        host.bring(host.tiers.retarget(NONE))
        views, seen = host.tiers.resident(host.blocks[3]), []
        assert views is not None
        host.tiers.before_evict = lambda withdrawn: seen.append(views[0].any() and host.pages.holds(views[0]))
        host.tiers.retarget(frozenset({3}))
        assert seen == [True]
        assert not views[0].any()


def test_who_reads_is_told_of_blocks_that_will_not_come(path: Path) -> None:
    with hosting(path) as host:
        memory, told = host.tiers.retarget(NONE), []
        host.bring(memory, 2)
        host.tiers.before_evict = lambda withdrawn: told.append((withdrawn, host.coming))
        gone = frozenset(sorted(host.coming)[:3])
        before = host.coming
        host.tiers.retarget(gone)
        assert told == [(gone, before)]
        assert host.coming == before - gone


# -- page-locking


def test_memory_that_cannot_be_locked_is_used_and_told(path: Path) -> None:
    with hosting(path) as host:
        host.pages.limit = 3 * max(map(slot_bytes_for, host.blocks))
        host.bring(host.tiers.retarget(NONE))
        assert 0 < host.pages.n_bytes <= host.pages.limit
        (notice,) = host.tiers.notices
        assert "could not be page-locked" in notice
        assert "ulimit -l" in notice
        assert "\n" not in notice
        for block in host.blocks:
            views = host.tiers.resident(block)
            assert views is not None
            assert [view.tobytes() for view in views] == host.content(block)
        host.tiers.retarget(frozenset(range(100)))
        assert host.tiers.notices == ()


def test_loading_without_a_gpu_locks_what_a_locker_is_given_for(path: Path) -> None:
    with hosting(path) as host:
        assert list(host.tiers.load(CancelToken()))
        host.check(NONE)


def test_what_is_read_from_disk_is_told_of_the_part_outside_the_gpu(path: Path) -> None:
    apart = frozenset({1, 2})
    with hosting(path, apart=apart) as host:
        host.tiers.retarget(apart, room(host.blocks, apart, 0.0))
        (notice,) = host.tiers.notices
        assert "weights outside the GPU" in notice


def test_closing_with_blocks_on_their_way_leaves_nothing(path: Path) -> None:
    def use() -> None:
        with hosting(path) as host:
            memory = host.tiers.retarget(NONE)
            host.bring(memory, 3)
            for index in host.coming:
                host.loader.ask(host.blocks[index], memory[index])

    with nothing_leaks():
        use()
