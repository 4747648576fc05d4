"""Products of a quantised matrix with several tokens at once, on the integer tensor cores (gemv_columns.cu).

Knows that one kernel and its grid; products.py checks sizes and decides what comes here.
"""

from __future__ import annotations

import numpy as np

from kernels.cuda.device import Array, Device, Kernel
from kernels.cuda.launch_settings import MOST_SIDE_BY_SIDE, MOST_TOKENS, ColumnsSettings, shared_memory
from kernels.cuda.matrices import CHUNK, DeviceMatrix
from kernels.cuda.norms import Rounded

LEAST_ROWS = 16
"""Rows that `out` has at least: a tile of the tensor cores."""

_NULL = np.uint64(0)
_GATED = ("GATED_SILU", "GATED_GELU")


def can_round(n_tokens: int, n_outputs: int, chosen: ColumnsSettings) -> bool:
    """Whether a gated product can round what it gives: chunks of 128 outputs of a token meet in a block."""
    few = MOST_SIDE_BY_SIDE if n_tokens <= MOST_SIDE_BY_SIDE else MOST_TOKENS
    whole = n_outputs % CHUNK == 0 and chosen.warps * LEAST_ROWS % CHUNK == 0
    return whole and chosen.split == chosen.passes == 1 and chosen.cluster <= few


def launch(
    device: Device,
    matrix: DeviceMatrix,
    x: Rounded,
    out: Array,
    epilogue: str,
    chosen: ColumnsSettings,
    *,
    rounded: Rounded | None = None,
    leads: bool = False,
    beside: bool = False,
) -> None:
    """The product with T = 1 to 8 tokens, with these very settings; `epilogue` is one of epilogue.cuh.

    `out` is f32 [T, outputs], its rows any stride apart: at least 16 * tiles outputs, 16 when gated.
    `rounded`, where `can_round`, is written in its place. With `beside` it runs while the launch before it
    does, a product of the same x that `leads` or is beside one itself; neither reads or writes what the other
    writes. Raises ValueError where x does not fit into shared memory in such slices.
    """
    n_tokens, n_outputs = out.shape
    shape = matrix.quant_type, matrix.n_columns, n_tokens
    slices, shared_bytes = shared_memory(device.compute_capability, *shape, chosen)
    kernel = Kernel.of(
        "gemv_columns.cu",
        "gemv_columns",
        FORMAT=matrix.quant_type.name,
        WIDTH=matrix.n_columns,
        COLUMNS=MOST_SIDE_BY_SIDE if n_tokens <= MOST_SIDE_BY_SIDE else MOST_TOKENS,
        EPILOGUE=epilogue,
        TILES=chosen.tiles,
        SPLIT=chosen.split,
        WARPS=chosen.warps,
        STAGES=chosen.stages,
        CLUSTER=chosen.cluster,
        BLOCKS=chosen.blocks,
        SLICES=slices,
        ROUNDS=int(rounded is not None),
        LEADS=int(leads),
        BESIDE=int(beside),
    )
    # A gated product takes gate and up rows by the two tiles of a warp.
    tiles, teams = 1 if epilogue in _GATED else chosen.tiles, chosen.warps // chosen.split
    rows = LEAST_ROWS * tiles * teams * chosen.passes
    grid = -(-n_outputs // rows) * chosen.cluster
    sizes = np.int32(matrix.n_rows), np.int32(n_tokens), np.int32(out.strides[0] // 4)
    args = matrix.data, *x, out, *sizes, *(rounded or (_NULL, _NULL, _NULL))
    device.launch(kernel, grid, 32 * chosen.warps, *args, shared_bytes=shared_bytes)
