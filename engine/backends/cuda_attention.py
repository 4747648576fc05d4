"""Attention of a model on the GPU: the cache, the rotations, and which kernels a layer takes.

Knows windows, rotations and norms of each layer; how keys and values lie is the business of
kernels/cuda/attention.py. Called by `cuda_step` and `cuda_prompt`, with what the product of query, key and
value gave.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from engine.architectures import RopePairing
from engine.backends.cuda_weights import LayerVectors
from engine.config import KVType, Precision
from engine.model_config import ModelConfig, RopeConfig
from engine.rope import rope_tables
from kernels.cuda import attention
from kernels.cuda.attention import HeadNorms, KVLayout, Rotation
from kernels.cuda.device import Array, Device
from kernels.cuda.norms import Rounded
from kernels.cuda.sampling import MOST_IDS

_ANGLES_FOR = 1 << 14
"""Positions of which the host computes the angles at a time."""


class DeviceKV:
    """`KVCache` on a GPU of some layers, and what attention to it takes beside it; `fill` it before use."""

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        layout: KVLayout,
        layers: Sequence[int],
    ) -> None:
        """Reserve memory of these layers. Raises DeviceMemoryError."""
        self.rows = {layer: row for row, layer in enumerate(layers)}
        """Where in the cache each layer is."""
        self.max_context = layout.max_context
        self.n_bytes = layout.n_bytes
        self.memory = attention.kv_memory(device, layout)
        self.queries = attention.queries(device, layout, MOST_IDS, config.n_heads)
        """Of a step."""
        self.scratch = attention.step_scratch(device, layout, config.n_heads)
        self._ropes = tuple(dict.fromkeys((config.rope, config.local_rope)))
        self._rotations = tuple(_reserve(device, rope, layout.max_context) for rope in self._ropes)
        self.rotation, self.local_rotation = self._rotations[0], self._rotations[-1]

    def fill(self, device: Device) -> None:
        """Write the rotations, which are undefined before, and take little of the host's memory for it."""
        for rope, rotation in zip(self._ropes, self._rotations, strict=True):
            n_positions, n_pairs = rotation.cosines.shape
            host = device.pinned(2 * _ANGLES_FOR * n_pairs * 4).view(np.float32).reshape(2, -1, n_pairs)
            for first in range(0, n_positions, _ANGLES_FOR):
                n_rows = min(_ANGLES_FOR, n_positions - first)
                host[:, :n_rows] = rope_tables(rope, first, n_rows)
                device.copy_async(rotation.cosines[first : first + n_rows], host[0, :n_rows])
                device.copy_async(rotation.sines[first : first + n_rows], host[1, :n_rows])
                device.synchronize()


class Attention:
    """Attention of the layers of one model that have their keys and values on the GPU."""

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        precision: Precision,
        kv_type: KVType,
        state: Array,
        layers: Sequence[int],
    ) -> None:
        """Of these layers; `state` is as in kernels/cuda/sampling.py."""
        self._device, self._config, self._state = device, config, state
        self._layers = layers
        self._floats = precision is Precision.FLOAT
        self._kv_type = attention.KVType.F32 if self._floats else attention.KVType[kv_type.name]

    def on(self, device: Device) -> Attention:
        """The same, launching on another device."""
        other = copy(self)
        other._device = device
        return other

    def new_kv(self, max_context: int) -> DeviceKV:
        """Reserve a cache. Raises DeviceMemoryError, and ValueError for heads that no kernel takes."""
        c = self._config
        layout = KVLayout(self._kv_type, len(self._layers), c.n_kv_heads, c.head_dim, max_context)
        return DeviceKV(self._device, c, layout, self._layers)

    def step(
        self,
        index: int,
        layer: LayerVectors,
        qkv: Array,
        kv: DeviceKV,
        *,
        rounded: Rounded | None,
        floats: Array | None,
    ) -> None:
        """Attention of up to 8 tokens: qkv [T, (H + 2 KV) * E] f32 -> [T, H * E] in the forms given."""
        if self._floats:
            q = kv.queries[: qkv.shape[0]]
            self._append(index, layer, qkv, None, kv, q)
            self._attend_float(index, q, kv, floats)
            return
        attention.attend_step(
            self._device,
            qkv,
            kv.memory,
            kv.rows[index],
            self._state,
            kv.scratch,
            self._rotation(index, kv),
            self._config.query_scale,
            norms=self._norms(layer),
            window=self._config.window(index),
            rounded=rounded,
            floats=floats,
        )

    def prompt(
        self,
        index: int,
        layer: LayerVectors,
        qkv: Array,
        scale: Array | None,
        kv: DeviceKV,
        memory: Array,
        out: Array,
    ) -> None:
        """The same for many tokens: qkv times scale [T] -> out [T, H * E], f16 in the fast precision.

        `memory` is for the queries, as large as `out` and of its type at least.
        """
        n_tokens, c = qkv.shape[0], self._config
        q = memory[: n_tokens * c.n_heads * c.head_dim].reshape(n_tokens, c.n_heads, c.head_dim)
        self._append(index, layer, qkv, scale, kv, q)
        if self._floats:
            self._attend_float(index, q, kv, out)
            return
        window = self._config.window(index)
        row = kv.rows[index]
        attention.attend_prompt(self._device, q, kv.memory, row, self._state, window=window, halves=out)

    def _append(
        self, index: int, layer: LayerVectors, qkv: Array, scale: Array | None, kv: DeviceKV, q: Array
    ) -> None:
        """Put keys and values into the cache, and queries into `q`."""
        attention.append(
            self._device,
            qkv,
            q,
            kv.memory,
            kv.rows[index],
            self._state,
            self._rotation(index, kv),
            self._config.query_scale,
            row_scale=scale,
            norms=self._norms(layer),
        )

    def _rotation(self, index: int, kv: DeviceKV) -> Rotation:
        return kv.local_rotation if self._config.windowed[index] else kv.rotation

    def _norms(self, layer: LayerVectors) -> HeadNorms | None:
        if layer.attn_q_norm is None or layer.attn_k_norm is None:
            return None
        return HeadNorms(layer.attn_q_norm, layer.attn_k_norm, self._config.rms_eps)

    def _attend_float(self, index: int, q: Array, kv: DeviceKV, out: Array | None) -> None:
        assert out is not None, "in float precision all input of products is floats"
        row, window = kv.rows[index], self._config.window(index)
        attention.attend_float(self._device, q, kv.memory, row, self._state, out, window=window)


def _reserve(device: Device, rope: RopeConfig, n_positions: int) -> Rotation:
    shape = n_positions, rope.dim // 2
    neox = rope.pairing is RopePairing.NEOX
    return Rotation(device.empty(shape, np.float32), device.empty(shape, np.float32), neox)
