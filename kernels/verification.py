"""A check of the native matrix product on a model's own bytes, to be made before anything is timed.

Knows one matrix at a time; does not know models. Compares a few rows of it with the NumPy oracle, as one
column and as several. Called by the benchmark.
"""

from __future__ import annotations

import numpy as np

from kernels import cpu, reference
from kernels.quant_types import QuantType, row_bytes
from kernels.reference_quants import Bytes, dequantize
from kernels.tolerances import within

_ROWS, _COLUMNS = 33, 9
"""More than two panels of rows and one tile of columns, both with a remainder."""


def product_is_right(data: Bytes, quant_type: QuantType, n_columns: int) -> bool:
    """Whether the best instruction set's product over the first rows of a matrix is within tolerance."""
    rows = data[: _ROWS * row_bytes(quant_type, n_columns)]
    x = np.random.default_rng(0).standard_normal((_COLUMNS, n_columns)).astype(np.float32)
    seen = (
        x if quant_type in (QuantType.F32, QuantType.F16, QuantType.BF16) else reference.round_activations(x)
    )
    expected = reference.matmul(seen, rows, quant_type)
    weights = np.abs(dequantize(rows, quant_type).reshape(-1, n_columns))
    several = cpu.matmul(x, rows, quant_type)
    one = cpu.matmul(x[:1], rows, quant_type)
    return within("matmul", several, expected, np.abs(seen) @ weights.T) and np.array_equal(one, several[:1])
