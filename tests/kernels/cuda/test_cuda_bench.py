"""Nothing is timed that was not verified; what a search finds is what holds afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from time import perf_counter, sleep
from typing import NamedTuple

import numpy as np
import pytest

from kernels.cuda import bench, launch_settings, matrices, products, search
from kernels.cuda.device import Array, Device, Kernel
from kernels.cuda.launch_settings import LaunchSettings
from kernels.cuda.matrices import DeviceMatrix
from kernels.cuda.norms import Rounded
from kernels.cuda.search import Shape
from kernels.cuda.sketch import Sketch
from kernels.quant_types import QuantType


class Card(NamedTuple):
    name: str = "NVIDIA H200"
    compute_capability: int = 90
    n_processors: int = 132


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little memory and few repetitions: these tests look at no time."""
    monkeypatch.setattr(bench, "_READ_BYTES", 1 << 20)
    monkeypatch.setattr(bench, "_LEAST_READ_BYTES", 1 << 19)
    monkeypatch.setattr(bench, "_UPLOAD_BYTES", 1 << 20)
    monkeypatch.setattr(bench, "_ROTATED_BYTES", 1 << 10)
    monkeypatch.setattr(bench, "_SHORTEST", 0.0)
    monkeypatch.setattr(bench, "_PASSES", 1)
    monkeypatch.setattr(bench, "_COPY_BYTES", 1 << 10)
    monkeypatch.setattr(bench, "_STEP_BYTES", 100_000)
    monkeypatch.setattr(bench, "SHAPES", ((96, 256), (32, 512)))
    monkeypatch.setattr(bench, "_EXPANDED", (64, 256))
    monkeypatch.setattr(bench, "_PROMPT_TOKENS", 8)
    monkeypatch.setattr(bench, "_CROSSINGS", 3)
    monkeypatch.setattr(bench, "_LONGEST_S", 1e-3)
    monkeypatch.setattr(search, "_ROUNDS", 1)


def test_rates_of_memory_are_measured(device: Device) -> None:
    assert bench.read_bandwidth(device) > 0
    assert bench.copy_bandwidth(device) > 0
    assert bench.h2d_bandwidth(device) > 0


def test_reading_and_copying_reach_every_byte(device: Device) -> None:
    """Sizes that are no multiple of what a block takes at once."""
    pieces = 3 * 512 * 8 + 77
    data = np.random.default_rng(0).integers(0, 256, (pieces, 16), np.uint8)
    to, from_, out = device.zeros(data.shape, np.uint8), device.upload(data), device.zeros(1, np.uint32)
    device.launch(Kernel.of("copy.cu", "copy"), 2, 512, to, from_, np.uint64(pieces))
    assert np.array_equal(device.download(to), data)
    words = data.view(np.uint32).reshape(-1)
    # One thread reads everything: what it all comes to is then the value that shows.
    words[0] ^= np.bitwise_xor.reduce(words) ^ np.uint32(0x5A17C3E9)
    device.launch(Kernel.of("read.cu", "read"), 1, 1, device.upload(data), np.uint64(pieces), out)
    assert device.download(out)[0] == 0x5A17C3E9


@pytest.mark.parametrize("quant_type", [QuantType.Q4_K, QuantType.Q8_0, QuantType.F16], ids=lambda t: t.name)
def test_each_shape_and_number_of_columns_gets_an_entry(device: Device, quant_type: QuantType) -> None:
    calls = []
    times = bench.time_products(
        device,
        quant_type,
        shapes=[(300, 256), (40, 96)],
        columns=(1, 3),
        repetitions=2,
        before_each=lambda: calls.append(0),
    )
    shapes = [(300, 256)] if quant_type is QuantType.Q4_K else [(300, 256), (40, 96)]
    assert [(each.rows, each.row_length, each.columns) for each in times] == [
        (*shape, columns) for shape in shapes for columns in (1, 3)
    ]
    for each in times:
        assert each.quant_type is quant_type and len(each.seconds) == 2 and min(each.seconds) > 0
        assert each.weight_bytes == matrices.vram_bytes(quant_type, each.rows, each.row_length)
    assert len(calls) == len(times) * 3


