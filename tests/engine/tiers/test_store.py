"""Wherever weights are and whatever the disk does, the logits are those of weights in memory, bit for bit."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.config import Precision
from engine.errors import BudgetError, CancelledError, StreamError
from engine.events import Tier, TierSnapshot
from engine.gguf import open_gguf
from engine.tiers.blocks import Block, BlockKind
from engine.tiers.rates import Rates
from engine.tiers.vocabulary_rows import VocabularyRows
from kernels.quant_types import QuantType
from tests.engine.budgets import room_for
from tests.engine.tiers.faulty_disk import PREADV, nothing_leaks, refuse_direct_reads, spoil
from tests.tiny_gguf import write_tiny_model

pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")
from tests.engine.tiers.opened import GO_ON, IDS, Shortage, all_logits, opened, tiers_of

MODELS: dict[str, dict[str, object]] = {
    "untied": {
        "quant_type": QuantType.Q4_K,
        "embedding_type": QuantType.Q6_K,
        "layers": 5,
        "vocab_size": 4001,
    },
    "tied": {
        "architecture": "gemma3",
        "quant_type": QuantType.Q4_0,
        "embedding_type": QuantType.Q8_0,
        "layers": 7,
        "vocab_size": 3000,
        "tied": True,
    },
    "split": {
        "quant_type": QuantType.Q8_0,
        "layers": 6,
        "vocab_size": 1500,
        "split_max_tensors": 7,
    },
}
SHARES = (0.0, 0.2, 0.5, 0.8, 0.97)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("store")
    return {
        name: write_tiny_model(folder / f"{name}.gguf", **options)  # type: ignore[arg-type]
        for name, options in MODELS.items()
    }


@pytest.fixture(scope="module")
def resident(paths: dict[str, Path]) -> Callable[[str, Precision], np.ndarray]:
    """Logits of a model whose weights all stay in memory."""
    known: dict[tuple[str, Precision], np.ndarray] = {}

    def logits(name: str, precision: Precision = Precision.FAST) -> np.ndarray:
        if (name, precision) not in known:
            with opened(paths[name], precision=precision) as model:
                assert tiers_of(model).plan.streamed == ()
                known[name, precision] = all_logits(model)
        return known[name, precision]

    return logits


# -- the same logits


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("threads", "precision"), [(1, Precision.FAST), (2, Precision.FAST), (2, Precision.FLOAT)]
)
def test_streamed_logits_equal_resident_ones_bit_for_bit(
    paths: dict[str, Path],
    resident: Callable[..., np.ndarray],
    name: str,
    share: float,
    threads: int,
    precision: Precision,
) -> None:
    with opened(paths[name], share, threads=threads, precision=precision) as model:
        assert tiers_of(model).plan.streamed
        np.testing.assert_array_equal(all_logits(model), resident(name, precision))


@pytest.mark.model
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_real_model_streams_the_same_logits(smollm2_path: Path, share: float) -> None:
    with opened(smollm2_path, threads=2) as model:
        expected = all_logits(model)
    with opened(smollm2_path, share, threads=2) as model:
        np.testing.assert_array_equal(all_logits(model), expected)
        tiers = tiers_of(model)
        assert tiers.stats.read_bytes >= 9 * tiers.plan.read_bytes  # all_logits is that many passes


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("name", MODELS)
def test_passes_without_the_head_and_heads_alone_change_nothing(
    paths: dict[str, Path], resident: Callable[..., np.ndarray], name: str, share: float
) -> None:
    with opened(paths[name], share) as model:
        kv = model.backend.new_kv(64)
        for _ in range(3):
            hidden = model.hidden(IDS[:7], 0, kv, GO_ON)
        for _ in range(3):
            logits = model.logits(hidden, GO_ON)
        np.testing.assert_array_equal(logits, resident(name)[:7])
        np.testing.assert_array_equal(all_logits(model), resident(name))


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_pass_stopped_anywhere_leaves_the_next_one_right(
    paths: dict[str, Path], resident: Callable[..., np.ndarray], share: float
) -> None:
    token, stop_at, seen = CancelToken(), 0, 0

    def stop(snapshot: TierSnapshot) -> None:
        nonlocal seen
        seen += 1
        if seen == stop_at:
            token.cancel()

    with opened(paths["untied"], share, on_change=stop) as model:
        kv = model.backend.new_kv(64)
        n_streamed = len(tiers_of(model).plan.streamed)
        for stop_at in range(1, n_streamed + 1):
            token, seen = CancelToken(), 0
            try:
                model.logits(model.hidden(IDS[:7], 0, kv, token), token)
            except CancelledError:
                stopped = True
            else:
                stopped = False  # the last of the head was there when it was told to stop
            assert stopped or stop_at == n_streamed
            assert tiers_of(model).snapshot().active is None
            logits = model.logits(model.hidden(IDS[:7], 0, kv, GO_ON), GO_ON)
            np.testing.assert_array_equal(logits, resident("untied")[:7])


# -- the parts


@pytest.mark.parametrize("share", [*SHARES, 1.0])
@pytest.mark.parametrize("name", MODELS)
def test_rows_of_embedding_and_head_are_the_files(paths: dict[str, Path], name: str, share: float) -> None:
    gguf = open_gguf(paths[name])
    table = gguf.tensor_bytes("token_embd.weight")
    n_rows = gguf.tensors["token_embd.weight"].shape[0]
    ids = np.random.default_rng(1).permutation(n_rows).astype(np.int32)[:200]
    ids[:2] = (0, n_rows - 1)
    with opened(paths[name], share) as model:
        vocabulary = VocabularyRows(tiers_of(model))
        rows = vocabulary.embedding(ids)
        np.testing.assert_array_equal(rows.reshape(200, -1), table.reshape(n_rows, -1)[ids])
        head = [(rows.first_row, rows.data.copy()) for rows in vocabulary.head(GO_ON)]
    matrix = gguf.tensor_bytes("token_embd.weight" if "tied" in MODELS[name] else "output.weight")
    np.testing.assert_array_equal(np.concatenate([data for _, data in head]), matrix)
    one_row = matrix.size // n_rows
    assert head[0][0] == 0
    assert all(after[0] == before[0] + before[1].size // one_row for before, after in pairwise(head))
    if share == 1.0:
        assert len(head) == 1


def test_runs_cut_the_layers_where_blocks_are_streamed(paths: dict[str, Path]) -> None:
    for share in SHARES:
        with opened(paths["untied"], share) as model:
            tiers = tiers_of(model)
            runs = list(tiers.runs(2, 9))
            assert [start for start, _, _ in runs] == [2, *(end for _, end, _ in runs[:-1])]
            assert runs[-1][1] == 9
            for start, end, block in runs:
                stay = [tiers.resident(block) is not None for block in tiers.layer_blocks[start:end]]
                assert stay == [False] if block is not None else all(stay)
            assert all(
                before is not None or after is not None for (_, _, before), (_, _, after) in pairwise(runs)
            )


def test_a_head_that_is_not_finished_gives_its_slot_back(paths: dict[str, Path]) -> None:
    with opened(paths["untied"], 0.0) as model:
        for _ in range(5):  # more often than there are slots
            head = VocabularyRows(tiers_of(model)).head(GO_ON)
            next(head)
            head.close()
        assert tiers_of(model).snapshot().active is None


def test_a_budget_below_the_least_is_refused_and_nothing_is_left(paths: dict[str, Path]) -> None:
    def refuse() -> None:
        with pytest.raises(BudgetError, match="--ram-budget"), opened(paths["untied"], -0.001):
            pass

    with nothing_leaks():
        refuse()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_closing_leaves_nothing_and_may_be_done_twice(paths: dict[str, Path], share: float) -> None:
    def use() -> None:
        with opened(paths["split"], share) as model:
            model.hidden(IDS[:7], 0, model.backend.new_kv(64), GO_ON)
            model.backend.close()

    with nothing_leaks():
        use()


# -- disks


@pytest.mark.parametrize("name", MODELS)
def test_a_failing_disk_is_an_error_and_the_next_pass_is_right(
    paths: dict[str, Path],
    resident: Callable[..., np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    with opened(paths[name], 0.3) as model:
        kv = model.backend.new_kv(64)
        for after in range(0, 24, 3):
            with monkeypatch.context() as patched:
                spoil(patched, "EIO", after)
                with pytest.raises(StreamError, match=r"\(Input/output error\)") as caught:
                    for _ in range(20):  # what was read ahead may serve a pass
                        model.logits(model.hidden(IDS[:7], 0, kv, GO_ON), GO_ON)
            assert "\n" not in str(caught.value)
            assert tiers_of(model).snapshot().active is None
            logits = model.logits(model.hidden(IDS[:7], 0, kv, GO_ON), GO_ON)
            np.testing.assert_array_equal(logits, resident(name)[:7])


def test_a_file_that_is_cut_short_is_an_error_and_read_again_when_it_is_whole(
    paths: dict[str, Path], resident: Callable[..., np.ndarray], tmp_path: Path
) -> None:
    path = Path(shutil.copy(paths["untied"], tmp_path / "cut.gguf"))
    with opened(path, 0.0) as model:
        kv = model.backend.new_kv(64)
        content = path.read_bytes()
        os.truncate(path, len(content) // 2)
        with pytest.raises(StreamError, match=r"cut\.gguf was cut short .* load it again"):
            for _ in range(3):
                model.logits(model.hidden(IDS[:7], 0, kv, GO_ON), GO_ON)
        with path.open("r+b") as file:
            file.write(content)
        np.testing.assert_array_equal(all_logits(model), resident("untied"))


@pytest.mark.parametrize(("most", "direct"), [(4096, True), (12288, True), (5001, False), (1 << 30, False)])
def test_short_and_refused_reads_give_the_same_logits(
    paths: dict[str, Path],
    resident: Callable[..., np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    direct: bool,
) -> None:
    real = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], position: int, flags: int = 0) -> int:
        return real(descriptor, [buffers[0][:most]], position, flags)

    if not direct:
        refuse_direct_reads(monkeypatch)
    monkeypatch.setattr(PREADV, preadv)
    with opened(paths["tied"], 0.3) as model:
        np.testing.assert_array_equal(all_logits(model), resident("tied"))
        if not direct:
            assert any("through the page cache" in notice for notice in tiers_of(model).notices)


def test_direct_reads_that_are_refused_only_when_reading_are_noticed_at_once(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = os.preadv, []

    def preadv(descriptor: int, buffers: Sequence[memoryview], position: int, flags: int = 0) -> int:
        if not refused:
            refused.append(descriptor)
            raise OSError(22, "Invalid argument")
        return real(descriptor, buffers, position, flags)

    monkeypatch.setattr(PREADV, preadv)
    with opened(paths["tied"], 0.3) as model:
        assert any("through the page cache" in notice for notice in tiers_of(model).notices)


# -- memory that runs short


def bytes_held(snapshot: TierSnapshot) -> int:
    return snapshot.ram_bytes + snapshot.ring_bytes


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("name", MODELS)
def test_a_deficit_is_given_back_again_and_again_and_logits_stay_the_same(
    paths: dict[str, Path], resident: Callable[..., np.ndarray], name: str, share: float
) -> None:
    watch = Shortage()
    shown: list[TierSnapshot] = []
    with opened(paths[name], share, watch=watch, on_change=shown.append) as model:
        tiers = tiers_of(model)
        for _ in range(3):
            before, held = tiers.snapshot(), {b.index: tiers.resident(b) for b in tiers.blocks}
            watch.next = 150_000
            np.testing.assert_array_equal(all_logits(model), resident(name))
            after = tiers.snapshot()
            assert bytes_held(after) <= bytes_held(before) - 150_000
            assert after.budget_bytes == bytes_held(before) - 150_000
            assert after.pass_read_bytes >= before.pass_read_bytes
            assert after.read_bytes >= before.read_bytes
            gone = tiers_lost(tiers.blocks, before, after)
            assert gone
            assert {tiers.resident(block) for block in gone} == {None}
            assert not any(whole_pages(memory).any() for block in gone for memory in held[block.index] or ())
            text = after.events[-1].text
            assert text.startswith("memory is short: ")
            assert f" {len(gone)} blocks, " in text
            assert after.events[-1] in shown[-1].events
        assert after.ring_bytes > 0
    reads = [snapshot.read_bytes for snapshot in shown]
    assert reads == sorted(reads)  # also over the moves, which each begin a new ring


def tiers_lost(blocks: Sequence[Block], before: TierSnapshot, after: TierSnapshot) -> list[Block]:
    """Blocks that were in memory and are not any more; none came in."""
    pairs = list(zip(blocks, before.blocks, after.blocks, strict=True))
    assert not any((old.tier, new.tier) == (Tier.NVME, Tier.RAM) for _, old, new in pairs)
    return [block for block, old, new in pairs if old.tier is not new.tier]


def whole_pages(memory: np.ndarray) -> np.ndarray:
    first = -memory.ctypes.data % mmap.PAGESIZE
    last = first + (memory.size - first) // mmap.PAGESIZE * mmap.PAGESIZE
    return memory[first:last]


def test_the_embedding_goes_first(paths: dict[str, Path], resident: Callable[..., np.ndarray]) -> None:
    watch = Shortage()
    with opened(paths["untied"], watch=watch) as model:
        watch.next = 1
        np.testing.assert_array_equal(all_logits(model), resident("untied"))
        after = tiers_of(model).snapshot()
        assert [place.kind for place in after.blocks if place.tier is Tier.NVME] == [BlockKind.EMBEDDING]
        assert (after.ring_bytes, after.pass_read_bytes) == (0, 0)


def test_a_deficit_larger_than_what_there_is_is_met_as_far_as_possible_and_noted_once(
    paths: dict[str, Path], resident: Callable[..., np.ndarray]
) -> None:
    watch = Shortage()
    with opened(paths["untied"], watch=watch) as model:
        tiers = tiers_of(model)
        watch.next = 1 << 40
        np.testing.assert_array_equal(all_logits(model), resident("untied"))
        assert len(tiers.plan.streamed) == len(tiers.blocks) - 1
        least = tiers.snapshot()
        for _ in range(3):
            watch.next = 1 << 40
            np.testing.assert_array_equal(all_logits(model), resident("untied"))
        after = tiers.snapshot()
        assert (after.blocks, after.budget_bytes) == (least.blocks, least.budget_bytes)
        assert [event.text for event in after.events[len(least.events) :]] == [
            "memory is short, and nothing more can be given back"
        ]


@pytest.mark.parametrize("disk", [None, 3e9])
def test_a_prediction_follows_what_moved_where_the_disk_was_measured(
    paths: dict[str, Path], disk: float | None
) -> None:
    watch = Shortage()
    with opened(paths["untied"], watch=watch, rates=Rates(40e9, {}, disk)) as model:
        tiers = tiers_of(model)
        assert tiers.predicted_decode_tok_s is not None
        watch.next = 1 << 40
        all_logits(model)
        snapshot = tiers.snapshot()
        assert snapshot.disk_rate == disk
        if disk is None:
            assert (snapshot.predicted_decode_tok_s, snapshot.limited_by) == (None, "")
        else:
            assert snapshot.predicted_decode_tok_s == pytest.approx(disk / tiers.plan.read_bytes)
            assert snapshot.limited_by == "the disk"


def test_a_prediction_follows_the_disk_as_it_is_while_blocks_are_read(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.tiers.disk_pace._LEAST_BYTES", 1)
    with opened(paths["untied"], 0.3, rates=Rates(40e9, {}, 1e15)) as model:
        tiers = tiers_of(model)
        assert tiers.snapshot().limited_by != "the disk"
        resident = tiers.plan.resident
        all_logits(model)
        all_logits(model)  # what was read in a pass is looked at before the next one
        rate = tiers.snapshot().disk_rate
        assert rate is not None
        assert 0 < rate < 1e14
        assert tiers.disk_rate == rate
        assert tiers.plan.resident == resident
        assert tiers.predicted_decode_tok_s == pytest.approx(rate / tiers.plan.read_bytes)
        assert tiers.snapshot().limited_by == "the disk"


def test_a_ring_that_cannot_be_had_fails_the_pass_and_is_tried_again(
    paths: dict[str, Path], resident: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise MemoryError

    watch = Shortage()
    with opened(paths["untied"], watch=watch) as model:
        watch.next = 1 << 40
        with monkeypatch.context() as patched:
            patched.setattr("engine.tiers.ring.Streamer", fail)
            for _ in range(2):
                with pytest.raises(MemoryError):
                    all_logits(model)
        np.testing.assert_array_equal(all_logits(model), resident("untied"))


# -- other budgets while it runs


def never() -> bool:
    return False


@pytest.mark.parametrize("name", MODELS)
def test_budgets_changed_between_passes_change_no_logits(
    paths: dict[str, Path], resident: Callable[..., np.ndarray], name: str
) -> None:
    random = np.random.default_rng(7)
    with opened(paths[name], 0.5) as model:
        tiers = tiers_of(model)
        for _ in range(25):
            budget = room_for(paths[name], float(random.choice([0, 0.1, 0.3, 0.6, 0.9, 1])))
            assert tiers.change_budget(budget, never)
            assert tiers.plan.ram_bytes <= budget == tiers.snapshot().budget_bytes
            first = int(random.integers(0, 20))
            kv = model.backend.new_kv(64)
            for start, end in ((0, 7), (7, 14), (14, 20))[: 1 + first % 3]:
                logits = model.logits(model.hidden(IDS[start:end], start, kv, GO_ON), GO_ON)
                np.testing.assert_array_equal(logits, resident(name)[start:end])
        assert tiers.change_budget(room_for(paths[name], 1), never)
        assert tiers.plan.streamed == ()
        np.testing.assert_array_equal(all_logits(model), resident(name))


def test_a_pass_may_be_changed_between_layers_and_head(
    paths: dict[str, Path], resident: Callable[..., np.ndarray]
) -> None:
    with opened(paths["untied"], 1.0) as model:
        tiers, kv = tiers_of(model), model.backend.new_kv(64)
        for share in (0.0, 1.0, 0.4):
            hidden = model.hidden(IDS[:7], 0, kv, GO_ON)
            tiers.change_budget(room_for(paths["untied"], share), never)
            np.testing.assert_array_equal(model.logits(hidden, GO_ON), resident("untied")[:7])


def test_a_larger_budget_shows_blocks_arriving_and_a_smaller_one_gives_memory_back(
    paths: dict[str, Path],
) -> None:
    shown: list[TierSnapshot] = []
    path = paths["untied"]
    with opened(path, 0.0, on_change=shown.append) as model:
        tiers = tiers_of(model)
        few = {b.index for b in tiers.blocks if tiers.resident(b) is not None}
        shown.clear()
        assert tiers.change_budget(room_for(path, 1), never)
        in_memory = [sum(place.tier is Tier.RAM for place in snapshot.blocks) for snapshot in shown]
        assert in_memory == sorted(in_memory)
        assert set(in_memory) == set(range(len(few), len(tiers.blocks) + 1)), "one after another"
        arriving = [snapshot.in_flight[0][0] for snapshot in shown if snapshot.in_flight]
        assert arriving == sorted(arriving)
        assert set(arriving) == set(range(len(tiers.blocks))) - few
        assert "are being read into memory" in shown[0].events[-1].text
        assert f"{len(tiers.blocks) - len(few)} blocks came into memory" in shown[-1].events[-1].text
        held = {b.index: tiers.resident(b) for b in tiers.blocks}
        assert tiers.change_budget(room_for(path, 0), never)
        gone = [b for b in tiers.blocks if tiers.resident(b) is None]
        assert len(gone) == len(tiers.blocks) - len(few)
        assert not any(whole_pages(memory).any() for block in gone for memory in held[block.index] or ())
        assert f"and {len(gone)} left it" in tiers.snapshot().events[-1].text


@pytest.mark.parametrize("after", [0, 1, 5, 9])
def test_blocks_that_have_arrived_when_it_is_stopped_are_used(
    paths: dict[str, Path], resident: Callable[..., np.ndarray], after: int
) -> None:
    path, asked = paths["untied"], [0]

    def stopped() -> bool:
        asked[0] += 1
        return asked[0] > after

    with opened(path, 0.0) as model:
        tiers = tiers_of(model)
        assert not tiers.change_budget(room_for(path, 1), stopped)
        assert tiers.plan.streamed
        np.testing.assert_array_equal(all_logits(model), resident("untied"))
        for block, place in zip(tiers.blocks, tiers.snapshot().blocks, strict=True):
            assert (tiers.resident(block) is not None) == (place.tier is Tier.RAM)
        assert tiers.change_budget(room_for(path, 1), never), "going on reads what is missing"
        assert tiers.plan.streamed == ()
        np.testing.assert_array_equal(all_logits(model), resident("untied"))


def test_a_disk_that_fails_while_blocks_come_leaves_a_model_that_works(
    paths: dict[str, Path], resident: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = paths["split"]
    with opened(path, 0.2) as model:
        tiers = tiers_of(model)
        with monkeypatch.context() as patched:
            spoil(patched, "EIO", 5)
            with pytest.raises(StreamError):
                tiers.change_budget(room_for(path, 1), never)
        np.testing.assert_array_equal(all_logits(model), resident("split"))


def test_memory_that_cannot_be_had_leaves_the_blocks_that_are_there(
    paths: dict[str, Path], resident: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(n_bytes: int) -> None:
        raise MemoryError

    path = paths["tied"]
    with opened(path, 0.5) as model:
        tiers = tiers_of(model)
        n_resident = len(tiers.plan.resident)
        with monkeypatch.context() as patched:
            patched.setattr("engine.tiers.residents.Region", fail)
            with pytest.raises(MemoryError):
                tiers.change_budget(room_for(path, 1), never)
        assert len(tiers.plan.resident) == n_resident
        np.testing.assert_array_equal(all_logits(model), resident("tied"))


def test_a_budget_that_is_too_small_changes_nothing(paths: dict[str, Path]) -> None:
    with opened(paths["tied"], 0.5) as model:
        tiers = tiers_of(model)
        before = tiers.snapshot()
        with pytest.raises(BudgetError):
            tiers.change_budget(room_for(paths["tied"], 0) - 1, never)
        assert tiers.snapshot().blocks == before.blocks
        assert tiers.snapshot().budget_bytes == before.budget_bytes


def test_budgets_up_and_down_leave_nothing_behind(paths: dict[str, Path]) -> None:
    def use() -> None:
        with opened(paths["split"], 0.0) as model:
            for share in (1.0, 0.0, 0.5, 1.0):
                tiers_of(model).change_budget(room_for(paths["split"], share), never)
                all_logits(model)

    with nothing_leaks():
        use()


def test_passes_are_counted(paths: dict[str, Path]) -> None:
    with opened(paths["tied"], 0.5) as model:
        assert tiers_of(model).snapshot().passes == 0
        all_logits(model)
        assert tiers_of(model).snapshot().passes == 9


# -- what is shown


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", MODELS)
def test_a_snapshot_shows_every_block_and_its_bytes_add_up(
    paths: dict[str, Path], name: str, share: float
) -> None:
    gguf = open_gguf(paths[name])
    matrices = [info for info in gguf.tensors.values() if len(info.shape) == 2]
    with opened(paths[name], share) as model:
        tiers = tiers_of(model)
        snapshot = tiers.snapshot()
    assert len(snapshot.blocks) == len(tiers.blocks)
    assert sum(place.n_bytes for place in snapshot.blocks) == sum(info.n_bytes for info in matrices)
    for place, block in zip(snapshot.blocks, tiers.blocks, strict=True):
        assert (place.name, place.kind, place.layer) == (block.name, block.kind, block.layer)
        assert (place.tier is Tier.RAM) == (block.index in tiers.plan.resident)
    assert {place.quantisation for place in snapshot.blocks} <= {info.type_name for info in matrices}
    assert bytes_held(snapshot) <= snapshot.budget_bytes
    not_in_memory = [place for place in snapshot.blocks if place.tier is Tier.NVME]
    read = sum(place.n_bytes for place in not_in_memory if place.kind != BlockKind.EMBEDDING)
    assert snapshot.pass_read_bytes == read
    in_memory = sum(place.n_bytes for place in snapshot.blocks if place.tier is Tier.RAM)
    assert in_memory <= snapshot.ram_bytes
    n_resident = len(snapshot.blocks) - len(not_in_memory)
    assert [event.text.split(",")[0] for event in snapshot.events] == [
        f"{n_resident} of {len(snapshot.blocks)} blocks are in memory"
    ]
    assert (snapshot.disk_rate, snapshot.predicted_decode_tok_s, snapshot.limited_by) == (None, None, "")


def test_every_block_that_is_used_is_shown_while_others_are_on_their_way(paths: dict[str, Path]) -> None:
    shown: list[TierSnapshot] = []
    with opened(paths["untied"], 0.4, on_change=shown.append) as model:
        streamed = tiers_of(model).plan.streamed
        shown.clear()
        for _ in range(3):
            model.logits(model.hidden(IDS[:1], 0, model.backend.new_kv(64), GO_ON), GO_ON)
        end = tiers_of(model).snapshot()
    assert [snapshot.active for snapshot in shown] == [*streamed] * 3
    assert end.active is None
    for snapshot in shown:
        assert len(snapshot.in_flight) >= 1
        for index, progress in snapshot.in_flight:
            assert index in streamed
            assert 0 <= progress <= 1
    reads = [snapshot.read_bytes for snapshot in [*shown, end]]
    assert reads == sorted(reads)
    assert end.read_bytes >= 3 * end.pass_read_bytes
    assert end.read_s > 0
    assert end.stall_s >= 0


def test_nothing_is_read_when_everything_stays(paths: dict[str, Path]) -> None:
    with opened(paths["tied"]) as model:
        all_logits(model)
        snapshot = tiers_of(model).snapshot()
    assert (snapshot.read_bytes, snapshot.read_s, snapshot.stall_s, snapshot.in_flight) == (0, 0, 0, ())


def test_events_are_bounded_and_those_that_are_gone_are_counted(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.tiers.store._EVENTS_KEPT", 3)
    watch = Shortage()
    with opened(paths["untied"], watch=watch) as model:
        for _ in range(5):
            watch.next = 1
            model.hidden(IDS[:1], 0, model.backend.new_kv(64), GO_ON)
        snapshot = tiers_of(model).snapshot()
    assert (len(snapshot.events), snapshot.events_dropped) == (3, 3)
    times = [event.at for event in snapshot.events]
    assert times == sorted(times)
