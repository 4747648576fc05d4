"""Products of several tokens: every type, width, number of tokens and setting, against the oracle."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kernels import reference
from kernels.cuda import columns, matrices, products
from kernels.cuda.device import Device
from kernels.cuda.launch_settings import ColumnsSettings
from kernels.cuda.matrices import DeviceMatrix
from kernels.cuda.norms import Rounded
from kernels.quant_types import QuantType, block_bytes, block_size, row_bytes
from kernels.tolerances import within
from tests.tiny_gguf import random_matrix

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
QUANTISED = [t for t in QuantType if block_size(t) > 1]
TYPES = pytest.mark.parametrize("quant_type", QUANTISED, ids=lambda t: t.name)


def activations(n_tokens: int, n_columns: int, seed: int = 1) -> Floats:
    """Groups of very different size, as a model's are."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.standard_normal((n_tokens, n_columns // 32))).repeat(32, axis=1)
    return (rng.standard_normal((n_tokens, n_columns)) * sizes).astype(np.float32)


def native(quant_type: QuantType, rows: int, n_columns: int, seed: int = 0) -> Bytes:
    stored = random_matrix(np.random.default_rng(seed), (rows, n_columns), quant_type)
    return np.ascontiguousarray(stored).view(np.uint8).reshape(-1)


def on_device(device: Device, quant_type: QuantType, data: Bytes, n_columns: int) -> DeviceMatrix:
    rows = data.size // row_bytes(quant_type, n_columns)
    matrix = matrices.allocate(device, quant_type, rows, n_columns)
    matrices.repack(device, device.upload(data), matrix, 0, rows)
    return matrix


def rounded(device: Device, x: Floats) -> Rounded:
    return Rounded(*(device.upload(plane) for plane in reference.planes_of_15(x)))


def product(quant_type: QuantType, data: Bytes, x: Floats) -> tuple[Floats, Floats]:
    """What is right, and the sums of absolute products: [T, rows] each."""
    seen = reference.round_activations_15(x)
    weights = reference.dequantize(data, quant_type).reshape(-1, x.shape[1])
    return reference.matmul(seen, data, quant_type), np.abs(seen) @ np.abs(weights.T)


def check(
    device: Device,
    quant_type: QuantType,
    rows: int,
    n_columns: int,
    n_tokens: int,
    chosen: ColumnsSettings,
    *,
    accumulate: bool = False,
) -> None:
    data, x = native(quant_type, rows, n_columns), activations(n_tokens, n_columns)
    before = np.random.default_rng(2).standard_normal((n_tokens, rows)).astype(np.float32)
    out = device.upload(before)
    matrix = on_device(device, quant_type, data, n_columns)
    columns.launch(device, matrix, rounded(device, x), out, "ADD" if accumulate else "STORE", chosen)
    expected, scale = product(quant_type, data, x)
    result = device.download(out)
    if accumulate:
        expected, scale = expected + before, scale + np.abs(before)
    assert within("matmul", result, expected, scale), (quant_type, n_columns, n_tokens, chosen)


@TYPES
def test_every_type_at_several_widths_and_numbers_of_tokens(device: Device, quant_type: QuantType) -> None:
    whole = block_size(quant_type) == 256
    for n_columns, n_tokens, rows, chosen in (
        (256 if whole else 32, 2, 21, ColumnsSettings(1, 1, 2, 3, 1, 1)),
        (768 if whole else 576, 8, 53, ColumnsSettings(2, 2, 4, 3, 1, 1)),
        (1536 if whole else 640, 5, 37, ColumnsSettings(1, 4, 4, 3, 1, 1)),
    ):
        check(device, quant_type, rows, n_columns, n_tokens, chosen, accumulate=n_tokens == 5)


def test_every_number_of_tokens(device: Device) -> None:
    for n_tokens in range(1, 9):
        chosen = ColumnsSettings(tiles=2, split=2, warps=2, stages=3, cluster=1, blocks=1)
        check(device, QuantType.Q5_K, 37, 512, n_tokens, chosen, accumulate=True)


@pytest.mark.parametrize("quant_type", [QuantType.Q4_K, QuantType.Q8_0], ids=lambda t: t.name)
def test_every_way_to_share_the_work(device: Device, quant_type: QuantType) -> None:
    """Also when some warps have no unit of a round, or none at all, and some blocks few rows."""
    for tiles, split, warps, stages in ((1, 3, 6, 2), (2, 8, 8, 3), (2, 2, 8, 5), (1, 7, 7, 4), (2, 1, 3, 2)):
        check(device, quant_type, 101, 1280, 3, ColumnsSettings(tiles, split, warps, stages, 1, 1))


