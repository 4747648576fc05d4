"""A check of the native matrix product, to be made before anything is timed.

Knows one matrix at a time; does not know models. Compares a few rows with the NumPy oracle. Called by the
benchmarks.
"""

from __future__ import annotations

import numpy as np

from kernels import cpu, reference
from kernels.quant_types import QuantType, row_bytes
from kernels.reference_quants import Bytes, Floats, dequantize
from kernels.tolerances import within

_ROWS, _COLUMNS = 33, 9
"""More than two panels of rows and one tile of columns, both with a remainder."""


def product_is_right(
    data: Bytes, quant_type: QuantType, n_columns: int, *, float_precision: bool = False
) -> bool:
    """Whether the best instruction set's product over the first rows of a matrix is within tolerance."""
    rows = data[: _ROWS * row_bytes(quant_type, n_columns)]
    x = np.random.default_rng(0).standard_normal((_COLUMNS, n_columns)).astype(np.float32)
    several = cpu.matmul(x, rows, quant_type, float_precision=float_precision)
    one = cpu.matmul(x[:1], rows, quant_type, float_precision=float_precision)
    right = result_is_right(several, x, rows, quant_type, float_precision=float_precision)
    return right and np.array_equal(one, several[:1])


def result_is_right(
    result: Floats, x: Floats, data: Bytes, quant_type: QuantType, *, float_precision: bool = False
) -> bool:
    """Whether a product that was computed, x [T, columns] -> result [T, rows], is within tolerance.

    Looks at the first rows, at rows in the middle and at the last ones.
    """
    matrix = data.reshape(-1, row_bytes(quant_type, x.shape[1]))
    n_rows = len(matrix)
    starts = (0, n_rows // 2, max(0, n_rows - _ROWS))
    looked_at = sorted({row for start in starts for row in range(start, min(start + _ROWS, n_rows))})
    rows = matrix[looked_at].reshape(-1)
    exact = float_precision or quant_type in (QuantType.F32, QuantType.F16, QuantType.BF16)
    seen = x if exact else reference.round_activations(x)
    expected = reference.matmul(seen, rows, quant_type)
    weights = np.abs(dequantize(rows, quant_type).reshape(-1, x.shape[1]))
    return within("matmul", result[:, looked_at], expected, np.abs(seen) @ weights.T)
