"""What a benchmark measures of a GPU, which the emulator stands in for: figures that agree, who is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.backends import cuda, gpus
from engine.cancel import CancelToken
from engine.config import KVType, LoadOptions, Precision
from engine.errors import CancelledError, DeviceError, GGUFError, KernelError
from engine.gguf import open_gguf
from engine.measuring import benchmark, benchmark_gpu, benchmark_kernels, benchmark_ops
from engine.measuring.benchmark import Cell, measure_speed, step_kv_bytes
from engine.measuring.benchmark_gpu import Ceilings, measure_gpu
from engine.measuring.benchmark_kernels import measure_gpu_kernel
from engine.measuring.benchmark_ops import (
    EIGHT_TOKENS,
    WHOLE_STEP,
    OpCell,
    measure_ops,
    op_name,
    time_launches,
)
from engine.model_config import read_model_config
from kernels import errors as kernel_errors
from kernels.cuda import bench, search, verification
from kernels.cuda.device import Kernel
from kernels.cuda.devices import DeviceFacts
from kernels.quant_types import QuantType
from tests.engine.cuda_models import GPU, Borrowed
from tests.kernels.cuda.emulated_device import EmulatedDevice, compiler_missing
from tests.tiny_gguf import write_tiny_model

FACTS = DeviceFacts(0, GPU.name, 90, 4, GPU.total_bytes, GPU.free_bytes, GPU.driver)
CEILINGS = {"read_bandwidth": 9e11, "copy_bandwidth": 8e11, "h2d_bandwidth": 2e10}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("benchmark_gpu") / "tiny.gguf"
    return write_tiny_model(path, quant_type=QuantType.Q8_0, layers=1)


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Borrowed]]:
    """The emulators that were opened as a GPU; its ceilings are known, and what is timed is small."""
    if reason := compiler_missing():
        pytest.skip(reason)
    found: list[Borrowed] = []

    def open_gpu(device: str | None, cache_dir: Path | None) -> tuple[Any, gpus.GpuFacts]:
        facts = gpus.gpu_facts(gpus.choose_gpu(device))
        found.append(Borrowed(EmulatedDevice()))
        return found[-1], facts

    monkeypatch.setattr(gpus, "devices", lambda: [FACTS])
    for module in ("select", "gpus"):
        monkeypatch.setattr(f"engine.backends.{module}.open_gpu", open_gpu)
    for each in (benchmark_gpu, benchmark_kernels):
        monkeypatch.setattr(each, "open_gpu", open_gpu)
    for name, rate in CEILINGS.items():
        monkeypatch.setattr(bench, name, lambda device, rate=rate: rate)
    monkeypatch.setattr(bench, "SHAPES", ((32, 256),))
    monkeypatch.setattr(bench, "_ROTATED_BYTES", 1)
    monkeypatch.setattr(bench, "_SHORTEST", 0.0)
    monkeypatch.setattr(verification, "_TOKENS", (1,))
    yield found


def measure(path: Path, **changes: Any) -> tuple[Cell, ...]:
    lengths = {"n_prompt": 10, "n_decode": 2, "depths": [0], "repetitions": 1}
    options = {name: changes.pop(name) for name in ("device", "kv_type") if name in changes}
    loading = LoadOptions(path, threads=1, **{"device": "cuda", **options})
    report = measure_speed(loading, cancel=CancelToken(), **{**lengths, **changes})
    return report.cells


def test_a_cell_of_a_gpu_has_its_ceilings_and_the_share_of_the_host(
    tiny: Path, opened: list[Borrowed]
) -> None:
    (cell,) = measure(tiny)
    assert (cell.read_gb_s, cell.copy_gb_s, cell.h2d_gb_s) == (900, 800, 20)
    assert cell.bandwidth_share == pytest.approx(cell.weight_gb_s / 900)  # type: ignore[operator]
    assert cell.host_share is not None
    assert 0 <= cell.host_share < 1
    assert (cell.threads, cell.h2d_bytes, cell.nvme_read_bytes, cell.stall_ms) == (1, 0, 0, 0)
    assert cell.prefill_tok_s is not None
    assert cell.decode_tok_s is not None
    assert opened[0].closed


def test_a_cell_of_the_processor_has_none_of_these(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu_bench = pytest.importorskip("kernels.bench", reason="the C kernels were not built: no compiler?")
    monkeypatch.setattr(cpu_bench, "read_bandwidth", lambda threads: 1e10)
    (cell,) = measure(tiny, device="cpu")
    assert (cell.copy_gb_s, cell.h2d_gb_s, cell.host_share) == (None, None, None)
    assert (cell.read_gb_s, cell.threads) == (10, 1)


def test_the_share_of_the_host_counts_the_steps_that_were_asked_for(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every depth but the last there is room for a step ahead, which nobody waits for."""
    seen: list[cuda.GpuTimes] = []

    class Seen(cuda.GpuTimes):
        def __init__(self) -> None:
            super().__init__()
            seen.append(self)

    monkeypatch.setattr(cuda, "GpuTimes", Seen)
    measure(tiny, n_prompt=0, n_decode=2, depths=[0, 4])
    assert [len(times.spans) for times in seen] == [2 + 2 + 1, 2 + 2]


