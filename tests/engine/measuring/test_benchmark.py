"""What a benchmark counts, in which order it measures, and that it refuses to time what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from engine.cancel import CancelToken
from engine.config import LoadOptions, Precision
from engine.errors import CancelledError, KernelError
from engine.gguf import open_gguf
from engine.measuring import benchmark, benchmark_kernels
from engine.measuring.benchmark import Cell, measure_speed, step_bytes, step_kv_bytes, training_context
from engine.model_config import read_model_config
from engine.weights import ModelWeights
from kernels.quant_types import QuantType, row_bytes
from tests.tiny_gguf import write_tiny_model

bench = pytest.importorskip("kernels.bench", reason="the C kernels were not built: no compiler?")

LAYER_ELEMENTS = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading of memory that takes no time, and small matrices."""
    monkeypatch.setattr(bench, "read_bandwidth", lambda threads: threads * 1e10)
    monkeypatch.setattr(bench, "_MATRIX_BYTES", 1_000_000)
    monkeypatch.setattr(bench, "_COMPUTE_ROWS", 48)
    monkeypatch.setattr(bench, "ROW_LENGTH", 256)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("benchmark") / "tiny.gguf", quant_type=QuantType.Q4_0)


def measure(path: Path, *, cancel: CancelToken | None = None, **changes: object) -> tuple[Cell, ...]:
    lengths = {"n_prompt": 20, "n_decode": 4, "depths": [0], "repetitions": 3} | changes
    options = LoadOptions(path, threads=1)
    return measure_speed(options, cancel=cancel or CancelToken(), **lengths).cells  # type: ignore[arg-type]


def test_the_figures_of_a_cell_agree_with_each_other(tiny: Path) -> None:
    (cell,) = measure(tiny)
    assert (cell.path, cell.quantisation, cell.threads, cell.depth) == (str(tiny), "Q4_0", 1, 0)
    assert cell.prefill_tok_s is not None
    assert cell.ttft_ms == pytest.approx(20 / cell.prefill_tok_s * 1000)
    assert cell.prefill_tok_s_min <= cell.prefill_tok_s <= cell.prefill_tok_s_max  # type: ignore[operator]
    assert cell.decode_tok_s is not None
    assert cell.decode_tok_s_min <= cell.decode_tok_s <= cell.decode_tok_s_max  # type: ignore[operator]
    assert cell.weight_gb_s == pytest.approx(cell.weight_bytes * cell.decode_tok_s / 1e9)
    assert cell.read_gb_s == 10
    assert cell.bandwidth_share == pytest.approx(cell.weight_gb_s / 10)  # type: ignore[operator]


def test_prompts_are_measured_at_depth_0_and_depths_in_rising_order(tiny: Path) -> None:
    first, second = measure(tiny, depths=[30, 0])
    assert (first.depth, first.prompt_tokens, second.depth, second.prompt_tokens) == (0, 20, 30, 0)
    assert first.prefill_tok_s is not None
    assert (second.prefill_tok_s, second.ttft_ms) == (None, None)
    assert second.decode_tok_s is not None


def test_what_was_not_asked_for_is_not_measured(tiny: Path) -> None:
    (no_decode,) = measure(tiny, n_decode=0)
    assert (no_decode.decode_tok_s, no_decode.weight_gb_s, no_decode.bandwidth_share) == (None, None, None)
    (no_prefill,) = measure(tiny, n_prompt=0)
    assert (no_prefill.prefill_tok_s, no_prefill.ttft_ms) == (None, None)


class Call(NamedTuple):
    what: str
    start: int
    count: int


def test_repetitions_take_turns_and_each_depth_is_filled_once(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Call] = []
    prefill, decode_step = benchmark.prefill, benchmark.decode_step

    def seen_prefill(model, session, token_ids, **options):  # type: ignore[no-untyped-def]
        calls.append(Call("prefill", len(session.ids), len(token_ids)))
        return prefill(model, session, token_ids, **options)

    def seen_step(model, session, token_id, cancel):  # type: ignore[no-untyped-def]
        calls.append(Call("step", len(session.ids), 1))
        return decode_step(model, session, token_id, cancel)

    monkeypatch.setattr(benchmark, "prefill", seen_prefill)
    monkeypatch.setattr(benchmark, "decode_step", seen_step)
    measure(tiny, depths=[0, 40, 50], repetitions=2, n_decode=1)
    turn = [Call("prefill", 0, 20), Call("step", 0, 1)]
    warm_up = [Call("prefill", 0, 32), Call("step", 0, 1)]
    assert calls[:6] == warm_up + turn + turn
    # What was decoded is forgotten, what was read before it is not.
    assert calls[6:10] == [Call("prefill", 0, 40), *[Call("step", 40, 1)] * 3]
    assert calls[10:] == [Call("prefill", 40, 10), *[Call("step", 50, 1)] * 3]


