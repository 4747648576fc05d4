"""How fast the native matrix product and a plain read of memory are: verified first, then timed.

Knows one synthetic matrix of each quant type; does not know models, reports or cancelling. A call of
`cpu.matmul` starts and ends its threads, about 50 us: every matrix is large enough for that to be about 1 %
or less. Called by the engine's benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels import cpu
from kernels.quant_types import QuantType, row_bytes
from kernels.synthetic import synthetic_matrix
from kernels.verification import result_is_right

COLUMNS = (1, 2, 4, 8, 16, 512)
"""One step of decoding, steps of a few tokens at once, a chunk of a prompt."""
ROW_LENGTH = 4096

_MATRIX_BYTES = 96_000_000
"""More than the last cache of nearly every processor holds."""
_COMPUTE_ROWS = 4096
"""Enough for columns that arithmetic limits: no caching shows, and a call stays within a second or so."""
_MOST_MEMORY_COLUMNS = 16
"""Up to so many columns the whole matrix is used."""
_READ_BYTES = 1 << 28
_READ_PASSES = 5
_STARTED_BYTES = 1 << 20
"""Read to see how long a call takes to start its threads."""


class ProductTimes(NamedTuple):
    """A product with some columns, timed a number of times."""

    columns: int
    """Of activations: tokens computed together."""
    rows: int
    """Of the matrix; each has ROW_LENGTH elements."""
    weight_bytes: int
    """Of these rows."""
    seconds: list[float]
    """Of each repetition."""


def read_bandwidth(
    threads: int, before_each: Callable[[], None] = lambda: None, *, n_bytes: int = _READ_BYTES
) -> float:
    """Bytes per second of plain reads of so much memory on so many threads: the best of several passes.

    `n_bytes` is a multiple of 8 and larger than the caches. What `before_each` raises before a pass ends the
    measurement.
    """
    # Written, as pages that never were are all the same page of zeros.
    data = np.ones(n_bytes, np.uint8)

    def seconds(part: npt.NDArray[np.uint8]) -> float:
        passes = []
        for _ in range(_READ_PASSES):
            before_each()
            start = perf_counter()
            cpu.read_bytes(part, threads)
            passes.append(perf_counter() - start)
        return min(passes)

    whole_s, start_s = seconds(data), seconds(data[:_STARTED_BYTES])
    return (data.size - _STARTED_BYTES) / max(whole_s - start_s, whole_s / 2)


def time_products(
    quant_type: QuantType, *, threads: int, repetitions: int, before_each: Callable[[], None]
) -> list[ProductTimes]:
    """Check the very products that are timed afterwards, by turns, one entry for each of COLUMNS.

    What `before_each` raises before a product ends the measurement. Raises ArithmeticError when a product
    differs from its oracle: nothing was timed then.
    """
    n_rows = max(_COMPUTE_ROWS, -(-_MATRIX_BYTES // _row_bytes(quant_type)))
    data = synthetic_matrix(quant_type, n_rows, ROW_LENGTH)
    rng = np.random.default_rng(1)
    products = []
    for columns in COLUMNS:
        before_each()
        part = data if columns <= _MOST_MEMORY_COLUMNS else data[: _COMPUTE_ROWS * _row_bytes(quant_type)]
        x = rng.standard_normal((columns, ROW_LENGTH), np.float32)
        result = cpu.matmul(x, part, quant_type, threads=threads)
        if not result_is_right(result, x, part, quant_type):
            raise ArithmeticError(
                f"the {quant_type.name} product with {columns} columns differs from its oracle"
            )
        products.append((x, part, ProductTimes(columns, result.shape[1], part.size, [])))
    for _ in range(repetitions):
        # By turns, so that a disturbance does not fall on one of them alone.
        for x, part, times in products:
            before_each()
            start = perf_counter()
            cpu.matmul(x, part, quant_type, threads=threads)
            times.seconds.append(perf_counter() - start)
    return [times for _, _, times in products]


def _row_bytes(quant_type: QuantType) -> int:
    return row_bytes(quant_type, ROW_LENGTH)
