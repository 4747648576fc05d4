"""Products of matrices in video memory: every type, every row length of real models, every way to launch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kernels import reference
from kernels.cuda import launch_settings, matrices, products
from kernels.cuda.device import Array, Device
from kernels.cuda.launch_settings import GemvSettings
from kernels.cuda.matrices import DeviceMatrix
from kernels.cuda.norms import Rounded
from kernels.quant_types import QuantType, block_size, row_bytes
from kernels.reference_quants import Floats, dequantize
from kernels.tolerances import TOLERANCES
from tests.tiny_gguf import random_matrix

Doubles = npt.NDArray[np.float64]
FLOAT_TYPES = (QuantType.F32, QuantType.F16, QuantType.BF16)
QUANTISED = [quant_type for quant_type in QuantType if quant_type not in FLOAT_TYPES]
ROW_LENGTHS = [576, 640, 896, 960, 1152, 1536, 2048, 3584, 4096, 4864, 5120, 8192, 11008]
ROW_LENGTHS += [13824, 14336, 18944, 28672]
"""Of models from SmolLM2-135M to Llama-3-70B."""


class Weights:
    """A random matrix, on the device and as floats."""

    def __init__(self, device: Device, quant_type: QuantType, rows: int, columns: int) -> None:
        stored = random_matrix(np.random.default_rng(rows), (rows, columns), quant_type)
        native = np.ascontiguousarray(stored).view(np.uint8).reshape(-1)
        assert native.size == rows * row_bytes(quant_type, columns)
        self.matrix: DeviceMatrix = matrices.allocate(device, quant_type, rows, columns)
        matrices.repack(device, device.upload(native), self.matrix, 0, rows)
        device.fence()
        self.values: Doubles = dequantize(native, quant_type).reshape(rows, columns).astype(np.float64)

    def product(self, x: Floats) -> tuple[Doubles, Doubles]:
        """x @ weights.T and how far a kernel may be from it."""
        wide = x.astype(np.float64)
        allowed = TOLERANCES["matmul"].rtol * (np.abs(wide) @ np.abs(self.values.T))
        return wide @ self.values.T, allowed


def activations(tokens: int, columns: int) -> Floats:
    """Random ones, of which groups differ in size as they do behind a norm."""
    rng = np.random.default_rng(columns)
    sizes = np.exp(rng.standard_normal(columns // 32)).repeat(32)
    return (rng.standard_normal((tokens, columns)) * sizes).astype(np.float32)


def rounded(device: Device, x: Floats) -> Rounded:
    planes = reference.planes_of_15(x)
    return Rounded(*(device.upload(plane) for plane in planes))


def assert_near(result: npt.NDArray[np.floating], expected: Doubles, allowed: Doubles) -> None:
    assert np.all(np.abs(result - expected) <= allowed), np.max(np.abs(result - expected) / allowed)


def width(quant_type: QuantType) -> int:
    """A row whose last chunk is three quarters full, or of three blocks of 256."""
    return 608 if block_size(quant_type) <= 32 else 768


@pytest.mark.parametrize("quant_type", QUANTISED, ids=lambda t: t.name)
def test_one_token_equals_the_oracle(device: Device, quant_type: QuantType) -> None:
    weights = Weights(device, quant_type, 37, width(quant_type))
    x = activations(1, width(quant_type))
    out = device.empty((1, 37), np.float32)
    products.launch(device, weights.matrix, rounded(device, x), out, "STORE", GemvSettings(1, 2, 4, 1))
    assert_near(device.download(out), *weights.product(reference.round_activations_15(x)))


@pytest.mark.parametrize(
    ("quant_type", "columns"),
    [
        (quant_type, columns)
        for quant_type, lengths in (
            (QuantType.Q4_K, ROW_LENGTHS),
            (QuantType.Q8_0, ROW_LENGTHS),
            (QuantType.Q6_K, [2048, 4864, 5120, 18944]),
        )
        for columns in lengths
        if columns % block_size(quant_type) == 0
    ],
    ids=lambda value: value.name if isinstance(value, QuantType) else str(value),
)
def test_every_row_length(device: Device, quant_type: QuantType, columns: int) -> None:
    weights = Weights(device, quant_type, 5, columns)
    x = activations(1, columns)
    out = device.empty((1, 5), np.float32)
    # As for a matrix of a real model's size.
    chosen = launch_settings.shipped(90, 132).gemv(quant_type, columns, 8192)
    products.launch(device, weights.matrix, rounded(device, x), out, "STORE", chosen)
    assert_near(device.download(out), *weights.product(reference.round_activations_15(x)))


@pytest.mark.parametrize("rows", [1, 3, 16, 33])
@pytest.mark.parametrize("chosen", [(1, 1, 4, 3), (2, 4, 8, 1), (3, 2, 6, 2)], ids=str)
def test_every_way_to_launch(device: Device, chosen: tuple[int, int, int, int], rows: int) -> None:
    weights = Weights(device, QuantType.Q4_0, rows, 3424)  # 26.75 chunks: the last step of 8 is not full
    x = activations(1, 3424)
    before = np.random.default_rng(1).standard_normal((1, rows)).astype(np.float32)
    out = device.upload(before)
    products.launch(device, weights.matrix, rounded(device, x), out, "ADD", GemvSettings(*chosen))
    expected, allowed = weights.product(reference.round_activations_15(x))
    assert_near(device.download(out), before + expected, allowed + 1e-6)


def test_the_same_product_has_the_same_bits(device: Device) -> None:
    weights, x = Weights(device, QuantType.Q5_K, 20, 1024), activations(1, 1024)
    out, again = device.empty((1, 20), np.float32), device.empty((1, 20), np.float32)
    for result in (out, again):
        products.multiply(device, weights.matrix, rounded(device, x), result)
    np.testing.assert_array_equal(device.download(out), device.download(again))


def assert_gated(result: Floats, gate_up: Doubles, allowed: Doubles, activation: str) -> None:
    """activation(gate) * up, whose errors are those of gate and of up times the other factor."""
    gate, up = np.split(gate_up, 2, axis=1)
    gate_error, up_error = np.split(allowed, 2, axis=1)
    one = np.ones((), np.float32)
    join = reference.swiglu if activation == "silu" else reference.geglu
    activated = join(gate.astype(np.float32), one).astype(np.float64)
    assert_near(
        result,
        activated * up,
        1.2 * np.abs(up) * gate_error + np.abs(activated) * up_error + 1e-5 * np.abs(activated * up) + 1e-6,
    )


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gate_and_up_are_joined(device: Device, activation: str) -> None:
    weights = Weights(device, QuantType.Q6_K, 2 * 11, 512)
    x = activations(1, 512)
    expected, allowed = weights.product(reference.round_activations_15(x))
    out = device.empty((1, 11), np.float32)
    products.multiply_gated(device, weights.matrix, rounded(device, x), out, activation)
    assert_gated(device.download(out), expected, allowed, activation)
    for chosen in (GemvSettings(2, 4, 4, 1), GemvSettings(1, 1, 2, 1)):
        epilogue = {"silu": "GATED_SILU", "gelu": "GATED_GELU"}[activation]
        products.launch(device, weights.matrix, rounded(device, x), out, epilogue, chosen)
        assert_gated(device.download(out), expected, allowed, activation)


def strided(device: Device, tokens: int, columns: int, more: int) -> Array:
    """Rows that lie `more` columns further apart than they are long."""
    return device.zeros((tokens, columns + more), np.float32)[:, :columns]


@pytest.mark.parametrize("quant_type", list(QuantType), ids=lambda t: t.name)
def test_floats_times_any_type(device: Device, quant_type: QuantType) -> None:
    columns = width(quant_type)
    weights = Weights(device, quant_type, 9, columns)
    x = activations(3, columns)
    expected, allowed = weights.product(x)
    out = device.zeros((3, 12), np.float32)
    products.multiply(device, weights.matrix, device.upload(x), out[:, 2:11], settings=None)
    result = device.download(out)
    assert_near(result[:, 2:11], expected, allowed)
    assert not result[:, :2].any() and not result[:, 11:].any()


def test_a_column_of_floats_does_not_depend_on_the_others(device: Device) -> None:
    weights, x = Weights(device, QuantType.F16, 6, 352), activations(8, 352)
    wide = device.upload(np.concatenate([x, x], axis=1))
    alone, together = device.empty((8, 6), np.float32), device.empty((8, 6), np.float32)
    products.multiply(device, weights.matrix, wide[:, :352], together)
    for token in range(8):
        products.multiply(device, weights.matrix, wide[token : token + 1, :352], alone[token : token + 1])
    np.testing.assert_array_equal(device.download(alone), device.download(together))
    expected, allowed = weights.product(x)
    products.multiply(device, weights.matrix, wide[:, 352:], together, accumulate=True)
    assert_near(device.download(together), 2 * expected, 2 * allowed)


@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_floats_with_gate_and_up(device: Device, activation: str) -> None:
    weights, x = Weights(device, QuantType.BF16, 2 * 5, 96), activations(2, 96)
    out = device.empty((2, 5), np.float32)
    products.multiply_gated(device, weights.matrix, device.upload(x), out, activation)
    assert_gated(device.download(out), *weights.product(x), activation)


@pytest.mark.parametrize("rows", [2, 24])
def test_several_tokens(device: Device, rows: int) -> None:
    weights, x = Weights(device, QuantType.Q4_K, rows, 512), activations(3, 512)
    expected, allowed = weights.product(reference.round_activations_15(x))
    out = device.zeros((3, rows + 4), np.float32)
    for _ in range(2):
        products.multiply(device, weights.matrix, rounded(device, x), out[:, 4:], accumulate=True)
    assert_near(device.download(out)[:, 4:], 2 * expected, 2 * allowed)


def test_what_does_not_fit_is_refused(device: Device) -> None:
    floats, codes = (
        Weights(device, QuantType.F32, 4, 64).matrix,
        Weights(device, QuantType.Q8_0, 5, 64).matrix,
    )
    x = activations(2, 64)
    out = device.empty((2, 4), np.float32)
    with pytest.raises(ValueError, match="2 rounded rows times 4 of 64 weights of F32"):
        products.multiply(device, floats, rounded(device, x), out)
    with pytest.raises(ValueError, match="do not give"):
        products.multiply(device, codes, rounded(device, x), out)
    with pytest.raises(ValueError, match="do not give"):
        products.multiply(device, floats, device.upload(activations(9, 64)), device.empty((9, 4), np.float32))
    with pytest.raises(ValueError, match="5 rows are not gate rows"):
        products.multiply_gated(device, codes, rounded(device, x), out, "silu")
