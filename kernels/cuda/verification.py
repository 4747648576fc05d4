"""A check of a GPU's matrix products, to be made before anything is timed, as kernels/verification.py is.

Knows one matrix at a time; does not know models. Compares a few rows with the NumPy oracle. Called by the
benchmarks.
"""

from __future__ import annotations

import numpy as np

from kernels import reference
from kernels.cuda.device import Device
from kernels.cuda.matrices import DeviceMatrix, allocate, repack
from kernels.cuda.norms import Rounded
from kernels.cuda.products import multiply
from kernels.quant_types import QuantType, row_bytes
from kernels.reference_quants import Bytes, Floats, dequantize
from kernels.tolerances import within

_ROWS = 33
"""Two tiles of the tensor cores and one row more."""
_TOKENS = (1, 3, 8)
"""One kernel each: for one token, for few and for as many as a step takes."""


def product_is_right(
    device: Device, data: Bytes, quant_type: QuantType, n_columns: int, *, float_precision: bool = False
) -> bool:
    """Whether the products over the first rows of a matrix, in ggml's layout, are within tolerance.

    Raises what the device raises.
    """
    rows = np.ascontiguousarray(data[: _ROWS * row_bytes(quant_type, n_columns)])
    n_rows = rows.size // row_bytes(quant_type, n_columns)
    matrix = allocate(device, quant_type, n_rows, n_columns)
    repack(device, device.upload(rows), matrix, 0, n_rows)
    device.fence()
    rounds = matrix.is_quantised and not float_precision
    weights = np.abs(dequantize(rows, quant_type).reshape(n_rows, n_columns))
    x = np.random.default_rng(0).standard_normal((max(_TOKENS), n_columns)).astype(np.float32)
    for n_tokens in _TOKENS:
        part = x[:n_tokens]
        seen = reference.round_activations_15(part) if rounds else part
        expected = reference.matmul(seen, rows, quant_type)
        result = _product(device, matrix, part, rounds=rounds)
        if not within("matmul", result, expected, np.abs(seen) @ weights.T):
            return False
    return True


def _product(device: Device, matrix: DeviceMatrix, x: Floats, *, rounds: bool) -> Floats:
    planes = reference.planes_of_15(x) if rounds else ()
    form = Rounded(*(device.upload(plane) for plane in planes)) if rounds else device.upload(x)
    out = device.zeros((len(x), matrix.n_rows), np.float32)
    multiply(device, matrix, form, out)
    result: Floats = device.download(out)
    return result
