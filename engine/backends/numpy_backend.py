"""The model in plain NumPy: the page to read to learn what a layer computes.

Serves where the C kernels could not be built, and is what they are checked against. Activations are always
float32; only the KV cache follows the precision. Slow by design: matrices are expanded a piece at a time.
"""

from __future__ import annotations

import numpy as np

from engine.architectures import Activation, RopePairing
from engine.backends.base import Float32Array, TokenIds
from engine.cancel import CancelToken
from engine.config import DEFAULT_CHUNK, Precision
from engine.errors import CancelledError
from engine.kv_cache import HostKV, allocate_kv
from engine.logits import HostLogits
from engine.model_config import ModelConfig
from engine.rope import rope_tables
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.tiers.store import TieredWeights
from engine.weights import ModelWeights
from kernels import reference


class NumpyBackend:
    """`Backend` over `kernels.reference`."""

    name = "numpy"
    threads = 1
    tiers: TieredWeights | None = None
    """Its weights are mapped from the file."""

    def __init__(
        self,
        weights: ModelWeights,
        config: ModelConfig,
        precision: Precision,
        reason: str = "",
        chunk: int = DEFAULT_CHUNK,
    ) -> None:
        """Compute `config`'s model from `weights`; `reason` says why not something faster."""
        self.reason = reason
        self.chunk = chunk
        self._weights = weights
        self._config = config
        self._precision = precision

    def new_kv(self, max_context: int) -> HostKV:
        """Reserve a cache for this many positions."""
        return allocate_kv(self._config, max_context, self._precision)

    def embed(self, token_ids: TokenIds) -> Float32Array:
        """Look up the ids, [T] -> [T, D], the embedding scale applied."""
        table = self._weights["token_embd.weight"]
        rows = reference.embedding(token_ids, table.data, table.quant_type, table.shape[1])
        return rows * np.float32(self._config.embedding_scale)

    def layers(
        self,
        first: int,
        last: int,
        x: Float32Array,
        start_pos: int,
        kv: HostKV,
        cancel: CancelToken,
        skip: SkipSet = NOTHING,
    ) -> None:
        """Run layers first..last-1 over x [T, D] in place; see `Backend.layers`."""
        for layer in range(first, last):
            if cancel.cancelled:
                raise CancelledError("stopped")
            if 2 * layer not in skip:
                x += self._attention(layer, x, start_pos, kv)
            if 2 * layer + 1 not in skip:
                x += self._feed_forward(layer, x)

    def states(self, x: Float32Array) -> Float32Array:
        """Hidden states [T, D], here already."""
        return x

    def head(self, x: Float32Array, cancel: CancelToken) -> Float32Array:
        """Final norm and output projection, [R, D] -> [R, V]."""
        name = "token_embd.weight" if self._config.tied_head else "output.weight"
        return self._project(name, self._norm("output_norm.weight", x))

    def next_logits(self, x: Float32Array, cancel: CancelToken, ahead: SkipSet | None = None) -> HostLogits:
        """Logits [V] of the last row of x."""
        return HostLogits(self.head(x[-1:], cancel)[0])

    def each_logits(self, x: Float32Array, cancel: CancelToken) -> list[HostLogits]:
        """Logits [V] of every row of x."""
        return [HostLogits(logits) for logits in self.head(x, cancel)]

    def close(self) -> None:
        """Nothing to stop."""

    def _attention(self, layer: int, x: Float32Array, start_pos: int, kv: HostKV) -> Float32Array:
        c, block, end = self._config, f"blk.{layer}.", start_pos + len(x)
        normed = self._norm(block + "attn_norm.weight", x)
        q = self._project(block + "attn_q.weight", normed).reshape(-1, c.n_heads, c.head_dim)
        k = self._project(block + "attn_k.weight", normed).reshape(-1, c.n_kv_heads, c.head_dim)
        v = self._project(block + "attn_v.weight", normed).reshape(-1, c.n_kv_heads, c.head_dim)
        if c.qk_norm:
            q = self._norm(block + "attn_q_norm.weight", q)
            k = self._norm(block + "attn_k_norm.weight", k)
        rope = c.layer_rope(layer)
        cos, sin = rope_tables(rope, start_pos, len(x))
        neox = rope.pairing is RopePairing.NEOX
        q, k = reference.rope(q, cos, sin, neox=neox), reference.rope(k, cos, sin, neox=neox)
        keys, values = kv.keys[layer], kv.values[layer]
        keys[:, start_pos:end] = k.swapaxes(0, 1)
        values[:, start_pos:end] = v.swapaxes(0, 1)
        mixed = reference.attention(
            q, keys[:, :end], values[:, :end], start_pos, c.window(layer), c.query_scale
        )
        out = self._project(block + "attn_output.weight", mixed.reshape(len(x), -1))
        return self._norm(block + "post_attention_norm.weight", out) if c.post_norms else out

    def _feed_forward(self, layer: int, x: Float32Array) -> Float32Array:
        c, block = self._config, f"blk.{layer}."
        normed = self._norm(block + "ffn_norm.weight", x)
        gated = reference.swiglu if c.activation is Activation.SILU else reference.geglu
        inner = gated(
            self._project(block + "ffn_gate.weight", normed), self._project(block + "ffn_up.weight", normed)
        )
        out = self._project(block + "ffn_down.weight", inner)
        return self._norm(block + "post_ffw_norm.weight", out) if c.post_norms else out

    def _norm(self, name: str, x: Float32Array) -> Float32Array:
        return reference.rmsnorm(x, self._weights[name].data.view(np.float32), self._config.rms_eps)

    def _project(self, name: str, x: Float32Array) -> Float32Array:
        weight = self._weights[name]
        return reference.matmul(x, weight.data, weight.quant_type)