def test_a_gpu_that_fails_meanwhile_is_told_and_one_without_room_has_no_ceilings(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Borrowed]
) -> None:
    def full(device: object) -> float:
        raise kernel_errors.DeviceMemoryError(1 << 30, 0, None, 1 << 30)

    monkeypatch.setattr(bench, "read_bandwidth", full)
    (cell,) = measure(tiny, n_prompt=0)
    assert (cell.read_gb_s, cell.copy_gb_s, cell.bandwidth_share) == (None, None, None)
    assert cell.decode_tok_s is not None

    def failing(device: object) -> float:
        raise kernel_errors.DeviceError("cuStreamSynchronize: an illegal memory access")

    monkeypatch.setattr(bench, "read_bandwidth", failing)
    with pytest.raises(DeviceError, match="the GPU failed: cuStreamSynchronize"):
        measure(tiny)
    assert all(device.closed for device in opened)


def test_nothing_is_timed_on_a_gpu_before_its_products_are_right(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[QuantType, int]] = []

    def product_is_right(device, data, quant_type, n_columns, *, float_precision):  # type: ignore[no-untyped-def]
        asked.append((quant_type, n_columns))
        return False

    monkeypatch.setattr(verification, "product_is_right", product_is_right)
    monkeypatch.setattr(benchmark, "perf_counter", lambda: pytest.fail("timed before it was verified"))
    with pytest.raises(KernelError, match=r"\(Q8_0\) differs from its oracle on this machine"):
        measure(tiny)
    assert asked == [(QuantType.Q8_0, 256)]


