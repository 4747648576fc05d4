"""Cases for harness.c, from the NumPy oracle: sizes, inputs, results, and how far from them is allowed.

Knows the file's layout (nine int64: operation, seven sizes, number of arrays; then each array's bytes and
content); does not know instruction sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels import reference
from kernels.quant_types import QuantType, block_bytes, block_size
from kernels.reference_quants import dequantize
from kernels.tolerances import TOLERANCES
from tests.tiny_gguf import random_matrix

Floats = NDArray[np.float32]

N_SIZES = 7
ROWS = 37
TOKENS = 11
COLUMNS = (256, 576, 2304)
"""One span, the end of a row inside one, and more of them than are unpacked at a time for so few tokens."""
MANY = (65 * 256, 33)
"""Columns and tokens: rows are unpacked whole, and have more spans than are multiplied at a time."""
TYPES_FOR_MANY = (QuantType.Q8_0, QuantType.Q4_K, QuantType.Q6_K)
"""One for each size of weights, whose products are different functions."""
FLOAT_TYPES = (QuantType.F32, QuantType.F16, QuantType.BF16)


class Op(IntEnum):
    """`enum op` of harness.c."""

    MATMUL = 0
    RMSNORM = 1
    SOFTMAX = 2
    SWIGLU = 3
    GEGLU = 4
    ROPE = 5
    ATTENTION = 6


class Case(NamedTuple):
    """One operation; `allowed` is as large as `expected`, or broadcasts to it."""

    op: Op
    sizes: tuple[int, ...]
    inputs: tuple[NDArray[np.generic], ...]
    expected: Floats
    allowed: Floats


def write_cases(path: Path) -> None:
    """Write every case; the same numbers each time."""
    rng = np.random.default_rng(11)
    with path.open("wb") as file:
        for case in (*_matmuls(rng), *_rows(rng), *_ropes(rng), *_attentions(rng)):
            allowed = np.broadcast_to(case.allowed, case.expected.shape)
            arrays = [np.ascontiguousarray(array) for array in (*case.inputs, case.expected, allowed)]
            sizes = [*case.sizes, *[0] * (N_SIZES - len(case.sizes))]
            file.write(np.array([case.op, *sizes, len(arrays)], np.int64).tobytes())
            for array in arrays:
                file.write(np.int64(array.nbytes).tobytes() + array.tobytes())


def _allowed(operation: str, scale: Floats | float) -> Floats:
    tolerance = TOLERANCES[operation]
    return np.asarray(tolerance.rtol * np.abs(scale) + tolerance.atol, np.float32)


def _matmuls(rng: np.random.Generator) -> Iterator[Case]:
    for quant_type in QuantType:
        in_float = (True,) if quant_type in FLOAT_TYPES else (True, False)
        cases = [(n_columns, TOKENS, in_float) for n_columns in COLUMNS]
        if quant_type in TYPES_FOR_MANY:
            cases.append((*MANY, (False,)))
        for n_columns, n_tokens, precisions in cases:
            if n_columns % block_size(quant_type):
                continue
            data = random_matrix(rng, (ROWS, n_columns), quant_type).view(np.uint8)
            x = rng.standard_normal((n_tokens, n_columns)).astype(np.float32)
            x *= np.logspace(-6, 4, n_tokens, dtype=np.float32)[:, None]
            x[1] = 0
            x[2, 16:32] = 0  # a group of zeros has no scale
            x[3] = -1
            if quant_type is QuantType.Q8_0:  # with x[3], products as large as they get
                data[0].reshape(-1, block_bytes(quant_type))[:, 2:] = 128
            data = data.reshape(-1)
            weights = dequantize(data, quant_type).reshape(ROWS, n_columns)
            for float_precision in precisions:
                seen = x if float_precision else reference.round_activations(x)
                yield Case(
                    Op.MATMUL,
                    (quant_type, ROWS, n_columns, n_tokens, float_precision),
                    (data, x),
                    reference.matmul(seen, data, quant_type),
                    _allowed("matmul", np.abs(seen) @ np.abs(weights).T),
                )


def _rows(rng: np.random.Generator) -> Iterator[Case]:
    for n in (5, 37, 576):
        x, y = (rng.normal(0, deviation, (4, n)).astype(np.float32) for deviation in (3, 1))
        x[0, :4] = (-200, 200, -30, 0)
        weight = rng.standard_normal(n).astype(np.float32)
        scores = np.where(rng.random(x.shape) < 0.2, np.float32(-np.inf), x)
        scores[:, 0] = 1
        for op, inputs, expected in (
            (Op.RMSNORM, (x, weight), reference.rmsnorm(x, weight, 1e-5)),
            (Op.SOFTMAX, (scores,), reference.softmax(scores)),
            (Op.SWIGLU, (x, y), reference.swiglu(x, y)),
            (Op.GEGLU, (x, y), reference.geglu(x, y)),
        ):
            yield Case(op, x.shape, inputs, expected, _allowed(op.name.lower(), expected))


def _ropes(rng: np.random.Generator) -> Iterator[Case]:
    for neox, n_pairs in ((True, 32), (False, 32), (True, 12), (False, 12)):
        x = rng.standard_normal((TOKENS, 3, 64)).astype(np.float32)
        angles = rng.normal(0, 100, (TOKENS, n_pairs)).astype(np.float32)
        cos, sin = np.cos(angles), np.sin(angles)
        expected = reference.rope(x, cos, sin, neox=neox)
        yield Case(
            Op.ROPE, (*x.shape, n_pairs, neox), (x, cos, sin), expected, _allowed("rope", 2 * np.abs(x).max())
        )


def _attentions(rng: np.random.Generator) -> Iterator[Case]:
    # Head dims of whole and of broken vectors, several segments of 256 positions, windows across them.
    for n_tokens, group, head_dim, start, window in (
        (TOKENS, 3, 64, 0, 0),
        (TOKENS, 1, 80, 250, 100),
        (7, 5, 40, 600, 0),
        (1, 4, 64, 700, 300),
    ):
        for half in (True, False):
            shape = (start + n_tokens, 2, head_dim)
            q = rng.standard_normal((n_tokens, 2 * group, head_dim)).astype(np.float32)
            q *= np.float32(head_dim**-0.5)
            k, v = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
            kept = [x.astype(np.float16).astype(np.float32) if half else x for x in (k, v)]
            keys, values = (x.swapaxes(0, 1) for x in kept)
            expected = reference.attention(q, keys, values, start, window, 1.0)
            sizes = (n_tokens, 2, group, head_dim, start, window, half)
            yield Case(Op.ATTENTION, sizes, (q, k, v), expected, _allowed("attention", np.abs(v).max()))
