"""Products of a quantised matrix with several tokens at once, on the integer tensor cores (gemv_columns.cu).

Knows that one kernel, its grid and its shared memory; products.py checks sizes and decides what comes here.
"""

from __future__ import annotations

import numpy as np

from kernels.cuda.device import Array, Device, Kernel
from kernels.cuda.launch_settings import MOST_SIDE_BY_SIDE, ColumnsSettings, unit_chunks, units
from kernels.cuda.matrices import CHUNK_BYTES, DeviceMatrix
from kernels.cuda.norms import Rounded
from kernels.quant_types import QuantType

LEAST_ROWS = 16
"""Rows that `out` has at least: a tile of the tensor cores."""

_GATED = ("GATED_SILU", "GATED_GELU")
_HAVE_MINIMUMS = (QuantType.Q4_1, QuantType.Q5_1, QuantType.Q2_K, QuantType.Q4_K, QuantType.Q5_K)
_SHARED_KIB = {80: 163, 87: 163, 90: 227, 100: 227, 103: 227}
"""Shared memory of a processor, less what a block takes for itself, where it is more than 99 KiB."""
_LEAST_SHARED_KIB = 99
_SLICE_CHUNKS = 8
"""Chunks of a slice of x at least."""
_MOST_SLICES = 3
"""Slices of x in shared memory: one computed with, the others on their way."""


def launch(
    device: Device, matrix: DeviceMatrix, x: Rounded, out: Array, epilogue: str, chosen: ColumnsSettings
) -> None:
    """The product with T = 1 to 8 tokens, with these very settings; `epilogue` is one of epilogue.cuh.

    `out` is f32 [T, outputs], its rows any stride apart: at least 16 * tiles outputs, 16 when gated. Raises
    ValueError where x does not fit into shared memory in such slices.
    """
    n_tokens, n_outputs = out.shape
    room_for = MOST_SIDE_BY_SIDE if n_tokens <= MOST_SIDE_BY_SIDE else 8
    slices, shared_bytes = shared_memory(
        device.compute_capability, matrix.quant_type, matrix.n_columns, room_for, chosen
    )
    kernel = Kernel.of(
        "gemv_columns.cu",
        "gemv_columns",
        FORMAT=matrix.quant_type.name,
        WIDTH=matrix.n_columns,
        COLUMNS=room_for,
        EPILOGUE=epilogue,
        TILES=chosen.tiles,
        SPLIT=chosen.split,
        WARPS=chosen.warps,
        STAGES=chosen.stages,
        BLOCKS=chosen.blocks,
        SLICES=slices,
    )
    # A gated product takes gate and up rows by two tiles of one warp, or by the tiles of two.
    gated = epilogue in _GATED
    teams = chosen.warps // (2 * chosen.split if gated and chosen.tiles == 1 else chosen.split)
    grid = -(-n_outputs // (LEAST_ROWS * (1 if gated else chosen.tiles) * teams))
    sizes = np.int32(matrix.n_rows), np.int32(n_tokens), np.int32(out.strides[0] // 4)
    args = matrix.data, *x, out, *sizes
    device.launch(kernel, grid, 32 * chosen.warps, *args, shared_bytes=shared_bytes)


def shared_memory(
    compute_capability: int, quant_type: QuantType, n_columns: int, room_for: int, chosen: ColumnsSettings
) -> tuple[int, int]:
    """Slices of x that are in shared memory at a time, and bytes of all of it; `room_for` 4 or 8 tokens.

    Raises ValueError where there is not enough.
    """
    unit = unit_chunks(quant_type)
    # With up to four tokens high and low bytes of x share a fragment. Then steps, and sums where minimums need them.
    of_chunk = (1024 if room_for == MOST_SIDE_BY_SIDE else 2048) + room_for * (
        48 if quant_type in _HAVE_MINIMUMS else 16
    )
    turn_chunks = chosen.split * unit
    slice_chunks = turn_chunks * max(1, _SLICE_CHUNKS // turn_chunks)
    all_slices = -(-units(quant_type, n_columns) * unit // slice_chunks)
    weights = chosen.warps * chosen.stages * 16 * chosen.tiles * _row_bytes(quant_type, unit)
    sums = chosen.warps * 8 * (16 * chosen.tiles + 4) * 4
    available = _SHARED_KIB.get(compute_capability, _LEAST_SHARED_KIB) * 1024 // chosen.blocks - 1024
    for slices in range(min(all_slices, _MOST_SLICES), min(all_slices, 2) - 1, -1):
        n_bytes = max(slices * slice_chunks * of_chunk + weights, sums)
        if n_bytes <= available:
            return slices, n_bytes
    raise ValueError(f"{chosen} needs more than {available} bytes of shared memory for {quant_type.name}")


def _row_bytes(quant_type: QuantType, n_chunks: int) -> int:
    """What a row of so many chunks takes in shared memory: its planes, and four bytes for a block's scale."""
    codes, high, scales, blocks = CHUNK_BYTES[quant_type]
    return n_chunks * (codes + high + scales) + (4 if blocks else 0)