def test_each_step_is_fed_what_the_one_before_it_drew(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, drawn = [], []
    decode_step, sampler = benchmark.decode_step, benchmark.Sampler

    def seen_step(model, session, token_id, cancel):  # type: ignore[no-untyped-def]
        fed.append(token_id)
        return decode_step(model, session, token_id, cancel)

    class Seen(sampler):  # type: ignore[misc, valid-type]
        def __call__(self, logits, history):  # type: ignore[no-untyped-def]
            drawn.append(super().__call__(logits, history))
            return drawn[-1]

    monkeypatch.setattr(benchmark, "decode_step", seen_step)
    monkeypatch.setattr(benchmark, "Sampler", Seen)
    measure(tiny, n_prompt=0, n_decode=6, repetitions=1)
    assert fed[-5:] == drawn[-6:-1]


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_reads_every_matrix_and_only_the_head_of_the_two_tables(tmp_path: Path, tied: bool) -> None:
    path = write_tiny_model(
        tmp_path / "m.gguf", quant_type=QuantType.Q4_0, embedding_type=QuantType.Q8_0, tied=tied
    )
    gguf = open_gguf(path)
    weights = ModelWeights(gguf, read_model_config(gguf))
    layers = 2 * LAYER_ELEMENTS // 32 * 18
    assert step_bytes(weights) == layers + 320 * row_bytes(QuantType.Q8_0, 256)


def test_a_step_reads_the_positions_that_it_sees(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", architecture="gemma3", layers=6, sliding_window=16)
    config = read_model_config(open_gguf(path))
    row = 2 * 2 * 64 * 2  # keys and values, two KV heads of 64 in float16
    assert step_kv_bytes(config, Precision.FAST, 0, 1) == 6 * row
    # Five layers have a window of 16 positions.
    assert step_kv_bytes(config, Precision.FAST, 99, 1) == (5 * 16 + 100) * row
    assert step_kv_bytes(config, Precision.FAST, 99, 3) == (5 * 16 + 101) * row
    assert step_kv_bytes(config, Precision.FLOAT, 99, 1) == 2 * (5 * 16 + 100) * row
    assert step_kv_bytes(config, Precision.FAST, 99, 0) == 0


@pytest.mark.parametrize("precision", list(Precision))
def test_a_wrong_product_is_not_timed(
    tiny: Path, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels import verification

    asked = []

    def is_right(data: object, quant_type: QuantType, n_columns: int, *, float_precision: bool) -> bool:
        asked.append((quant_type, n_columns, float_precision))
        return n_columns != 512

    monkeypatch.setattr(verification, "product_is_right", is_right)
    monkeypatch.setattr(benchmark, "perf_counter", lambda: pytest.fail("timed before it was verified"))
    with pytest.raises(KernelError, match=r"blk\.0\.ffn_down\.weight \(Q4_0\) differs"):
        measure_speed(
            LoadOptions(tiny, precision=precision),
            n_prompt=4,
            n_decode=4,
            depths=[0],
            repetitions=1,
            cancel=CancelToken(),
        )
    assert asked == [(QuantType.Q4_0, width, precision is Precision.FLOAT) for width in (256, 512)]


def test_a_measurement_is_stopped(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = CancelToken()

    def stop(threads: int) -> float:
        cancel.cancel()
        return 1e10

    monkeypatch.setattr(bench, "read_bandwidth", stop)
    with pytest.raises(CancelledError):
        measure(tiny, cancel=cancel)
    with pytest.raises(CancelledError):
        benchmark_kernels.measure_kernel(QuantType.Q4_0, threads=1, repetitions=1, cancel=cancel)


def test_the_training_context_is_the_files_own(tiny: Path) -> None:
    assert training_context(tiny) == 512


def test_numpy_has_no_bandwidth_to_compare_with(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "engine.backends.cpu", None)
    (cell,) = measure(tiny, repetitions=1)
    assert cell.decode_tok_s is not None
    assert (cell.read_gb_s, cell.bandwidth_share) == (None, None)


def test_the_figures_of_a_product_agree_with_each_other() -> None:
    report = benchmark_kernels.measure_kernel(QuantType.Q6_K, threads=2, repetitions=3, cancel=CancelToken())
    assert [cell.columns for cell in report.cells] == list(bench.COLUMNS)
    one = report.cells[0]
    assert one.relative_time == 1
    for cell in report.cells:
        n_bytes = cell.rows * row_bytes(QuantType.Q6_K, cell.row_length)
        assert cell.us_min <= cell.us <= cell.us_max
        assert cell.weight_gb_s == pytest.approx(n_bytes / cell.us / 1e3)
        assert cell.gflop_s == pytest.approx(2 * cell.rows * cell.row_length * cell.columns / cell.us / 1e3)
        assert cell.bandwidth_share == pytest.approx(cell.weight_gb_s / 20)
        assert cell.relative_time == pytest.approx(cell.us / cell.rows / (one.us / one.rows))


def test_a_product_that_differs_from_its_oracle_is_an_error_of_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "result_is_right", lambda *arguments: False)
    with pytest.raises(KernelError, match=r"the Q4_0 product with 1 columns differs .* nothing was timed"):
        benchmark_kernels.measure_kernel(QuantType.Q4_0, threads=1, repetitions=1, cancel=CancelToken())


def test_without_the_extension_there_is_nothing_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("kernels.bench")
    monkeypatch.setitem(sys.modules, "kernels.bench", None)
    with pytest.raises(KernelError, match="install a C compiler"):
        benchmark_kernels.measure_kernel(QuantType.Q4_0, threads=1, repetitions=1, cancel=CancelToken())
