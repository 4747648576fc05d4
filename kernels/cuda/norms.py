"""Between the products: adding and normalising, gating, and rounding what the next product reads.

Knows three forms of activations: rounded to 15 bits (`Rounded`, for quantised matrices), half floats with a
scale for each row (`Half`, for cuBLAS), and floats. Does not know products or models. Letters: T tokens, D
hidden size, F inner size of the feed-forward layer, K columns of any row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.cuda.device import Array, Device, Kernel

LARGEST_NORM = 16384
"""Columns that `add_norm` takes at most: a block holds a row in its registers."""

_NULL = np.uint64(0)
_CHUNK = 128
_WARPS = 32
"""Warps that a block has at most."""
_GATED_WARPS = 4
"""Warps of a block that gates: few, so that one row is spread over many processors."""
_ACTIVATIONS = {"silu": "SILU", "gelu": "GELU"}


class Rounded(NamedTuple):
    """Activations of T tokens rounded to 15 bits in chunks of 128; rounding.cuh has the order."""

    q: Array
    """[T, 4, padded / 2] int8: the high and the low bytes; columns are padded to whole chunks of 128."""
    d: Array
    """[T, padded / 128] float32: a chunk's step."""
    s: Array
    """[T, padded / 16] float32: the step times the sum of 16 values."""

    def rows(self, first: int, last: int) -> Rounded:
        """A view of tokens first..last-1."""
        return Rounded(self.q[first:last], self.d[first:last], self.s[first:last])


class Half(NamedTuple):
    """Activations of T tokens as half floats, each row times a power of two."""

    values: Array
    """[T, K] float16; the largest of a row lies in [2048, 4096)."""
    scale: Array
    """[T] float32: what to multiply a row's products with."""


def rounded(device: Device, n_tokens: int, n_columns: int) -> Rounded:
    """Room for T rows of K; what no one writes, such as the padding, is zero. Raises DeviceMemoryError."""
    padded = -(-n_columns // _CHUNK) * _CHUNK
    return Rounded(
        device.zeros((n_tokens, 4, padded // 2), np.int8),
        device.zeros((n_tokens, padded // _CHUNK), np.float32),
        device.zeros((n_tokens, padded // 16), np.float32),
    )


def half(device: Device, n_tokens: int, n_columns: int) -> Half:
    """Room for T rows of K. Raises DeviceMemoryError."""
    return Half(device.empty((n_tokens, n_columns), np.float16), device.empty(n_tokens, np.float32))


def norm_kernel(n_columns: int) -> Kernel:
    """The instance for rows of D; ValueError for rows that it cannot hold."""
    if n_columns % 4 or not 0 < n_columns <= LARGEST_NORM:
        raise ValueError(f"rows of {n_columns}: a multiple of 4 up to {LARGEST_NORM} is needed")
    n_chunks = -(-n_columns // _CHUNK)
    # Up to 16 warps with one chunk each; beyond that more chunks before more warps than 32.
    per_warp = 1 if n_chunks <= _WARPS // 2 else 2 if n_chunks <= 2 * _WARPS else 4
    return Kernel.of("rmsnorm.cu", "rmsnorm", CHUNKS=per_warp)


def add_norm(
    device: Device,
    x: Array,
    weight: Array | None,
    eps: float,
    *,
    update: Array | None = None,
    update_scale: Array | None = None,
    post_weight: Array | None = None,
    rounded: Rounded | None = None,
    half: Half | None = None,
    floats: Array | None = None,
) -> None:
    """Add `update` to x [T, D] in place, then write rmsnorm(x) * weight in each of the forms that are given.

    `update` [T, D] is first multiplied by update_scale [T], then replaced by rmsnorm(update) * post_weight,
    where they are given. Without `weight` [D] nothing is normalised. All float32 but for the forms.
    """
    n_tokens, n_columns = x.shape
    kernel = norm_kernel(n_columns)
    per_warp = dict(kernel.defines)["CHUNKS"]
    assert isinstance(per_warp, int)
    n_warps = -(-n_columns // (_CHUNK * per_warp))
    device.launch(
        kernel,
        n_tokens,
        32 * n_warps,
        x,
        *_pointers(weight, update, update_scale, post_weight),
        *_pointers(*(rounded or (None, None, None))),
        *_pointers(*(half or (None, None))),
        *_pointers(floats),
        np.int32(n_columns),
        np.float32(eps),
    )


def gated_kernel(activation: str | None, *, half: bool) -> Kernel:
    """The instance for "silu", "gelu" or plain values (None), to half floats or to the other forms."""
    name = "gated_half" if half else "gated"
    return Kernel.of(f"{name}.cu", name, ACTIVATION=_ACTIVATIONS[activation] if activation else "NONE")


def gated(
    device: Device,
    gate_up: Array,
    activation: str,
    *,
    scale: Array | None = None,
    rounded: Rounded | None = None,
    half: Half | None = None,
    floats: Array | None = None,
) -> None:
    """activation(gate) * up of rows gate_up [T, 2F] float32, gate first, in each of the forms that are given.

    `activation` is "silu" or "gelu"; `scale` [T] multiplies gate and up first.
    """
    _gate(device, gate_up, gate_up.shape[1] // 2, activation, scale, rounded, half, floats)


def round_rows(device: Device, x: Array, *, rounded: Rounded | None = None, half: Half | None = None) -> None:
    """x [T, K] float32 in each of the forms that are given."""
    _gate(device, x, x.shape[1], None, None, rounded, half, None)


def _gate(
    device: Device,
    rows: Array,
    n_columns: int,
    activation: str | None,
    scale: Array | None,
    rounded: Rounded | None,
    half: Half | None,
    floats: Array | None,
) -> None:
    if n_columns % 4:
        raise ValueError(f"rows of {n_columns}: a multiple of 4 is needed")
    n_tokens, n_chunks = rows.shape[0], -(-n_columns // _CHUNK)
    if rounded is not None or floats is not None:
        device.launch(
            gated_kernel(activation, half=False),
            (-(-n_chunks // _GATED_WARPS), n_tokens),
            32 * _GATED_WARPS,
            rows,
            *_pointers(scale, *(rounded or (None, None, None)), floats),
            np.int32(n_columns),
        )
    if half is not None:
        device.launch(
            gated_kernel(activation, half=True),
            n_tokens,
            32 * min(_WARPS, n_chunks),
            rows,
            *_pointers(scale, *half),
            np.int32(n_columns),
        )


def _pointers(*arrays: Array | None) -> list[Array | np.generic]:
    return [_NULL if array is None else array for array in arrays]
