"""Products of a matrix in video memory with 1 to 8 tokens: out (+)= x @ matrix.T, and gate and up joined.

Quantised matrices take activations rounded to 15 bits (`norms.Rounded`): one token by gemv.cu, several by
columns.py. Any matrix takes floats (gemv_float.cu). Knows kernels and their grids, launch_settings.py their
settings; does not know models. All of it goes on the device's stream and returns at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import numpy as np

from kernels.cuda import columns, launch_settings
from kernels.cuda.device import Array, Device, Kernel
from kernels.cuda.launch_settings import MOST_TOKENS, GemvSettings, LaunchSettings
from kernels.cuda.matrices import DeviceMatrix, padded_columns
from kernels.cuda.norms import Rounded, round_rows

_GATED = {"silu": "GATED_SILU", "gelu": "GATED_GELU"}
_FLOAT_SUMS = 8
"""Sums that a thread of gemv_float holds at most, so that they stay in registers."""


def multiply(
    device: Device,
    matrix: DeviceMatrix,
    x: Rounded | Array,
    out: Array,
    *,
    accumulate: bool = False,
    settings: LaunchSettings | None = None,
) -> None:
    """out (+)= x @ matrix.T for T = 1 to 8 tokens.

    x is [T, n_columns] f32, or rounded if the matrix is quantised; out [T, n_rows] f32; rows of both may lie
    any stride apart (of x a multiple of 4). Without `settings` those that are shipped for the device hold.
    Raises ValueError for sizes that do not fit.
    """
    _check(matrix, x, out, matrix.n_rows)
    epilogue = "ADD" if accumulate else "STORE"
    _multiply(device, matrix, x, out, epilogue, settings)


class Product(NamedTuple):
    """One of several products with the same tokens."""

    matrix: DeviceMatrix
    x: Rounded | Array
    """The tokens, in the form that the matrix wants."""
    out: Array


def multiply_each(
    device: Device,
    products: Sequence[Product],
    *,
    accumulate: bool = False,
    settings: LaunchSettings | None = None,
) -> None:
    """`multiply` of each; none has to do with another's `out`.

    Those of several tokens rounded once run beside one another where all go to the tensor cores: each of them
    alone would leave much of a GPU idle. Raises ValueError as `multiply`.
    """
    epilogue = "ADD" if accumulate else "STORE"
    first = products[0].x
    beside = len(products) > 1 and all(each.x is first and _by_columns(each.x, each.out) for each in products)
    for number, (matrix, x, out) in enumerate(products):
        _check(matrix, x, out, matrix.n_rows)
        leads, follows = beside and number == 0, beside and number > 0
        _multiply(device, matrix, x, out, epilogue, settings, leads=leads, beside=follows)


def multiply_gated(
    device: Device,
    matrix: DeviceMatrix,
    x: Rounded | Array,
    out: Array,
    activation: str,
    *,
    settings: LaunchSettings | None = None,
) -> None:
    """out = activation(gate) * up for T = 1 to 8 tokens: the matrix holds gate rows, then as many up rows.

    `activation` is "silu" or "gelu"; x as in `multiply`, out [T, n_rows / 2] f32. Raises ValueError for sizes
    that do not fit.
    """
    if matrix.n_rows % 2:
        raise ValueError(f"{matrix.n_rows} rows are not gate rows and as many up rows")
    _check(matrix, x, out, matrix.n_rows // 2)
    _multiply(device, matrix, x, out, _GATED[activation], settings)


def multiply_gated_rounded(
    device: Device,
    matrix: DeviceMatrix,
    x: Rounded,
    inner: Array,
    rounded: Rounded,
    activation: str,
    *,
    settings: LaunchSettings | None = None,
) -> None:
    """`multiply_gated`, and what it gives is rounded: all in one where the kernel for several tokens can.

    `inner` is `out` of multiply_gated, and undefined afterwards. Raises ValueError as it does.
    """
    known = settings or _shipped(device)
    n_tokens, n_outputs = inner.shape
    if _by_columns(x, inner):
        chosen = known.columns(matrix.quant_type, matrix.n_columns, matrix.n_rows, n_tokens, gated=True)
        if columns.can_round(n_tokens, n_outputs, chosen):
            _check(matrix, x, inner, matrix.n_rows // 2)
            columns.launch(device, matrix, x, inner, _GATED[activation], chosen, rounded=rounded)
            return
    multiply_gated(device, matrix, x, inner, activation, settings=known)
    round_rows(device, inner, rounded=rounded)


def _multiply(
    device: Device,
    matrix: DeviceMatrix,
    x: Rounded | Array,
    out: Array,
    epilogue: str,
    settings: LaunchSettings | None,
    *,
    leads: bool = False,
    beside: bool = False,
) -> None:
    n_tokens = out.shape[0]
    known = settings or _shipped(device)
    shape = matrix.quant_type, matrix.n_columns, matrix.n_rows
    if not isinstance(x, Rounded):
        launch_float(device, matrix, x, out, epilogue, known.gemv(*shape))
    elif _by_columns(x, out):
        gated = epilogue in _GATED.values()
        chosen = known.columns(*shape, n_tokens, gated=gated)
        columns.launch(device, matrix, x, out, epilogue, chosen, leads=leads, beside=beside)
    else:
        for token in range(n_tokens):
            after = token + 1
            one = x.rows(token, after)
            launch(device, matrix, one, out[token:after], epilogue, known.gemv(*shape))


def _shipped(device: Device) -> LaunchSettings:
    return launch_settings.shipped(device.compute_capability, device.n_processors)


def _by_columns(x: Rounded | Array, out: Array) -> TypeGuard[Rounded]:
    """Whether several tokens are computed together, on the tensor cores."""
    n_tokens, n_outputs = out.shape
    return isinstance(x, Rounded) and n_tokens > 1 and n_outputs >= columns.LEAST_ROWS


def launch(
    device: Device, matrix: DeviceMatrix, x: Rounded, out: Array, epilogue: str, chosen: GemvSettings
) -> None:
    """The product with one token with these very settings; `epilogue` is an enumerator of epilogue.cuh."""
    _launch_gemv(device, "gemv", matrix, (*x, out), out, epilogue, chosen, {})


def launch_float(
    device: Device, matrix: DeviceMatrix, x: Array, out: Array, epilogue: str, chosen: GemvSettings
) -> None:
    """The product with floats with these settings, but no more rows and steps than stay in registers."""
    most = max(1, min(2, _FLOAT_SUMS // out.shape[0]))
    chosen = chosen._replace(rows_per_warp=min(chosen.rows_per_warp, most), unroll=1)
    args = x, np.int32(x.strides[0] // 4), out
    _launch_gemv(device, "gemv_float", matrix, args, out, epilogue, chosen, {"COLUMNS": out.shape[0]})


def _launch_gemv(
    device: Device,
    name: str,
    matrix: DeviceMatrix,
    args: tuple[Array | np.generic, ...],
    out: Array,
    epilogue: str,
    chosen: GemvSettings,
    defines: dict[str, int | str],
) -> None:
    n_outputs = out.shape[1]
    # Gate and up rows are both rows of a warp. No team takes more rows than there are.
    rows = chosen.rows_per_warp // 2 if epilogue in _GATED.values() else chosen.rows_per_warp
    rows = min(max(rows, 1), n_outputs)
    kernel = Kernel.of(
        f"{name}.cu",
        name,
        FORMAT=matrix.quant_type.name,
        WIDTH=matrix.n_columns,
        EPILOGUE=epilogue,
        WARPS_PER_ROW=chosen.warps_per_row,
        ROWS_PER_WARP=rows,
        WARPS=chosen.warps,
        UNROLL=chosen.unroll,
        **defines,
    )
    outputs_of_block = chosen.warps // chosen.warps_per_row * rows
    strides = (np.int32(out.strides[0] // 4),) if name == "gemv_float" else ()
    grid = -(-n_outputs // outputs_of_block)
    device.launch(kernel, grid, 32 * chosen.warps, matrix.data, *args, np.int32(matrix.n_rows), *strides)


def _check(matrix: DeviceMatrix, x: Rounded | Array, out: Array, n_outputs: int) -> None:
    if isinstance(x, Rounded):
        n_tokens, _, half = x.q.shape
        fits = matrix.is_quantised and 2 * half == padded_columns(matrix.n_columns)
    else:
        n_tokens, n_columns = x.shape
        fits = x.dtype == np.float32 and n_columns == matrix.n_columns
    if not fits or not 1 <= n_tokens <= MOST_TOKENS or out.shape != (n_tokens, n_outputs):
        kind = "rounded" if isinstance(x, Rounded) else "float"
        raise ValueError(
            f"{n_tokens} {kind} rows times {matrix.n_rows} of {matrix.n_columns} weights of "
            f"{matrix.quant_type.name} do not give {out.shape}"
        )