def test_a_wrong_product_is_not_timed(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(
        device: Device,
        matrix: DeviceMatrix,
        x: Rounded | Array,
        out: Array,
        *,
        settings: LaunchSettings | None,
    ) -> None:
        multiply(device, matrix, x, out, settings=settings)
        multiply(device, matrix, x, out, accumulate=True, settings=settings)

    multiply = products.multiply
    monkeypatch.setattr(products, "multiply", wrong)
    monkeypatch.setattr(bench, "launch_seconds", lambda *args: pytest.fail("timed"))
    with pytest.raises(ArithmeticError, match="Q4_0 product of 64 rows of 256 with 1 columns"):
        bench.time_products(device, QuantType.Q4_0, shapes=[(64, 256)], repetitions=1)


def test_what_is_raised_before_a_product_ends_the_measurement(device: Device) -> None:
    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        bench.time_products(device, QuantType.Q4_0, shapes=[(64, 256)], repetitions=1, before_each=stop)


def test_a_search_compiles_ahead_and_writes_what_holds_afterwards(device: Device, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    prepared: list[Kernel] = []
    progress: list[tuple[int, int]] = []

    def prepare(kernels: Iterable[Kernel]) -> None:
        prepared.extend(kernels)

    shape = Shape(QuantType.Q4_K, 32, 256, gated=True)
    found = search.search(
        device,
        [shape, shape],
        file,
        prepare=prepare,
        on_progress=lambda done, total: progress.append((done, total)),
    )
    assert progress == [(0, 1), (1, 1)]
    assert [each.n_tokens for each in found] == [1, 4, 8] and {each.shape for each in found} == {shape}
    assert {kernel.name for kernel in prepared} == {"gemv", "gemv_columns"}
    assert {dict(kernel.defines)["EPILOGUE"] for kernel in prepared} == {"GATED_SILU"}
    settings = launch_settings.load(device, file)
    one, few, many = (each.settings for each in found)
    assert settings.gemv(QuantType.Q4_K, 256, 32) == one
    assert settings.columns(QuantType.Q4_K, 256, 32, 3, gated=True) == few
    assert settings.columns(QuantType.Q4_K, 256, 32, 8, gated=True) == many
    assert all(each.seconds <= each.seconds_before for each in found)


def test_every_candidate_is_within_the_bounds_of_the_kernels() -> None:
    for quant_type, n_rows, n_columns, gated in (
        (QuantType.Q6_K, 4096, 14336, False),
        (QuantType.Q4_0, 21, 576, False),
        (QuantType.Q8_0, 9728, 896, True),
    ):
        shape = Shape(quant_type, n_rows, n_columns, gated)
        settings = launch_settings.shipped(90, 132)
        one = settings.gemv(quant_type, n_columns, n_rows)
        for change in search.gemv_steps(shape):
            assert change(one)
            for candidate in change(one):
                assert min(candidate) >= 1 and candidate.warps <= 16
                assert candidate.warps % candidate.warps_per_row == 0
        several = settings.columns(quant_type, n_columns, n_rows, 8, gated=gated)
        for change_columns in search.columns_steps(shape, 8, Card()):
            assert change_columns(several)
            for other in change_columns(several):
                assert min(other) >= 1 and other.warps <= 16 and other.warps % other.split == 0
                assert other.tiles == 2 or not gated
                assert other.split <= launch_settings.units(quant_type, n_columns)
                assert gated or 16 * other.tiles <= n_rows


def test_copies_of_lanes_are_measured(device: Device) -> None:
    assert bench.copy_rate(device, 5000, 0.0) > 0
    assert bench.copy_rate(device, 5000, 0.01) > 0


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_copies_are_measured_while_the_host_is_busy(device: Device, seconds: float) -> None:
    calls = []
    started = perf_counter()
    result = bench.copy_rate_beside(device, 3 << 10, seconds, lambda: calls.append(0))
    elapsed = perf_counter() - started
    assert result.rate > 0 and result.calls == len(calls) >= 1
    assert elapsed >= seconds and 0 < result.seconds < elapsed


def test_copies_are_under_way_whenever_the_host_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many that twice the longest call finds some left."""
    copies: list[bench._Copies] = []

    class Noted(bench._Copies):
        def __init__(self, device: Device, n_bytes: int) -> None:
            super().__init__(device, n_bytes)
            copies.append(self)

        def warm_up(self) -> float:
            super().warm_up()
            return 1e6  # bytes per second

    monkeypatch.setattr(bench, "_Copies", Noted)
    monkeypatch.setattr(bench, "_LONGEST_S", 0.1)
    pending = []

    def beside() -> None:
        pending.append(copies[0].n_pending * copies[0].bytes_of_copy / 1e6)
        sleep(0.01)

    bench.copy_rate_beside(Sketch(Card()), 1 << 10, 0.05, beside)
    assert pending[0] >= 2 * 0.1 and min(pending) >= 2 * 0.01


@pytest.mark.parametrize("quant_type", [QuantType.Q4_K, QuantType.F16], ids=lambda t: t.name)
def test_what_a_plan_rests_on_is_measured(device: Device, quant_type: QuantType) -> None:
    assert bench.product_rate(device, quant_type) > 0
    assert bench.expand_flops(device) > 0
    assert bench.crossing_seconds(device) > 0
