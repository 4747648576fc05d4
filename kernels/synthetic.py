"""Random matrices of every quant type, of any size, for the benchmarks.

Knows where a quant block keeps its scales; does not know models. Called by the benchmarks and the probe.
"""

from __future__ import annotations

import numpy as np

from kernels.quant_types import QuantType, block_bytes, block_size
from kernels.reference_quants import Bytes

PATTERN_ROWS = 251
"""Rows that differ; a matrix repeats them. Prime, so that a tile taken for another one is seen."""

_SCALES = {
    QuantType.Q4_0: (0,),
    QuantType.Q4_1: (0, 2),
    QuantType.Q5_0: (0,),
    QuantType.Q5_1: (0, 2),
    QuantType.Q8_0: (0,),
    QuantType.Q2_K: (80, 82),
    QuantType.Q3_K: (108,),
    QuantType.Q4_K: (0, 2),
    QuantType.Q5_K: (0, 2),
    QuantType.Q6_K: (208,),
}
"""Where a quant block keeps float16 scales (`kernels/reference_quants.py`); other bytes may be anything."""


def synthetic_matrix(quant_type: QuantType, rows: int, row_length: int) -> Bytes:
    """Rows of random weights, finite and nowhere near 0 or overflow, 1-D in ggml's layout."""
    pattern = _random_rows(quant_type, min(rows, PATTERN_ROWS), row_length)
    data = np.empty((rows, pattern.shape[1]), np.uint8)
    for first in range(0, rows, len(pattern)):
        data[first : first + len(pattern)] = pattern[: rows - first]
    return data.reshape(-1)


def _random_rows(quant_type: QuantType, rows: int, row_length: int) -> Bytes:
    """Draw [rows, row bytes]."""
    rng = np.random.default_rng(0)
    if quant_type in _SCALES:
        n_blocks = rows * row_length // block_size(quant_type)
        blocks = rng.integers(0, 256, (n_blocks, block_bytes(quant_type)), np.uint8)
        for offset in _SCALES[quant_type]:
            scales = rng.uniform(0.005, 0.015, n_blocks).astype(np.float16)
            blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
        return blocks.reshape(rows, -1)
    values = rng.standard_normal((rows, row_length), np.float32)
    if quant_type is QuantType.F16:
        return values.astype(np.float16).view(np.uint8)
    if quant_type is QuantType.BF16:
        # The upper half of a float32.
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.view(np.uint8)
