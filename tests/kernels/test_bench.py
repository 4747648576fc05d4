"""Nothing is timed that was not verified, and what is verified is what was asked for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kernels.quant_types import QuantType, row_bytes
from kernels.synthetic import synthetic_matrix

cpu = pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")

from kernels import bench, verification  # noqa: E402  they need the extension
from kernels.reference_quants import dequantize  # noqa: E402

TYPES = pytest.mark.parametrize("quant_type", list(QuantType), ids=lambda t: t.name)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of 1 MB and less: these tests look at no time."""
    monkeypatch.setattr(bench, "_MATRIX_BYTES", 1_000_000)
    monkeypatch.setattr(bench, "_COMPUTE_ROWS", 48)


@TYPES
def test_synthetic_rows_are_finite_and_of_one_size(quant_type: QuantType) -> None:
    data = synthetic_matrix(quant_type, 300, bench.ROW_LENGTH)
    assert data.size == 300 * row_bytes(quant_type, bench.ROW_LENGTH)
    deviations = dequantize(data, quant_type).reshape(300, -1).std(axis=1)
    assert np.all((deviations > 0.01) & (deviations < 100))
    assert not np.array_equal(data[: data.size // 300], data[data.size // 300 : 2 * data.size // 300])


@TYPES
@pytest.mark.usefixtures("small")
def test_every_number_of_columns_is_timed_as_often_as_asked(quant_type: QuantType) -> None:
    asked = []
    timed = bench.time_products(quant_type, threads=2, repetitions=2, before_each=lambda: asked.append(None))
    assert tuple(times.columns for times in timed) == bench.COLUMNS
    assert all(len(times.seconds) == 2 for times in timed)
    assert all(times.weight_bytes == times.rows * row_bytes(quant_type, bench.ROW_LENGTH) for times in timed)
    assert len({times.rows for times in timed[:-1]}) == 1
    assert timed[0].weight_bytes >= 1_000_000
    assert timed[-1].rows == 48
    assert len(asked) == 3 * len(bench.COLUMNS)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("columns", bench.COLUMNS)
@pytest.mark.parametrize("row", [0, 100, -1])
def test_a_wrong_product_is_not_timed(columns: int, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    right = cpu.matmul

    def wrong(x: npt.NDArray[np.float32], *arguments: object, **options: object) -> npt.NDArray[np.float32]:
        result: npt.NDArray[np.float32] = right(x, *arguments, **options)
        if len(x) == columns:
            # The middle of whatever part of the matrix was used.
            result[-1, len(result[0]) // 2 if row > 0 else row] += 1
        return result

    monkeypatch.setattr(cpu, "matmul", wrong)
    monkeypatch.setattr(bench, "perf_counter", lambda: pytest.fail("timed before it was verified"))
    with pytest.raises(ArithmeticError, match=f"Q4_K product with {columns} columns"):
        bench.time_products(QuantType.Q4_K, threads=1, repetitions=1, before_each=lambda: None)


@pytest.mark.usefixtures("small")
def test_what_is_raised_between_two_products_ends_the_measurement() -> None:
    left = iter(range(8))  # the six that verify, then two more

    def stop_at_last() -> None:
        next(left)

    with pytest.raises(StopIteration):
        bench.time_products(QuantType.Q8_0, threads=1, repetitions=9, before_each=stop_at_last)


@pytest.mark.parametrize("float_precision", [False, True])
def test_rounding_of_activations_is_told_from_its_absence(float_precision: bool) -> None:
    data = synthetic_matrix(QuantType.Q4_1, 40, bench.ROW_LENGTH)
    assert verification.product_is_right(
        data, QuantType.Q4_1, bench.ROW_LENGTH, float_precision=float_precision
    )
    x = np.random.default_rng(2).standard_normal((3, bench.ROW_LENGTH), np.float32)
    other = cpu.matmul(x, data, QuantType.Q4_1, float_precision=not float_precision)
    assert not verification.result_is_right(other, x, data, QuantType.Q4_1, float_precision=float_precision)


def test_the_bandwidth_counts_the_bytes_of_the_best_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    large = [0.0, 4.0, 10.0, 12.0, 20.0, 25.0, 30.0, 37.0, 40.0, 44.0]
    small = [50.0, 51.0, 60.0, 60.5, 70.0, 71.0, 80.0, 81.0, 90.0, 91.0]
    clock = iter([*large, *small])
    read = []
    monkeypatch.setattr(bench, "_STARTED_BYTES", 1024)
    monkeypatch.setattr(bench, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(cpu, "read_bytes", lambda data, threads: read.append((data.sum(), threads)))
    assert bench.read_bandwidth(3, n_bytes=4096) == (4096 - 1024) / (2 - 0.5)
    assert read == [(4096, 3)] * 5 + [(1024, 3)] * 5
