"""Weight matrices in video memory: their sizes, and what puts rows in and takes rows out.

Knows the planes of formats.cuh by their sizes; does not know products (products.py) or models. All of it
goes on the stream of whoever launches and returns at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.cuda.device import Array, Device, Kernel, Launcher
from kernels.quant_types import QuantType, row_bytes

CHUNK = 128
"""Weights of a chunk; rows are filled up with zeros to whole chunks."""
_LANES = 4
_BLOCK = 256
"""Threads of a block of the kernels here."""

CHUNK_BYTES: dict[QuantType, tuple[int, int, int, int]] = {
    QuantType.F32: (512, 0, 0, 0),
    QuantType.F16: (256, 0, 0, 0),
    QuantType.BF16: (256, 0, 0, 0),
    QuantType.Q4_0: (64, 0, 8, 0),
    QuantType.Q4_1: (64, 0, 16, 0),
    QuantType.Q5_0: (64, 16, 8, 0),
    QuantType.Q5_1: (64, 16, 16, 0),
    QuantType.Q8_0: (128, 0, 8, 0),
    QuantType.Q2_K: (32, 0, 8, 2),
    QuantType.Q3_K: (32, 16, 8, 1),
    QuantType.Q4_K: (64, 0, 8, 0),
    QuantType.Q5_K: (64, 16, 8, 0),
    QuantType.Q6_K: (64, 32, 8, 1),
}
"""Of each plane of a chunk: codes, high bits, scales, scales of blocks of 256."""


class DeviceMatrix(NamedTuple):
    """A matrix in the planes of formats.cuh."""

    data: Array
    """uint8 [vram_bytes(quant_type, n_rows, n_columns)], starting at a multiple of 256 bytes."""
    n_rows: int
    n_columns: int
    """Weights of a row: a multiple of 32, of 256 for the K types."""
    quant_type: QuantType

    @property
    def is_quantised(self) -> bool:
        """Whether its weights are codes and scales, not floats."""
        return self.quant_type not in (QuantType.F32, QuantType.F16, QuantType.BF16)


def padded_columns(n_columns: int) -> int:
    """Columns of a row with the zeros that fill up its last chunk."""
    return -(-n_columns // CHUNK) * CHUNK


def vram_bytes(quant_type: QuantType, n_rows: int, n_columns: int) -> int:
    """Bytes of a matrix in video memory, a multiple of 256: where rows are whole chunks as in a file, and at
    most a few hundred more."""
    chunks = n_rows * padded_columns(n_columns) // CHUNK
    return sum(-(-chunks * size // 256) * 256 for size in CHUNK_BYTES[quant_type])


def allocate(device: Device, quant_type: QuantType, n_rows: int, n_columns: int) -> DeviceMatrix:
    """A matrix with undefined contents.

    Raises DeviceMemoryError, and ValueError when a row is not whole groups of 32 or whole quant blocks.
    """
    _check_row(quant_type, n_columns)
    data = device.empty(vram_bytes(quant_type, n_rows, n_columns), np.uint8)
    return DeviceMatrix(data, n_rows, n_columns, quant_type)


def matrix_in(memory: Array, quant_type: QuantType, n_rows: int, n_columns: int) -> DeviceMatrix:
    """A matrix in device memory that is there: uint8 [vram_bytes(quant_type, n_rows, n_columns)].

    It starts at a multiple of 256 bytes; contents are as they were. Raises ValueError as `allocate`, and for
    memory of another size.
    """
    _check_row(quant_type, n_columns)
    expected = vram_bytes(quant_type, n_rows, n_columns)
    if memory.dtype != np.uint8 or memory.shape != (expected,):
        raise ValueError(
            f"{n_rows} rows of {n_columns} take {expected} bytes, not {memory.dtype} {memory.shape}"
        )
    return DeviceMatrix(memory, n_rows, n_columns, quant_type)


def repack(device: Launcher, native: Array, matrix: DeviceMatrix, first_row: int, n_rows: int) -> None:
    """Write rows first_row to first_row + n_rows - 1 of `matrix` from ggml's quant blocks.

    `native`, uint8 [bytes of the rows] in device memory, starts at an even address. Products read weights
    before they wait for the kernel before them: `Device.fence()` comes between the last repacking and the
    first of them, or `Device.wait_for` where a lane repacks. Raises ValueError for sizes that do not fit.
    """
    _check_rows(matrix, first_row, n_rows)
    expected = n_rows * row_bytes(matrix.quant_type, matrix.n_columns)
    if native.nbytes != expected:
        raise ValueError(f"{n_rows} rows take {expected} bytes, not {native.nbytes}")
    kernel = Kernel.of("repack.cu", "repack", FORMAT=matrix.quant_type.name, WIDTH=matrix.n_columns)
    threads = n_rows * padded_columns(matrix.n_columns) // CHUNK * _LANES
    rows = np.int32(matrix.n_rows), np.int32(first_row), np.int32(n_rows)
    device.launch(kernel, -(-threads // _BLOCK), _BLOCK, native, matrix.data, *rows)


def dequantize(device: Device, matrix: DeviceMatrix, first_row: int, n_rows: int, out: Array) -> None:
    """Rows first_row to first_row + n_rows - 1 as floats: out [n_rows, n_columns] f16 or f32, contiguous.

    Raises ValueError for rows or an `out` that do not fit.
    """
    _check_rows(matrix, first_row, n_rows)
    if out.shape != (n_rows, matrix.n_columns) or out.dtype not in (np.float16, np.float32):
        raise ValueError(f"{n_rows} rows of {matrix.n_columns} do not go into {out.dtype} {out.shape}")
    kernel = Kernel.of(
        "dequantize.cu",
        "dequantize",
        FORMAT=matrix.quant_type.name,
        WIDTH=matrix.n_columns,
        OUTPUT="F16" if out.dtype == np.float16 else "F32",
    )
    threads = n_rows * padded_columns(matrix.n_columns) // CHUNK * _LANES
    rows = np.int32(matrix.n_rows), np.int32(first_row), np.int32(n_rows)
    # Each thread takes two pieces.
    device.launch(kernel, -(-threads // (2 * _BLOCK)), _BLOCK, matrix.data, *rows, out)


def embedding(device: Device, ids: Array, matrix: DeviceMatrix, scale: float, out: Array) -> None:
    """Rows of `matrix` times `scale`: ids int32 [T] on the device -> out f32 [T, n_columns].

    Every id is below n_rows. Raises ValueError for an `out` that does not fit.
    """
    (n_tokens,) = ids.shape
    if out.shape != (n_tokens, matrix.n_columns) or out.dtype != np.float32:
        raise ValueError(f"{n_tokens} rows of {matrix.n_columns} do not go into {out.dtype} {out.shape}")
    kernel = Kernel.of("embedding.cu", "embedding", FORMAT=matrix.quant_type.name, WIDTH=matrix.n_columns)
    threads = padded_columns(matrix.n_columns) // CHUNK * _LANES
    grid = (-(-threads // _EMBEDDING_BLOCK), n_tokens)
    rows, factor = np.int32(matrix.n_rows), np.float32(scale)
    device.launch(kernel, grid, _EMBEDDING_BLOCK, matrix.data, ids, out, rows, factor)


_EMBEDDING_BLOCK = 64
"""Threads: a row of 4,096 weights has 128 pieces, so that two processors share it."""


def _check_row(quant_type: QuantType, n_columns: int) -> None:
    if n_columns % 32:
        raise ValueError(f"rows of {n_columns} weights are not whole groups of 32")
    row_bytes(quant_type, n_columns)


def _check_rows(matrix: DeviceMatrix, first_row: int, n_rows: int) -> None:
    if first_row < 0 or n_rows < 1 or first_row + n_rows > matrix.n_rows:
        raise ValueError(
            f"a matrix of {matrix.n_rows} rows has no rows {first_row} to {first_row + n_rows - 1}"
        )