@pytest.mark.parametrize("quant_type", [QuantType.Q4_K, QuantType.Q6_K, QuantType.Q5_0], ids=lambda t: t.name)
def test_blocks_of_a_cluster_share_rows(device: Device, quant_type: QuantType) -> None:
    """Also when some have a unit less than others, or none, and rows are not whole groups."""
    for split, warps, cluster, n_tokens in ((2, 4, 2, 8), (1, 4, 4, 3), (1, 2, 8, 8)):
        chosen = ColumnsSettings(2, split, warps, 2, cluster, 1)
        check(device, quant_type, 101, 1280, n_tokens, chosen, accumulate=n_tokens == 3)
        check(device, quant_type, 70, 2304, n_tokens, chosen)


@pytest.mark.parametrize("n_columns", [4864, 18944])
def test_long_rows_with_the_settings_of_the_rule(device: Device, n_columns: int) -> None:
    for quant_type in (QuantType.Q6_K, QuantType.Q4_0):
        data, x = native(quant_type, 32, n_columns), activations(6, n_columns)
        out = device.empty((6, 32), np.float32)
        products.multiply(device, on_device(device, quant_type, data, n_columns), rounded(device, x), out)
        expected, scale = product(quant_type, data, x)
        assert within("matmul", device.download(out), expected, scale)
    # Here x has no room in shared memory, and all warps of a block need the same of it.
    check(device, QuantType.Q4_K, 64, n_columns, 8, ColumnsSettings(1, 2, 8, 2, 1, 1))


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gate_and_up_rows_are_joined(device: Device, activation: str) -> None:
    join = reference.swiglu if activation == "silu" else reference.geglu
    for quant_type, n_tokens, pairs, chosen in (
        (QuantType.Q4_K, 8, 37, ColumnsSettings(2, 2, 4, 2, 1, 1)),
        (QuantType.Q4_K, 5, 37, ColumnsSettings(2, 1, 4, 2, 1, 1)),
        (QuantType.Q5_1, 3, 16, ColumnsSettings(2, 1, 4, 4, 1, 2)),
    ):
        data, x = native(quant_type, 2 * pairs, 512), activations(n_tokens, 512)
        out = device.empty((n_tokens, pairs), np.float32)
        matrix = on_device(device, quant_type, data, 512)
        epilogue = f"GATED_{activation.upper()}"
        columns.launch(device, matrix, rounded(device, x), out, epilogue, chosen)
        (gate, up), (of_gate, of_up) = (
            (both[:, :pairs], both[:, pairs:]) for both in product(quant_type, data, x)
        )
        # The slopes of both functions stay below 1.2, and they themselves below |gate|.
        scale = 1.2 * of_gate * (np.abs(up) + 1e-3) + np.abs(gate) * of_up + np.abs(join(gate, up))
        assert within("matmul", device.download(out), join(gate, up), 2 * scale)


def test_out_may_be_some_columns_of_a_wider_array(device: Device) -> None:
    data, x = native(QuantType.Q4_1, 24, 256), activations(4, 256)
    wide = device.zeros((4, 64), np.float32)
    matrix = on_device(device, QuantType.Q4_1, data, 256)
    products.multiply(device, matrix, rounded(device, x), wide[:, 8:32])
    products.multiply(device, matrix, rounded(device, x), wide[:, 8:32], accumulate=True)
    result = device.download(wide)
    expected, scale = product(QuantType.Q4_1, data, x)
    assert within("matmul", result[:, 8:32], 2 * expected, 2 * scale)
    assert not result[:, :8].any() and not result[:, 32:].any()


@TYPES
def test_the_largest_sums_do_not_overflow(device: Device, quant_type: QuantType) -> None:
    """All bits 0 or 1 are the extreme codes and scales of every type; equal activations the extreme sums."""
    blocks = np.zeros((20, 2, block_bytes(quant_type)), np.uint8)
    blocks[10:] = 0xFF
    places = {QuantType.Q2_K: (80, 82), QuantType.Q3_K: (108,), QuantType.Q6_K: (208,)}
    for at in places.get(quant_type, (0, 2)):
        blocks[..., at : at + 2] = np.array([0.25], np.float16).view(np.uint8)
    if quant_type is QuantType.Q6_K:
        blocks[..., 192:208] = 0x80  # -128
    data, x = blocks.reshape(-1), np.ones((5, 2 * block_size(quant_type)), np.float32)
    x[1], x[2, ::2], x[3] = -1, -1, 1e-4
    out = device.empty((5, 20), np.float32)
    products.multiply(device, on_device(device, quant_type, data, x.shape[1]), rounded(device, x), out)
    expected, scale = product(quant_type, data, x)
    assert within("matmul", device.download(out), expected, scale)


def test_a_token_that_is_not_finite_spoils_no_other(device: Device) -> None:
    data, x = native(QuantType.Q4_K, 32, 512), activations(8, 512)
    x[3, 70] = np.nan
    out = device.empty((8, 32), np.float32)
    products.multiply(device, on_device(device, QuantType.Q4_K, data, 512), rounded(device, x), out)
    result = device.download(out)
    expected, scale = product(QuantType.Q4_K, data, x)
    others = [token for token in range(8) if token != 3]
    assert np.all(np.isnan(result[3]))
    assert within("matmul", result[others], expected[others], scale[others])
