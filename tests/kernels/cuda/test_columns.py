"""Products of several tokens: every type, width, number of tokens and setting, against the oracle."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kernels import reference
from kernels.cuda import columns, matrices, norms, products
from kernels.cuda.device import Device
from kernels.cuda.instances import Card
from kernels.cuda.launch_settings import Choice, ColumnsSettings, LaunchSettings
from kernels.cuda.matrices import DeviceMatrix
from kernels.cuda.norms import Rounded
from kernels.cuda.sketch import Sketch
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
        (256 if whole else 32, 2, 21, ColumnsSettings(1, 1, 2, 3, 1, 1, 1)),
        (768 if whole else 576, 8, 53, ColumnsSettings(2, 2, 4, 3, 1, 1, 1)),
        (1536 if whole else 640, 5, 37, ColumnsSettings(1, 4, 4, 3, 1, 1, 1)),
    ):
        check(device, quant_type, rows, n_columns, n_tokens, chosen, accumulate=n_tokens == 5)


def test_every_number_of_tokens(device: Device) -> None:
    for n_tokens in range(1, 9):
        chosen = ColumnsSettings(tiles=2, split=2, warps=2, stages=3, cluster=1, blocks=1, passes=1)
        check(device, QuantType.Q5_K, 37, 512, n_tokens, chosen, accumulate=True)


@pytest.mark.parametrize("quant_type", [QuantType.Q4_K, QuantType.Q8_0], ids=lambda t: t.name)
def test_every_way_to_share_the_work(device: Device, quant_type: QuantType) -> None:
    """Also when some warps have no unit of a round, or none at all, and some blocks few rows."""
    for tiles, split, warps, stages in ((1, 3, 6, 2), (2, 8, 8, 3), (2, 2, 8, 5), (1, 7, 7, 4), (2, 1, 3, 2)):
        check(device, quant_type, 101, 1280, 3, ColumnsSettings(tiles, split, warps, stages, 1, 1, 1))


@pytest.mark.parametrize("quant_type", [QuantType.Q4_K, QuantType.Q6_K, QuantType.Q5_0], ids=lambda t: t.name)
def test_blocks_of_a_cluster_share_rows(device: Device, quant_type: QuantType) -> None:
    """Also when some have a unit less than others, or none, and rows are not whole groups."""
    shares = ((2, 4, 2, 8), (1, 4, 4, 3), (1, 2, 8, 8), (1, 2, 8, 3), (2, 4, 8, 2))
    for split, warps, cluster, n_tokens in shares:
        chosen = ColumnsSettings(2, split, warps, 2, cluster, 1, 1)
        check(device, quant_type, 101, 1280, n_tokens, chosen, accumulate=n_tokens == 3)
        check(device, quant_type, 70, 2304, n_tokens, chosen)


def test_warps_that_share_no_rows_take_several_groups_of_them(device: Device) -> None:
    """Also when the last ones have fewer, or none from the start."""
    for quant_type, tiles, warps, passes, rows in (
        (QuantType.Q4_K, 2, 2, 3, 101),
        (QuantType.Q6_K, 1, 3, 2, 200),
        (QuantType.Q8_0, 2, 4, 4, 300),
    ):
        for n_tokens in (8, 3):
            chosen = ColumnsSettings(tiles, 1, warps, 2, 1, 1, passes)
            check(device, quant_type, rows, 1280, n_tokens, chosen, accumulate=n_tokens == 3)


@pytest.mark.parametrize("n_columns", [4864, 18944])
def test_long_rows_with_the_settings_of_the_rule(device: Device, n_columns: int) -> None:
    for quant_type in (QuantType.Q6_K, QuantType.Q4_0):
        data, x = native(quant_type, 32, n_columns), activations(6, n_columns)
        out = device.empty((6, 32), np.float32)
        products.multiply(device, on_device(device, quant_type, data, n_columns), rounded(device, x), out)
        expected, scale = product(quant_type, data, x)
        assert within("matmul", device.download(out), expected, scale)
    # Here x has no room in shared memory, and all warps of a block need the same of it.
    check(device, QuantType.Q4_K, 64, n_columns, 8, ColumnsSettings(1, 2, 8, 2, 1, 1, 1))


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gate_and_up_rows_are_joined(device: Device, activation: str) -> None:
    join = reference.swiglu if activation == "silu" else reference.geglu
    for quant_type, n_tokens, pairs, chosen in (
        (QuantType.Q4_K, 8, 37, ColumnsSettings(2, 2, 4, 2, 1, 1, 1)),
        (QuantType.Q4_K, 5, 37, ColumnsSettings(2, 1, 4, 2, 1, 1, 1)),
        (QuantType.Q5_1, 3, 16, ColumnsSettings(2, 1, 4, 4, 1, 2, 1)),
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


@pytest.mark.parametrize("n_tokens", [8, 6, 3])
def test_gated_outputs_are_rounded_at_once(device: Device, n_tokens: int) -> None:
    """As by a kernel of its own, to the last bit; also where a block has no outputs for all its warps."""
    pairs, data = 384, native(QuantType.Q4_K, 768, 512)
    x = rounded(device, activations(n_tokens, 512))
    matrix = on_device(device, QuantType.Q4_K, data, 512)
    for chosen in (
        ColumnsSettings(2, 1, 8, 2, 1, 1, 1),
        ColumnsSettings(2, 1, 16, 1, 1, 1, 1),
        ColumnsSettings(2, 1, 16, 1, 2, 1, 1),
        ColumnsSettings(2, 1, 8, 1, 4, 1, 1),
    ):
        assert columns.can_round(n_tokens, pairs, chosen)
        inner = device.empty((n_tokens, pairs), np.float32)
        columns.launch(device, matrix, x, inner, "GATED_SILU", chosen)
        expected, result = (norms.rounded(device, n_tokens, pairs) for _ in range(2))
        norms.round_rows(device, inner, rounded=expected)
        columns.launch(device, matrix, x, inner, "GATED_SILU", chosen, rounded=result)
        for each, right in zip(result, expected, strict=True):
            assert np.array_equal(device.download(each), device.download(right))


def test_chunks_that_do_not_meet_in_a_block_are_rounded_afterwards(device: Device) -> None:
    chosen = ColumnsSettings(2, 1, 8, 1, 1, 1, 1)
    assert columns.can_round(8, 256, chosen) and not columns.can_round(8, 240, chosen)
    for other in (chosen._replace(warps=7), chosen._replace(split=2), chosen._replace(passes=2)):
        assert not columns.can_round(8, 256, other)
    halves = chosen._replace(cluster=8)  # of a column where there are four
    assert columns.can_round(5, 256, halves) and not columns.can_round(4, 256, halves)
    for pairs, n_tokens in ((36, 8), (36, 1), (128, 5)):
        data, x = native(QuantType.Q8_0, 2 * pairs, 256), activations(n_tokens, 256)
        matrix, seen = on_device(device, QuantType.Q8_0, data, 256), rounded(device, x)
        inner, result = device.empty((n_tokens, pairs), np.float32), norms.rounded(device, n_tokens, pairs)
        products.multiply_gated_rounded(device, matrix, seen, inner, result, "silu")
        plain, expected = device.empty((n_tokens, pairs), np.float32), norms.rounded(device, n_tokens, pairs)
        products.multiply_gated(device, matrix, seen, plain, "silu")
        norms.round_rows(device, plain, rounded=expected)
        for each, right in zip(result, expected, strict=True):
            assert np.array_equal(device.download(each), device.download(right))


def test_a_gated_product_is_one_launch_where_it_can_round() -> None:
    chosen, sketch = ColumnsSettings(2, 1, 8, 1, 1, 1, 1), Sketch(Card("H200", 90, 132))
    settings = LaunchSettings(90, 132, [[Choice("columns", QuantType.Q4_K, 512, 768, 8, chosen)]])
    x = norms.rounded(sketch, 8, 512)
    for pairs, kernels in ((384, ["gemv_columns"]), (380, ["gemv_columns", "gated"])):
        matrix = matrices.allocate(sketch, QuantType.Q4_K, 2 * pairs, 512)
        inner, result = sketch.empty((8, pairs), np.float32), norms.rounded(sketch, 8, pairs)
        sketch.launches.clear()
        products.multiply_gated_rounded(sketch, matrix, x, inner, result, "silu", settings=settings)
        assert [launch.kernel.name for launch in sketch.launches] == kernels


def test_which_products_run_beside_each_other() -> None:
    sketch = Sketch(Card("H200", 90, 132))
    types = QuantType.Q4_K, QuantType.Q6_K, QuantType.Q4_K
    quantised = [matrices.allocate(sketch, each, 64, 256) for each in types]

    def order(n_tokens: int, *, one_of_floats: bool = False) -> list[tuple[int | str, int | str]]:
        x, out = norms.rounded(sketch, n_tokens, 256), sketch.empty((n_tokens, 64), np.float32)
        parts = [products.Product(matrix, x, out) for matrix in quantised]
        if one_of_floats:
            floats = sketch.empty((n_tokens, 256), np.float32)
            parts.append(products.Product(quantised[0], floats, out))
        sketch.launches.clear()
        products.multiply_each(sketch, parts)
        defines = [
            dict(each.kernel.defines) for each in sketch.launches if "LEADS" in dict(each.kernel.defines)
        ]
        return [(each["LEADS"], each["BESIDE"]) for each in defines]

    assert order(8) == [(1, 0), (0, 1), (0, 1)]
    assert order(8, one_of_floats=True) == [(0, 0)] * 3
    assert order(1) == []
    quantised[1:] = []
    assert order(8) == [(0, 0)]


def again_and_again(device: Device, n_tokens: int, types: dict[QuantType, int], *, together: bool) -> Floats:
    """Hidden states [T, 256] after many products with matrices of so many rows, normed before each."""
    state = device.upload(activations(n_tokens, 256))
    weight, seen = device.upload(np.ones(256, np.float32)), norms.rounded(device, n_tokens, 256)
    parts, first = [], 0
    for quant_type, rows in types.items():
        matrix = on_device(device, quant_type, native(quant_type, rows, 256), 256)
        parts.append(products.Product(matrix, seen, state[:, first : first + rows]))
        first += rows
    device.fence()

    def step() -> None:
        for _ in range(20):
            norms.add_norm(device, state, weight, 1e-5, rounded=seen)
            if together:
                products.multiply_each(device, parts)
                continue
            for part in parts:
                products.multiply(device, *part)

    step()
    graph = device.capture(step)
    for _ in range(5):
        graph.launch()
    result: Floats = device.download(state)
    return result


@pytest.mark.parametrize("n_tokens", [1, 4, 8])
def test_products_beside_each_other_are_those_one_by_one(device: Device, n_tokens: int) -> None:
    """Each makes what the next one reads, again and again: who does not wait where it has to is found out."""
    types = {QuantType.Q4_K: 160, QuantType.Q6_K: 64, QuantType.Q8_0: 32}
    together, alone = (again_and_again(device, n_tokens, types, together=each) for each in (True, False))
    assert np.isfinite(together).all()
    assert np.array_equal(together, alone)


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
