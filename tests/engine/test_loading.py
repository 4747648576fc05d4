"""What loading refuses before it allocates, and what it says it chose."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import gguf
import pytest

from engine.cancel import CancelToken
from engine.config import LoadOptions, Precision
from engine.errors import (
    BudgetError,
    CancelledError,
    ContextError,
    EngineError,
    GGUFError,
    StreamError,
    UnsupportedModelError,
)
from engine.events import Tier, TierSnapshot
from engine.loading import LoadedModel, load_model
from engine.tiers import probe
from engine.tiers.budget import Budget
from kernels.quant_types import QuantType
from tests.engine.budgets import least_for_weights, memory_beside_weights
from tests.engine.tiers.faulty_disk import nothing_leaks, refuse_direct_reads, spoil
from tests.tiny_gguf import CHATML, write_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loading") / "tiny.gguf"
    return write_tiny_model(
        path, quant_type=QuantType.Q4_K, embedding_type=QuantType.Q8_0, chat_template=CHATML
    )


def load(path: Path, **options: object) -> LoadedModel:
    return load_model(LoadOptions(path, **options), lambda stage, progress: None, CancelToken())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers in the staging ring are a small part of it."""
    path = tmp_path_factory.mktemp("loading") / "deep.gguf"
    return write_tiny_model(path, quant_type=QuantType.Q4_K, layers=6, chat_template=CHATML)


