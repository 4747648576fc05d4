"""What loading refuses before it allocates, and what it says it chose."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import gguf
import pytest

from engine.cancel import CancelToken
from engine.config import LoadOptions, Precision
from engine.errors import CancelledError, ContextError, EngineError, GGUFError, UnsupportedModelError
from engine.loading import LoadedModel, load_model
from kernels.quant_types import QuantType
from tests.tiny_gguf import CHATML, write_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loading") / "tiny.gguf"
    return write_tiny_model(
        path, quant_type=QuantType.Q4_K, embedding_type=QuantType.Q8_0, chat_template=CHATML
    )


def load(path: Path, **options: object) -> LoadedModel:
    return load_model(LoadOptions(path, **options), lambda stage, progress: None, CancelToken())  # type: ignore[arg-type]


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


def test_the_context_that_is_suggested_fits(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free_memory(monkeypatch, (256 << 20) + tiny.stat().st_size + 100_000)
    with pytest.raises(ContextError) as caught:
        load(tiny)
    suggested = int(str(caught.value).partition("use a context of ")[2].split()[0])
    assert 0 < suggested < 512
    assert load(tiny, context=suggested).info.max_context == suggested


def test_rows_computed_at_once_count_as_memory_and_are_no_more_than_the_context(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(tiny, context=40, chunk=1 << 30).chunk == 40
    free_memory(monkeypatch, (256 << 20) + tiny.stat().st_size + (64 << 20))
    assert load(tiny, context=20_000).chunk == 512
    with pytest.raises(ContextError, match="use a context of"):
        load(tiny, context=20_000, chunk=20_000)


@pytest.mark.parametrize("what", ["select_backend", "new_kv"])
def test_memory_that_runs_out_while_it_is_taken_is_an_error_of_one_line(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    where = "engine.loading" if what == "select_backend" else "engine.backends.cpu.CpuBackend"
    monkeypatch.setattr(f"{where}.{what}", fail)
    with pytest.raises(ContextError, match="memory ran out"):
        load(tiny)


def test_a_model_larger_than_memory_runs_from_disk_with_a_notice(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_memory(monkeypatch, (256 << 20) + tiny.stat().st_size // 2)
    assert any("larger than the memory" in notice for notice in load(tiny, context=64).notices)


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