def test_a_cache_of_8_bits_is_read_in_half_the_bytes(tiny: Path) -> None:
    config = read_model_config(open_gguf(tiny))
    row = 2 * config.n_kv_heads * config.n_layers
    half = step_kv_bytes(config, Precision.FAST, 7, 1)
    small = step_kv_bytes(config, Precision.FAST, 7, 1, kv_type=KVType.Q8_0)
    assert half == 8 * row * config.head_dim * 2
    assert small == 8 * row * (config.head_dim + 2 * config.head_dim // 32)
    exact = step_kv_bytes(config, Precision.FLOAT, 7, 1, kv_type=KVType.Q8_0)
    assert exact == 2 * half


# -- operations


def ops_of(path: Path, **options: Any) -> tuple[OpCell, ...]:
    loading = LoadOptions(path, threads=1, **{"device": "cuda", **options})
    return measure_ops(loading, depths=[3, 0], repetitions=2, cancel=CancelToken()).cells


def test_every_launch_of_a_step_belongs_to_one_operation(
    tiny: Path, opened: list[Borrowed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark_ops, "_LEAST_LAUNCHES", 1)
    cells = ops_of(tiny)
    assert list(dict.fromkeys(cell.depth for cell in cells)) == [0, 3]
    for depth in (0, 3):
        whole, eight, *ops = [cell for cell in cells if cell.depth == depth]
        assert (whole.op, whole.share) == (WHOLE_STEP, 1)
        assert (eight.op, eight.share) == (EIGHT_TOKENS, pytest.approx(eight.us / whole.us))
        assert whole.launches == sum(cell.launches for cell in ops)
        assert len({cell.op for cell in ops}) == len(ops)
        for cell in (whole, *ops):
            assert cell.us_min <= cell.us <= cell.us_max
            assert cell.share == pytest.approx(cell.us / whole.us)
        products = {cell.op for cell in ops if cell.op.startswith("gemv")}
        assert all(op.startswith("gemv Q8_0 ") for op in products)
        assert any(op.endswith(" ADD") for op in products)
        assert any("GATED" in op for op in products)
    assert opened[0].closed


def test_operations_of_a_processor_are_not_timed(tiny: Path) -> None:
    with pytest.raises(DeviceError, match="name a GPU with --device cuda, or leave out --ops"):
        ops_of(tiny, device="cpu")


def test_kernels_have_the_names_that_tell_them_apart() -> None:
    assert op_name(Kernel.of("rmsnorm.cu", "rmsnorm", CHUNKS=2)) == "rmsnorm"
    product = Kernel.of("gemv.cu", "gemv", WIDTH=4096, FORMAT="Q4_K", EPILOGUE="ADD", WARPS=8)
    assert op_name(product) == "gemv Q4_K 4096 ADD"


def test_times_are_those_of_one_step_however_often_it_is_repeated() -> None:
    counted = {"few": 0, "many": 0}

    def counting(op: str) -> Any:
        def launch() -> None:
            device._do(lambda: counted.__setitem__(op, counted[op] + 1))

        return launch

    device = EmulatedDevice()
    by_op = {"few": [counting("few")] * 5, "many": [counting("many")] * 100}
    seconds = time_launches(device, by_op, 3, CancelToken())
    assert {op: len(times) for op, times in seconds.items()} == {"few": 3, "many": 3}
    assert counted == {"few": 6 * 65, "many": 6 * 100}  # once before and once within each time
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(CancelledError):
        time_launches(device, by_op, 1, cancel)


# -- products and settings


def test_the_figures_of_a_product_agree_with_each_other(opened: list[Borrowed]) -> None:
    report = measure_gpu_kernel(
        QuantType.Q4_0, device="cuda", cache_dir=None, repetitions=2, cancel=CancelToken()
    )
    assert report.device == "Testcard 9000, cuda sm_90"
    assert [cell.columns for cell in report.cells] == list(bench.COLUMNS)
    for cell in report.cells:
        assert (cell.threads, cell.rows, cell.row_length, cell.read_gb_s) == (0, 32, 256, 900)
        assert cell.us_min <= cell.us <= cell.us_max
        assert cell.bandwidth_share == pytest.approx(cell.weight_gb_s / 900)
        assert cell.relative_time == pytest.approx(cell.us / report.cells[0].us)
    assert opened[0].closed


def test_a_wrong_product_and_a_failing_gpu_are_told_and_the_gpu_is_closed(
    monkeypatch: pytest.MonkeyPatch, opened: list[Borrowed]
) -> None:
    def wrong(*_: object, **__: object) -> None:
        raise ArithmeticError("the Q4_0 product differs from its oracle")

    def failing(*_: object, **__: object) -> None:
        raise kernel_errors.DeviceError("cuLaunchKernel: unspecified launch failure")

    options: dict[str, Any] = {"device": None, "cache_dir": None, "repetitions": 1, "cancel": CancelToken()}
    for fault, error, words in (
        (wrong, KernelError, "differs from its oracle on this GPU: nothing was timed"),
        (failing, DeviceError, "the GPU failed: cuLaunchKernel"),
    ):
        monkeypatch.setattr(bench, "time_products", fault)
        with pytest.raises(error, match=words):
            measure_gpu_kernel(QuantType.Q4_0, **options)
        assert opened[-1].closed
    with pytest.raises(DeviceError, match="there is no cuda:3 that can be used"):
        measure_gpu_kernel(QuantType.Q4_0, **{**options, "device": "cuda:3"})


def test_the_probe_measures_every_type_and_searches_for_a_models_products_only(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Borrowed]
) -> None:
    searched: list[search.Shape] = []

    def found(device, shapes, measured, *, prepare, before_each, on_progress):  # type: ignore[no-untyped-def]
        assert measured == tmp_path / "launch_settings.toml"
        searched.extend(shapes)
        prepare([])
        before_each()
        on_progress(1, 2)
        return [search.Found(shapes[0], 1, search.GemvSettings(1, 1, 1, 1), 2e-6, 3e-6)]

    def timed(device, quant_type, *, shapes, columns, repetitions, before_each):  # type: ignore[no-untyped-def]
        assert (shapes, columns) == (((32, 256),), (1,))
        before_each()
        return [bench.ProductTimes(quant_type, 1, 32, 256, 9000, [1e-8, 2e-8, 3e-8])]

    linked: list[tuple[object, ...]] = []

    def probe_link(gpu, threads, rates_file, cancel):  # type: ignore[no-untyped-def]
        linked.append((gpu.quant_type.name, threads, rates_file))
        assert gpu.device is opened[-1]
        return None, ("too full",)

    monkeypatch.setattr(benchmark_gpu, "probe_link", probe_link)
    monkeypatch.setattr(search, "search", found)
    monkeypatch.setattr(bench, "time_products", timed)
    stages: list[str] = []

    def told(stage: str, share: float) -> None:
        assert 0 <= share <= 1
        stages.append(stage)

    rates = measure_gpu(
        tiny, "cuda:0", 3, tmp_path, tmp_path / "rates.json", on_progress=told, cancel=CancelToken()
    )
    assert rates.ceilings == Ceilings(9e11, 8e11, 2e10)
    assert rates.gemv == {quant_type.name: pytest.approx(4.5e11) for quant_type in QuantType}
    assert [(each.us, each.us_before) for each in rates.searched] == [(pytest.approx(2), pytest.approx(3))]
    assert list(dict.fromkeys(stages)) == [
        "measuring the GPU",
        "timing products",
        "measuring the link",
        "searching for launch settings",
    ]
    config = read_model_config(open_gguf(tiny))
    assert len(set(searched)) == len(searched)
    assert [shape for shape in searched if shape.gated] == [
        search.Shape(QuantType.Q8_0, 2 * config.ffn_size, config.hidden_size, gated=True)
    ]
    searched.clear()
    without = measure_gpu(
        None, None, 3, tmp_path, tmp_path / "rates.json", on_progress=told, cancel=CancelToken()
    )
    assert linked == [("Q8_0", 3, tmp_path / "rates.json"), ("Q4_K", 3, tmp_path / "rates.json")]
    assert (rates.quant_type, rates.placement, rates.notices) == ("Q8_0", None, ("too full",))
    assert (without.searched, searched) == ((), [])
    assert all(device.closed for device in opened)


def test_what_is_no_model_is_refused_before_the_gpu_is_opened(tmp_path: Path, opened: list[Borrowed]) -> None:
    (tmp_path / "note.gguf").write_bytes(b"hi")
    with pytest.raises(GGUFError):
        measure_gpu(
            tmp_path / "note.gguf",
            None,
            None,
            tmp_path,
            None,
            on_progress=lambda stage, share: None,
            cancel=CancelToken(),
        )
    assert opened == []