def error_of(path: Path, kind: type[EngineError], **options: object) -> str:
    """What loading fails with; one line."""
    with pytest.raises(kind) as caught:
        load(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def free_memory(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    monkeypatch.setattr("engine.loading.available_memory", lambda: n_bytes)


def test_the_facts_are_those_of_the_file(tiny: Path) -> None:
    info = load(tiny, context=100).info
    assert (info.architecture, info.n_layers, info.hidden_size, info.vocab_size) == ("llama", 2, 256, 320)
    assert (info.training_context, info.max_context) == (512, 100)
    assert info.quantisation == "Q4_K"
    assert info.file_bytes == tiny.stat().st_size
    assert info.has_template
    assert info.n_parameters == 2 * 320 * 256 + 2 * (2 * 256**2 + 2 * 128 * 256 + 3 * 512 * 256 + 512) + 256


def test_the_context_is_the_models_own_when_none_is_asked_for(tiny: Path) -> None:
    assert load(tiny).session.kv.max_context == 512


def test_a_context_beyond_training_comes_with_a_notice(tiny: Path) -> None:
    assert any("513" in notice and "512" in notice for notice in load(tiny, context=513).notices)


def test_fast_precision_takes_half_the_cache(tiny: Path) -> None:
    fast, exact = (load(tiny, precision=precision).info.kv_bytes for precision in Precision)
    assert fast * 2 == exact


def test_a_context_larger_than_memory_is_refused_before_it_is_allocated(tiny: Path) -> None:
    with pytest.raises(ContextError, match=r"1000000000 tokens needs .* use a context of \d+ or less"):
        load(tiny, context=1_000_000_000)


def test_the_context_that_is_suggested_fits_beside_weights_that_are_streamed(deep: Path) -> None:
    budget = Budget(memory_beside_weights(deep, 600) + least_for_weights(deep))
    error = error_of(deep, ContextError, context=20_000, ram_budget=budget)
    assert "a context of 20000 tokens needs 61 MB beside" in error
    assert "--ram-budget" in error
    assert "use a context of 600 or less (-c)" in error
    loaded = load(deep, context=600, ram_budget=budget)
    assert loaded.info.max_context == 600
    loaded.close()


def test_a_budget_without_room_for_any_context_suggests_none(deep: Path) -> None:
    error = error_of(deep, ContextError, context=64, ram_budget=Budget(5_000_000))
    assert "the memory budget is 5 MB: give at least " in error
    assert "use a context" not in error


def test_weights_that_not_even_stream_are_refused_with_what_they_take(deep: Path) -> None:
    least = least_for_weights(deep)
    budget = Budget(memory_beside_weights(deep, 64) + least - 1)
    with nothing_leaks():
        error = error_of(deep, BudgetError, context=64, ram_budget=budget)
    enough = -(-(memory_beside_weights(deep, 64) + least) // 10**6)
    assert error.endswith(f"give at least {enough}M (--ram-budget)")


def test_rows_computed_at_once_count_as_memory_and_are_no_more_than_the_context(tiny: Path) -> None:
    loaded = load(tiny, context=40, chunk=1 << 30)
    assert loaded.chunk == 40
    loaded.close()
    budget = Budget(memory_beside_weights(tiny, 20_000) + (2 << 20))
    loaded = load(tiny, context=20_000, ram_budget=budget)
    assert loaded.chunk == 512
    loaded.close()
    with pytest.raises(ContextError, match=r"for computing"):
        load(tiny, context=20_000, chunk=20_000, ram_budget=budget)


@pytest.mark.parametrize("what", ["loading.open_backend", "backends.cpu.CpuBackend.new_kv"])
def test_memory_that_runs_out_while_it_is_taken_is_an_error_of_one_line(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(f"engine.{what}", fail)
    with nothing_leaks():
        assert "memory ran out" in error_of(tiny, ContextError)


def test_a_model_larger_than_the_budget_runs_from_disk_with_a_notice(deep: Path) -> None:
    budget = Budget(memory_beside_weights(deep, 64) + least_for_weights(deep))
    shown: list[TierSnapshot] = []
    loaded = load_model(
        LoadOptions(deep, context=64, ram_budget=budget),
        lambda stage, progress: None,
        CancelToken(),
        on_tiers=shown.append,
    )
    assert any("are read from disk for every token (--ram-budget" in notice for notice in loaded.notices)
    assert shown[-1].pass_read_bytes > 0
    assert {place.tier for place in shown[-1].blocks} == {Tier.NVME}
    loaded.close()


def test_a_model_that_fits_is_in_memory_and_says_nothing(tiny: Path) -> None:
    with nothing_leaks():
        loaded = load(tiny)
        assert loaded.notices == ()
        assert loaded.backend.tiers is not None
        assert {place.tier for place in loaded.backend.tiers.snapshot().blocks} == {Tier.RAM}
        loaded.close()
        loaded.close()
        del loaded


def test_the_default_budget_is_a_share_of_available_memory(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = memory_beside_weights(deep, 64) + least_for_weights(deep)
    free_memory(monkeypatch, needed * 10 // 7 + 10)
    loaded = load(deep, context=64)
    assert any("from disk" in notice for notice in loaded.notices)
    loaded.close()
    free_memory(monkeypatch, needed * 10 // 7 - 1000)
    with pytest.raises(BudgetError):
        load(deep, context=64)


def test_a_budget_above_available_memory_is_taken_with_a_notice(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_memory(monkeypatch, 10_000_000)
    loaded = load(tiny, context=64, ram_budget=Budget(100_000_000))
    assert any("more than the 10 MB that are available" in notice for notice in loaded.notices)
    loaded.close()


def test_rates_are_measured_for_what_is_streamed_and_kept(
    deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_LEAST_BYTES", 2 << 20)
    monkeypatch.setattr(probe, "_LEAST_FILE", 0)
    monkeypatch.setattr(probe, "cache_bytes", lambda: 0)
    budget = Budget(memory_beside_weights(deep, 64) + least_for_weights(deep))
    file = tmp_path / "rates.json"

    def snapshot(**options: object) -> TierSnapshot:
        loaded = load(deep, context=64, rates_file=file, threads=1, **options)
        assert loaded.backend.tiers is not None
        loaded.close()
        return loaded.backend.tiers.snapshot()

    resident = snapshot()
    assert (resident.disk_rate, resident.predicted_decode_tok_s) == (None, None)  # not worth measuring
    assert not file.exists()
    streamed = snapshot(ram_budget=budget)
    assert streamed.disk_rate and streamed.predicted_decode_tok_s and streamed.limited_by
    known = snapshot()
    assert known.disk_rate is None  # nothing is read
    assert known.predicted_decode_tok_s and known.limited_by
    monkeypatch.delattr(probe, "probe_memory")
    assert snapshot(ram_budget=budget).disk_rate == streamed.disk_rate


def test_what_the_disk_gave_while_it_was_streamed_from_is_known_to_the_next_load(
    deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_LEAST_BYTES", 2 << 20)
    monkeypatch.setattr(probe, "_LEAST_FILE", 0)
    monkeypatch.setattr(probe, "cache_bytes", lambda: 0)
    monkeypatch.setattr(probe, "probe_disk", lambda path, cancel: 1e15)
    monkeypatch.setattr("engine.tiers.disk_pace._LEAST_BYTES", 1)
    budget = Budget(memory_beside_weights(deep, 64) + least_for_weights(deep))
    options = {"context": 64, "rates_file": tmp_path / "rates.json", "threads": 1, "ram_budget": budget}
    loaded = load(deep, **options)
    for position in range(2):
        loaded.model.hidden([5], position, loaded.session.kv, CancelToken())
    tiers = loaded.backend.tiers
    assert tiers is not None
    rate = tiers.learnt_disk_rate
    assert rate is not None
    assert rate < 1e14
    loaded.close()
    again = load(deep, **options)
    assert again.backend.tiers is not None
    assert again.backend.tiers.snapshot().disk_rate == rate
    assert again.backend.tiers.learnt_disk_rate is None
    again.close()


def test_a_disk_that_cannot_be_read_directly_is_named_in_a_notice(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct_reads(monkeypatch)
    budget = Budget(memory_beside_weights(deep, 64) + least_for_weights(deep))
    loaded = load(deep, context=64, ram_budget=budget)
    assert any("through the page cache" in notice for notice in loaded.notices)
    loaded.close()


def test_without_the_c_kernels_numpy_computes_and_says_so(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "engine.backends.cpu", None)
    loaded = load(tiny)
    assert loaded.backend.name == "numpy"
    assert "not installed" in loaded.backend.reason
    assert any("NumPy computes" in notice for notice in loaded.notices)


def test_progress_rises_to_the_end(tiny: Path) -> None:
    stages: list[tuple[str, float]] = []
    load_model(LoadOptions(tiny), lambda stage, progress: stages.append((stage, progress)), CancelToken())
    assert [progress for _, progress in stages] == sorted(progress for _, progress in stages)
    assert {"reading the weights", "building the tokenizer"} <= {stage for stage, _ in stages}


def test_a_cancelled_load_stops(tiny: Path) -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(CancelledError):
        load_model(LoadOptions(tiny), lambda stage, progress: None, token)


@pytest.mark.parametrize("stage", ["reading the weights", "preparing the backend", "building the tokenizer"])
def test_a_load_that_is_cancelled_or_fails_leaves_nothing_behind(deep: Path, stage: str) -> None:
    budget = Budget(memory_beside_weights(deep, 64) + least_for_weights(deep) + 400_000)

    def stop(now: str, progress: float) -> None:
        if now == stage:
            raise CancelledError("stopped")

    with nothing_leaks():
        for options in (LoadOptions(deep, context=64), LoadOptions(deep, context=64, ram_budget=budget)):
            with pytest.raises(CancelledError):
                load_model(options, stop, CancelToken())


@pytest.mark.parametrize("fault", ["EIO", "cut"])
def test_a_disk_that_fails_while_loading_is_an_error_of_one_line(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    spoil(monkeypatch, fault)
    with nothing_leaks():
        assert tiny.name in error_of(tiny, StreamError)


def test_a_load_that_is_cancelled_does_not_wait_for_the_tokenizer(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, token = threading.Event(), CancelToken()

    def slow(gguf: object) -> None:
        token.cancel()
        go_on.wait(30)

    monkeypatch.setattr("engine.loading.load_tokenizer", slow)
    with pytest.raises(CancelledError):
        load_model(LoadOptions(tiny), lambda stage, progress: None, token)
    assert not go_on.is_set()
    go_on.set()


def test_more_layers_than_any_model_has_are_refused_before_anything_is_made_for_them(
    tiny: Path, tmp_path: Path
) -> None:
    data = bytearray(tiny.read_bytes())
    key = b"llama.block_count"
    at = data.index(key) + len(key) + 4  # the type
    assert data[at] == 2
    data[at : at + 4] = (1 << 24).to_bytes(4, "little")
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(GGUFError, match="block_count is 16777216"):
        load(tmp_path / "m.gguf")


def test_a_tokenizer_of_another_size_than_the_embedding_is_refused(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = load(write_tiny_model(tmp_path / "m.gguf", vocab_size=330)).tokenizer
    monkeypatch.setattr("engine.loading.load_tokenizer", lambda gguf: other)
    with pytest.raises(GGUFError, match=r"330 tokens beside 320 rows"):
        load(tiny)


@pytest.mark.parametrize("case", ["missing", "folder", "empty", "text", "cut"])
def test_a_file_that_is_no_model_is_refused_in_one_line(tiny: Path, tmp_path: Path, case: str) -> None:
    path = tmp_path / "m.gguf"
    if case == "folder":
        path.mkdir()
    elif case != "missing":
        data = tiny.read_bytes()
        path.write_bytes({"empty": b"", "text": b"no model" * 100, "cut": data[: len(data) // 2]}[case])
    with pytest.raises(EngineError) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_an_unsupported_tensor_type_is_named(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", quant_type=QuantType.F16)
    data = bytearray(path.read_bytes())
    name = b"blk.1.ffn_up.weight"
    type_at = data.index(name) + len(name) + 4 + 2 * 8  # n_dims, two dims
    assert data[type_at] == QuantType.F16
    data[type_at] = gguf.GGMLQuantizationType.I16
    path.write_bytes(data)
    with pytest.raises(UnsupportedModelError, match=r"blk\.1\.ffn_up\.weight.*I16"):
        load(path)
