"""Matrices in video memory: what goes in as quant blocks comes out as the floats that they stand for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kernels.cuda import matrices
from kernels.cuda.device import Device
from kernels.cuda.matrices import DeviceMatrix
from kernels.quant_types import QuantType, block_size, row_bytes
from kernels.reference_quants import Floats, dequantize
from kernels.tolerances import within
from tests.tiny_gguf import random_matrix

TYPES = pytest.mark.parametrize("quant_type", list(QuantType), ids=lambda t: t.name)


def native(quant_type: QuantType, rows: int, columns: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """A random matrix as it lies in a file: [rows, bytes of a row]."""
    stored = random_matrix(np.random.default_rng(seed), (rows, columns), quant_type)
    return np.ascontiguousarray(stored).view(np.uint8).reshape(rows, row_bytes(quant_type, columns))


def uploaded(
    device: Device, quant_type: QuantType, data: npt.NDArray[np.uint8], columns: int
) -> DeviceMatrix:
    """All rows of `data` in a matrix of their own."""
    matrix = matrices.allocate(device, quant_type, len(data), columns)
    matrices.repack(device, device.upload(data.reshape(-1)), matrix, 0, len(data))
    device.fence()
    return matrix


def expected(quant_type: QuantType, data: npt.NDArray[np.uint8]) -> Floats:
    return dequantize(data.reshape(-1), quant_type).reshape(len(data), -1)


def widths(quant_type: QuantType) -> tuple[int, ...]:
    """Rows of less than a chunk, and with a half full one at their end; blocks of 256 are whole chunks."""
    return (96, 576) if block_size(quant_type) <= 32 else (768,)


@TYPES
def test_a_matrix_in_a_slot_is_one_of_its_own(device: Device, quant_type: QuantType) -> None:
    """Whatever was there before, and no byte behind it."""
    columns = widths(quant_type)[-1]
    data = native(quant_type, 11, columns)
    n_bytes = matrices.vram_bytes(quant_type, 11, columns)
    slot = device.upload(np.full(n_bytes + 256, 0xA5, np.uint8))
    matrix = matrices.matrix_in(slot[:n_bytes], quant_type, 11, columns)
    matrices.repack(device, device.upload(data.reshape(-1)), matrix, 0, 11)
    device.fence()
    out = device.empty((11, columns), np.float32)
    matrices.dequantize(device, matrix, 0, 11, out)
    assert within("embedding", device.download(out), expected(quant_type, data))
    assert (device.download(slot)[n_bytes:] == 0xA5).all()
    for wrong in (slot[: n_bytes + 1], slot[:n_bytes].reshape(1, -1), slot[:n_bytes].view(np.int32)):
        with pytest.raises(ValueError, match=r"11 rows of \d+ take"):
            matrices.matrix_in(wrong, quant_type, 11, columns)


@TYPES
def test_what_is_repacked_is_expanded_as_the_file_says(device: Device, quant_type: QuantType) -> None:
    for columns in widths(quant_type):
        data = native(quant_type, 11, columns)
        matrix = uploaded(device, quant_type, data, columns)
        whole = expected(quant_type, data)
        for first, rows in ((0, 11), (4, 3), (10, 1)):
            out = device.empty((rows, columns), np.float32)
            matrices.dequantize(device, matrix, first, rows, out)
            assert within("embedding", device.download(out), whole[first : first + rows]), columns
            halves = device.empty((rows, columns), np.float16)
            matrices.dequantize(device, matrix, first, rows, halves)
            # A value between two half floats may go to either when it is off by its last bit.
            error = np.abs(device.download(halves).astype(np.float32) - whole[first : first + rows])
            assert np.all(error <= 2.0**-11 * np.abs(whole[first : first + rows]) * (1 + 1e-4) + 2.0**-25), (
                columns
            )


@TYPES
def test_matrices_of_a_file_become_one(device: Device, quant_type: QuantType) -> None:
    columns = 256
    parts = [native(quant_type, rows, columns, seed=rows) for rows in (5, 1, 9)]
    matrix = matrices.allocate(device, quant_type, 15, columns)
    first = 0
    for part in parts:
        # Tensors of a file may start anywhere that is even.
        staged = device.upload(np.concatenate([np.zeros(6, np.uint8), part.reshape(-1)]))
        matrices.repack(device, staged[6:], matrix, first, len(part))
        first += len(part)
    device.fence()
    together = uploaded(device, quant_type, np.concatenate(parts), columns)
    out, again = (device.empty((15, columns), np.float32) for _ in range(2))
    matrices.dequantize(device, matrix, 0, 15, out)
    matrices.dequantize(device, together, 0, 15, again)
    np.testing.assert_array_equal(device.download(out), device.download(again))


@TYPES
def test_embedding_looks_rows_up_and_scales_them(device: Device, quant_type: QuantType) -> None:
    columns = widths(quant_type)[-1]
    data = native(quant_type, 40, columns)
    matrix = uploaded(device, quant_type, data, columns)
    ids = np.array([39, 0, 7, 7], np.int32)
    out = device.empty((4, columns), np.float32)
    matrices.embedding(device, device.upload(ids), matrix, 5.5, out)
    wanted = expected(quant_type, data)[ids] * np.float32(5.5)
    assert within("embedding", device.download(out), wanted)


def test_padding_costs_little() -> None:
    assert matrices.vram_bytes(QuantType.Q4_K, 14336, 4096) == 14336 * row_bytes(QuantType.Q4_K, 4096)
    assert matrices.vram_bytes(QuantType.Q6_K, 4096, 4096) == 4096 * row_bytes(QuantType.Q6_K, 4096)
    assert matrices.vram_bytes(QuantType.Q8_0, 576, 576) == 576 * 5 * (128 + 8)


def test_a_device_matrix_knows_whether_it_has_codes(device: Device) -> None:
    assert matrices.allocate(device, QuantType.Q4_0, 1, 32).is_quantised
    assert not matrices.allocate(device, QuantType.BF16, 1, 32).is_quantised


def test_what_does_not_fit_is_refused(device: Device) -> None:
    matrix = matrices.allocate(device, QuantType.Q8_0, 4, 64)
    data = device.zeros(2 * row_bytes(QuantType.Q8_0, 64), np.uint8)
    with pytest.raises(ValueError, match="no rows 3 to 4"):
        matrices.repack(device, data, matrix, 3, 2)
    with pytest.raises(ValueError, match="3 rows take"):
        matrices.repack(device, data, matrix, 0, 3)
    with pytest.raises(ValueError, match="do not go into"):
        matrices.dequantize(device, matrix, 0, 4, device.empty((3, 64), np.float32))
    with pytest.raises(ValueError, match="do not go into"):
        matrices.embedding(device, device.zeros(2, np.int32), matrix, 1.0, device.empty((2, 64), np.float16))
    with pytest.raises(ValueError, match="whole groups of 32"):
        matrices.allocate(device, QuantType.F32, 1, 48)
    with pytest.raises(ValueError, match="whole Q4_K blocks"):
        matrices.allocate(device, QuantType.Q4_K, 1, 128)
