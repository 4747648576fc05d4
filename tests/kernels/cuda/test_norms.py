"""What runs between the products against its oracle, in every form of output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels import reference
from kernels.cuda import norms
from kernels.cuda.device import Array, Device
from kernels.tolerances import within

WIDTHS = [64, 576, 640, 960, 2048, 4096, 4864]
EPS = 1e-5


def floats(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Outputs:
    """Room for every form of output."""

    def __init__(self, device: Device, n_tokens: int, n_columns: int) -> None:
        self.device = device
        self.rounded = norms.rounded(device, n_tokens, n_columns)
        self.half = norms.half(device, n_tokens, n_columns)
        self.floats: Array = device.empty((n_tokens, n_columns), np.float32)

    def all(self) -> dict[str, Any]:
        return {"rounded": self.rounded, "half": self.half, "floats": self.floats}

    def host_floats(self) -> np.ndarray:
        return self.device.download(self.floats)

    def assert_are_roundings_of(self, values: np.ndarray) -> None:
        assert_rounded(self.device, self.rounded, values)
        assert_half(self.device, self.half, values)


def assert_rounded(device: Device, rounded: norms.Rounded, values: np.ndarray) -> None:
    """To the last bit: each value goes through two roundings that IEEE arithmetic leaves no choice in."""
    for plane, expected in zip(rounded, reference.planes_of_15(values), strict=True):
        np.testing.assert_array_equal(device.download(plane), expected)


def assert_half(device: Device, half: norms.Half, values: np.ndarray) -> None:
    halves, factors = reference.half_rows(values)
    np.testing.assert_array_equal(device.download(half.scale), factors)
    finite = np.isfinite(factors)
    np.testing.assert_array_equal(device.download(half.values)[finite], halves[finite])


@pytest.mark.parametrize("n_columns", WIDTHS)
def test_rmsnorm_in_every_form(device: Device, n_columns: int) -> None:
    x, weight = floats(1, 3, n_columns) * 7, floats(2, n_columns)
    x[1] = 0
    out = Outputs(device, 3, n_columns)
    on_device = device.upload(x)
    norms.add_norm(device, on_device, device.upload(weight), EPS, **out.all())
    assert within("rmsnorm", out.host_floats(), reference.rmsnorm(x, weight, EPS))
    out.assert_are_roundings_of(out.host_floats())
    np.testing.assert_array_equal(device.download(on_device), x)


@pytest.mark.parametrize("n_columns", [64, 576, 4096, 8448, norms.LARGEST_NORM])
@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_an_update_is_added_first(device: Device, n_columns: int, post: bool, scaled: bool) -> None:
    x, update = floats(1, 2, n_columns), floats(2, 2, n_columns) * 5
    weight, post_weight = floats(3, n_columns), floats(4, n_columns)
    scale = np.array([0.5, 3], np.float32)
    out = Outputs(device, 2, n_columns)
    on_device = device.upload(x)
    norms.add_norm(
        device,
        on_device,
        device.upload(weight),
        EPS,
        update=device.upload(update),
        update_scale=device.upload(scale) if scaled else None,
        post_weight=device.upload(post_weight) if post else None,
        floats=out.floats,
    )
    added = update * scale[:, None] if scaled else update
    added = reference.rmsnorm(added, post_weight, EPS) if post else added
    assert within("rmsnorm", device.download(on_device), x + added, np.abs(x) + np.abs(added))
    normed = reference.rmsnorm(x + added, weight, EPS)
    size = np.abs(normed / (x + added)) * (np.abs(x) + np.abs(added))
    assert within("rmsnorm", out.host_floats(), normed, size)


def test_without_a_weight_the_update_is_only_added(device: Device) -> None:
    x, update = floats(1, 2, 576), floats(2, 2, 576)
    on_device = device.upload(x)
    norms.add_norm(device, on_device, None, EPS, update=device.upload(update))
    np.testing.assert_array_equal(device.download(on_device), x + update)


@pytest.mark.parametrize("n_columns", [0, 66, norms.LARGEST_NORM + 4])
def test_rows_that_no_block_holds_are_refused(device: Device, n_columns: int) -> None:
    with pytest.raises(ValueError, match=f"rows of {n_columns}"):
        norms.norm_kernel(n_columns)


@pytest.mark.parametrize("n_columns", WIDTHS)
@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("scaled", [False, True])
def test_gating_in_every_form(device: Device, n_columns: int, activation: str, scaled: bool) -> None:
    gate_up = floats(1, 3, 2 * n_columns) * 4
    gate_up[0, :8] = [-200, -90, -30, -5, 5, 30, 90, 200]
    scale = np.array([1, 0.25, 2], np.float32)
    out = Outputs(device, 3, n_columns)
    norms.gated(
        device,
        device.upload(gate_up),
        activation,
        scale=device.upload(scale) if scaled else None,
        **out.all(),
    )
    gate, up = np.split(gate_up * scale[:, None] if scaled else gate_up, 2, axis=1)
    operation, oracle = {"silu": ("swiglu", reference.swiglu), "gelu": ("geglu", reference.geglu)}[activation]
    expected = oracle(gate, up)
    size = np.maximum(np.abs(expected), np.abs(gate * up))
    assert within(operation, out.host_floats(), expected, size)
    out.assert_are_roundings_of(out.host_floats())


@pytest.mark.parametrize("n_columns", [*WIDTHS, 80 * 7])
def test_plain_rows_are_rounded(device: Device, n_columns: int) -> None:
    x = floats(1, 3, n_columns) * np.float32(1e3)
    x[1] *= np.float32(1e-9)
    x[2, :40] = 0
    out = Outputs(device, 3, n_columns)
    norms.round_rows(device, device.upload(x), rounded=out.rounded, half=out.half)
    out.assert_are_roundings_of(x)


def test_values_at_the_ends_of_float32_are_rounded(device: Device) -> None:
    x = np.zeros((9, 128), np.float32)
    x[:, :4] = np.array([[1, -0.5, 0.25, -1]], np.float32)
    tops = [1e-45, 1e-38, 2**-125, 2**-116, 2**-115, 2e-30, 1, 65504, 3e38]
    x *= np.array(tops, np.float32)[:, None]
    out = Outputs(device, 9, 128)
    norms.round_rows(device, device.upload(x), rounded=out.rounded, half=out.half)
    out.assert_are_roundings_of(x)


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_in_every_form(device: Device, bad: float) -> None:
    x = floats(1, 2, 256)
    x[1, 77] = bad
    out = Outputs(device, 2, 256)
    norms.round_rows(device, device.upload(x), rounded=out.rounded, half=out.half)
    out.assert_are_roundings_of(x)
    assert np.isnan(device.download(out.rounded.d)[1]).sum() == 1
    assert np.isnan(device.download(out.half.scale)).tolist() == [False, True]
    norms.add_norm(device, device.upload(x), device.upload(np.ones(256, np.float32)), EPS, **out.all())
    assert np.isnan(device.download(out.rounded.d)[1]).any()
    assert np.isnan(device.download(out.half.scale)).tolist() == [False, True]
