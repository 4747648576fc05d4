"""Attention on the device: rotation, new keys and values, then a decode step's or a prompt's attention.

Knows where keys and values lie, and picks the instance of each kernel; does not know models or text. The
position is read from the step state on the device: a captured graph serves all. Letters: T tokens, H query
heads, KV heads of keys and of values, E head dim, S positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from kernels.cuda.device import Array, Device, Kernel
from kernels.cuda.norms import Rounded, round_rows

MOST_STEP_TOKENS = 8
"""Tokens that `attend_step` takes at most."""

_NULL = np.uint64(0)
_TILE = 16
_ROUNDING = 64
"""Positions are reserved in whole runs: the most that a kernel copies at a time."""
_APPEND_WARPS = 4
_FLOAT_THREADS = 128
_STEP_WARPS = 4
_STEP_ROWS = 8
"""Of a block of `attend_step`: query heads that share a KV head, times tokens."""
_MOST_SHARES = 128
"""Of one KV head's positions: one block merges them."""


class KVType(Enum):
    """How keys and values are kept."""

    F16 = "f16"
    Q8_0 = "q8_0"
    """8 bits each, and a half float for each position and 32 dims."""
    F32 = "f32"
    """For float precision."""


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Sizes of a cache, known before it is allocated; attention.cuh has the order of its elements."""

    kv_type: KVType
    n_layers: int
    n_kv_heads: int
    head_dim: int
    """A multiple of 16, up to 256."""
    max_context: int
    """Positions it has room for."""

    def __post_init__(self) -> None:
        """Raise ValueError for heads that the kernels cannot take."""
        if self.head_dim % 16 or not 0 < self.head_dim <= 256:
            raise ValueError(f"heads of {self.head_dim} elements: a multiple of 16 up to 256 is needed")

    @property
    def tile_bytes(self) -> int:
        """Bytes of the keys, or of the values, of 16 positions of a head."""
        elements = _TILE * self.head_dim
        if self.kv_type is KVType.Q8_0:
            return elements + _TILE * 2 * -(-self.head_dim // 32)
        return elements * (2 if self.kv_type is KVType.F16 else 4)

    @property
    def head_bytes(self) -> int:
        """Bytes of the keys, or of the values, of a head."""
        return -(-self.max_context // _ROUNDING) * (_ROUNDING // _TILE) * self.tile_bytes

    @property
    def layer_bytes(self) -> int:
        """Bytes of the keys, or of the values, of a layer."""
        return self.n_kv_heads * self.head_bytes

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole cache."""
        return 2 * self.n_layers * self.layer_bytes


class KVMemory(NamedTuple):
    """Keys and values of every layer."""

    layout: KVLayout
    keys: Array
    """[layers, layer_bytes] uint8."""
    values: Array
    """The same."""


def kv_memory(device: Device, layout: KVLayout) -> KVMemory:
    """Room for keys and values, zero. Raises DeviceMemoryError."""
    shape = (layout.n_layers, layout.layer_bytes)
    return KVMemory(layout, device.zeros(shape, np.uint8), device.zeros(shape, np.uint8))


def queries(device: Device, layout: KVLayout, n_tokens: int, n_heads: int) -> Array:
    """Room for queries [T, H, E] between `append` and attention. Raises DeviceMemoryError."""
    dtype = np.float32 if layout.kv_type is KVType.F32 else np.float16
    return device.empty((n_tokens, n_heads, layout.head_dim), dtype)


class Rotation(NamedTuple):
    """A rotary embedding."""

    cosines: Array
    """[S, pairs] float32."""
    sines: Array
    neox: bool
    """Whether a pair is elements i and i + pairs, rather than 2i and 2i + 1."""


class HeadNorms(NamedTuple):
    """RMSNorm over each head of queries and keys, before they are turned."""

    query_weight: Array
    """[E] float32."""
    key_weight: Array
    eps: float


def append(
    device: Device,
    qkv: Array,
    q: Array,
    kv: KVMemory,
    layer: int,
    state: Array,
    rotation: Rotation,
    query_scale: float,
    *,
    row_scale: Array | None = None,
    norms: HeadNorms | None = None,
) -> None:
    """Norm and turn queries and keys, put keys and values into the cache at position state[0] onwards.

    qkv [T, (H + 2 KV) * E] float32 is the product's output, multiplied by row_scale [T] if given. q [T, H, E]
    receives the queries, times query_scale, for the attention that follows. Only the fast precisions put
    log2(e) into them: their kernels compute powers of 2.
    """
    layout, (n_tokens, n_heads, _) = kv.layout, q.shape
    if n_tokens != qkv.shape[0] or n_heads != _query_heads(qkv, layout):
        raise ValueError(f"{qkv.shape} are not the heads of {q.shape} and of {layout.n_kv_heads} KV heads")
    sizes = {"HEADS": n_heads, "KV_HEADS": layout.n_kv_heads}
    base_2 = 1.0 if layout.kv_type is KVType.F32 else math.log2(math.e)
    device.launch(
        _kernel("rope", layout, **sizes, **_turning(rotation, norms)),
        (-(-(n_heads + 2 * layout.n_kv_heads) // _APPEND_WARPS), n_tokens),
        32 * _APPEND_WARPS,
        qkv,
        _NULL if row_scale is None else row_scale,
        *_norm_weights(norms),
        rotation.cosines,
        rotation.sines,
        state,
        np.float32(query_scale * base_2),
        q,
        *_layer(kv, layer),
    )


class _StepInstance(NamedTuple):
    """How `attend_step` is launched for one number of tokens."""

    defines: dict[str, int]
    grid: tuple[int, int, int]
    """Row tiles, KV heads, shares of the positions."""


class StepScratch(NamedTuple):
    """What blocks of `attend_step` hand to one another; serves one launch at a time."""

    partials: Array
    sums: Array
    counters: Array
    """Zero between launches."""
    floats: Array
    """[8, H * E] float32: the output where it cannot be rounded at once."""


def step_scratch(device: Device, layout: KVLayout, n_heads: int) -> StepScratch:
    """Scratch for up to 8 tokens, shared by all layers. Raises DeviceMemoryError."""
    instances = [
        _step_instance(device, layout, n_heads, n_tokens) for n_tokens in range(1, MOST_STEP_TOKENS + 1)
    ]
    n_rows = max(math.prod(instance.grid) * _STEP_ROWS for instance in instances)
    return StepScratch(
        device.empty((n_rows, layout.head_dim), np.float32),
        device.empty((n_rows, 2), np.float32),
        device.zeros(max(math.prod(instance.grid[:2]) for instance in instances), np.uint32),
        device.empty((MOST_STEP_TOKENS, n_heads * layout.head_dim), np.float32),
    )


def attend_step(
    device: Device,
    qkv: Array,
    kv: KVMemory,
    layer: int,
    state: Array,
    scratch: StepScratch,
    rotation: Rotation,
    query_scale: float,
    *,
    norms: HeadNorms | None = None,
    window: int = 0,
    rounded: Rounded | None = None,
    floats: Array | None = None,
) -> None:
    """`append` and attention in one, for up to 8 tokens of the fast precisions.

    A query sees `window` positions, its own included; all up to its own where that is 0. The output,
    [T, H * E], is rounded, or float32, or both.
    """
    layout, n_tokens = kv.layout, qkv.shape[0]
    n_heads = _query_heads(qkv, layout)
    instance = _step_instance(device, layout, n_heads, n_tokens)
    # A chunk of 128 must not lie in two KV heads: different blocks compute them.
    straddling = rounded is not None and n_heads // layout.n_kv_heads * layout.head_dim % 128 != 0
    if straddling and floats is None:
        floats = scratch.floats[:n_tokens]
    device.launch(
        _kernel("attention_step", layout, **instance.defines, **_turning(rotation, norms)),
        instance.grid,
        32 * _STEP_WARPS,
        qkv,
        *_norm_weights(norms),
        rotation.cosines,
        rotation.sines,
        np.float32(query_scale * math.log2(math.e)),
        *_layer(kv, layer),
        state,
        np.int32(n_tokens),
        np.int32(window),
        scratch.partials,
        scratch.sums,
        scratch.counters,
        *((_NULL, _NULL, _NULL) if rounded is None or straddling else rounded),
        _NULL if floats is None else floats,
    )
    if straddling:
        assert floats is not None
        round_rows(device, floats, rounded=rounded)


def attend_prompt(
    device: Device,
    q: Array,
    kv: KVMemory,
    layer: int,
    state: Array,
    *,
    window: int = 0,
    halves: Array | None = None,
    floats: Array | None = None,
) -> None:
    """Attention of queries [T, H, E] of `append`, any number of tokens, at position state[0] onwards.

    A query sees `window` positions, its own included; all up to its own where that is 0. The output,
    [T, H * E], is float16, or float32, or both. float16 needs no scale: outputs lie between the extremes of
    the values, which are float16 in the cache.
    """
    layout, (n_tokens, n_heads, _) = kv.layout, q.shape
    group = n_heads // layout.n_kv_heads
    n_warps, n_keys = (8, 64) if layout.head_dim <= 128 else (4, 32)
    device.launch(
        _kernel("attention_prompt", layout, GROUP=group, WARPS=n_warps, KEYS=n_keys),
        (layout.n_kv_heads, -(-n_tokens * group // (16 * n_warps))),
        32 * n_warps,
        q,
        *_layer(kv, layer),
        state,
        np.int32(n_tokens),
        np.int32(window),
        _NULL if halves is None else halves,
        _NULL if floats is None else floats,
        shared_bytes=_prompt_shared_bytes(layout, n_warps, n_keys),
    )


def attend_float(
    device: Device, q: Array, kv: KVMemory, layer: int, state: Array, out: Array, *, window: int = 0
) -> None:
    """The same in float precision, any number of tokens, to out [T, H * E] float32."""
    layout, (n_tokens, n_heads, _) = kv.layout, q.shape
    device.launch(
        _kernel("attention_float", layout, GROUP=n_heads // layout.n_kv_heads),
        (n_heads, n_tokens),
        _FLOAT_THREADS,
        q,
        *_layer(kv, layer),
        state,
        np.int32(window),
        out,
    )


def _kernel(name: str, layout: KVLayout, **defines: int) -> Kernel:
    kv_type = f"KV_{layout.kv_type.name}"
    return Kernel.of(f"{name}.cu", name, KV_TYPE=kv_type, HEAD_DIM=layout.head_dim, **defines)


def _query_heads(qkv: Array, layout: KVLayout) -> int:
    """H of rows of (H + 2 KV) * E."""
    return qkv.shape[1] // layout.head_dim - 2 * layout.n_kv_heads


def _turning(rotation: Rotation, norms: HeadNorms | None) -> dict[str, int]:
    """The macros of rope.cuh."""
    rope_dim = 2 * rotation.cosines.shape[1]
    return {"ROPE_DIM": rope_dim, "NEOX": int(rotation.neox), "NORMS": int(norms is not None)}


def _norm_weights(norms: HeadNorms | None) -> tuple[Array | np.uint64, Array | np.uint64, np.float32]:
    if norms is None:
        return _NULL, _NULL, np.float32(0.0)
    return norms.query_weight, norms.key_weight, np.float32(norms.eps)


def _layer(kv: KVMemory, layer: int) -> tuple[Array, Array, np.uint64]:
    return kv.keys[layer], kv.values[layer], np.uint64(kv.layout.head_bytes)


def _step_instance(device: Device, layout: KVLayout, n_heads: int, n_tokens: int) -> _StepInstance:
    if not 0 < n_tokens <= MOST_STEP_TOKENS:
        raise ValueError(f"{n_tokens} tokens: 1 to {MOST_STEP_TOKENS} are one step")
    group = n_heads // layout.n_kv_heads
    # What fits the registers without spilling. Only the widest memory needs all that can be on its way.
    codes, newest = layout.kv_type is KVType.Q8_0, device.compute_capability >= 100
    step = 32 if layout.head_dim <= (128 if codes and not newest else 64) else 16
    blocks = 3 if layout.head_dim * step <= 2048 and not (codes and newest) else 2
    defines = {"GROUP": group, "WARPS": _STEP_WARPS, "STEP": step, "BLOCKS": blocks}
    n_row_tiles = -(-n_tokens * group // _STEP_ROWS)
    n_steps = -(-layout.max_context // step)
    n_shares = min(
        _MOST_SHARES,
        device.n_processors * blocks // (n_row_tiles * layout.n_kv_heads),
        -(-n_steps // _STEP_WARPS),
    )
    return _StepInstance(defines, (n_row_tiles, layout.n_kv_heads, max(1, n_shares)))


def _prompt_shared_bytes(layout: KVLayout, n_warps: int, n_keys: int) -> int:
    """As attention_prompt.cu cuts it up."""
    n_tiles, groups = n_keys // _TILE, -(-layout.head_dim // 32)
    n_bytes = 4 * n_tiles * layout.tile_bytes
    if layout.kv_type is KVType.Q8_0:
        n_bytes += 2 * n_tiles * _TILE * layout.head_dim * 2
    return n_bytes + (n_warps * 2 * groups * 512 if layout.head_dim > 128 else 0)
