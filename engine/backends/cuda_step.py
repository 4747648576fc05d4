"""A pass of one to eight tokens on the GPU: products with the weights as they lie, one graph for each size.

Knows the order of the kernels in a layer, and in which form each product wants its input; does not know where
ids come from or what is done with logits. Position and ids are in device memory, so that one graph serves
every step of its size. What a layer computes is said in `numpy_backend`.

Letters: T tokens, D hidden size, F inner size of the feed-forward layer, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import numpy as np

from engine.backends.cuda_attention import Attention, DeviceKV
from engine.backends.cuda_weights import ACTIVATIONS, DeviceWeights, LayerWeights, Projection
from engine.config import Precision
from engine.model_config import ModelConfig
from kernels.cuda.device import Array, Device, Graph
from kernels.cuda.launch_settings import LaunchSettings
from kernels.cuda.matrices import DeviceMatrix, embedding
from kernels.cuda.norms import Rounded, add_norm, gated, round_rows, rounded
from kernels.cuda.products import multiply, multiply_gated
from kernels.cuda.sampling import MOST_IDS
from kernels.cuda.sketch import Launch, Sketch


class Input(NamedTuple):
    """Input of products, a row for each token, in the forms that any of their matrices wants."""

    rounded: Rounded | None
    """For quantised matrices in the fast precision."""
    floats: Array | None
    """f32, for all others."""

    def rows(self, n_tokens: int) -> Input:
        """The first rows."""
        return Input(
            None if self.rounded is None else self.rounded.rows(0, n_tokens),
            None if self.floats is None else self.floats[:n_tokens],
        )

    def only(self, *, rounded: bool, floats: bool) -> Input:
        """Some of the forms."""
        return Input(self.rounded if rounded else None, self.floats if floats else None)


class Step:
    """Passes of up to eight tokens through one model, and its head for anybody's hidden states."""

    def __init__(
        self,
        device: Device,
        weights: DeviceWeights,
        config: ModelConfig,
        precision: Precision,
        attention: Attention,
        state: Array,
        settings: LaunchSettings,
    ) -> None:
        """Reserve memory. `state` is as in kernels/cuda/sampling.py."""
        c, layers = config, weights.layers
        self._device, self._weights, self._config = device, weights, config
        self._rounds = precision is Precision.FAST
        self._attention, self._state, self._settings = attention, state, settings
        by_norms = [each for layer in layers for each in (layer.qkv, layer.gate_up)]
        self._rows = _Rows(
            x=device.empty((MOST_IDS, c.hidden_size), np.float32),
            update=device.empty((MOST_IDS, c.hidden_size), np.float32),
            qkv=device.empty((MOST_IDS, layers[0].qkv.n_rows), np.float32),
            gate_up=device.empty((MOST_IDS, 2 * c.ffn_size), np.float32),
            inner=device.empty((MOST_IDS, c.ffn_size), np.float32),
            logits=device.empty((MOST_IDS, c.vocab_size), np.float32),
            normed=self._room([*by_norms, weights.head], c.hidden_size),
            mixed=self._room([layer.attn_output for layer in layers], c.n_heads * c.head_dim),
            gated=self._room([layer.ffn_down for layer in layers], c.ffn_size),
        )
        self._graphs: dict[int, Graph] = {}
        self._kv: DeviceKV | None = None
        """The cache that the graphs use."""

    @property
    def logits(self) -> Array:
        """[8, V] f32: the first rows are of the last pass, or of the last call of `head`."""
        return self._rows.logits

    def run(self, n_tokens: int, kv: DeviceKV) -> None:
        """Run the tokens in the state through all layers and the head, into `logits`."""
        self.prepare(n_tokens, kv)
        self._graphs[n_tokens].launch()

    def prepare(self, n_tokens: int, kv: DeviceKV) -> None:
        """Capture the graph of such passes, unless it is there."""
        if kv is not self._kv:
            self._graphs.clear()
            self._kv = kv
        if n_tokens not in self._graphs:
            self._graphs[n_tokens] = self._device.capture(lambda: self._pass(n_tokens, kv))

    def head(self, x: Array) -> None:
        """Final norm and output projection of x [T, D], T up to 8, into `logits`; x is left alone."""
        self._head(x, self._rows.first(x.shape[0]), None)

    def launches(self, n_tokens: int, kv: DeviceKV) -> list[Launch]:
        """What a pass of so many tokens consists of, one by one."""
        noted, other = Sketch(self._device), copy(self)
        other._device, other._attention = noted, self._attention.on(noted)
        other._pass(n_tokens, kv)
        return noted.launches

    # -- one pass

    def _pass(self, n_tokens: int, kv: DeviceKV) -> None:
        rows, weights = self._rows.first(n_tokens), self._weights
        embedding(
            self._device,
            self._state[1 : 1 + n_tokens],
            weights.embedding,
            self._config.embedding_scale,
            rows.x,
        )
        post_norm: Array | None = None
        for index, layer in enumerate(weights.layers):
            post_norm = self._attend(index, layer, rows, post_norm, kv)
            post_norm = self._feed_forward(layer, rows, post_norm)
        self._head(rows.x, rows, post_norm)

    def _attend(
        self, index: int, layer: LayerWeights, rows: _Rows, post_norm: Array | None, kv: DeviceKV
    ) -> Array | None:
        normed = self._norm(rows.x, layer.attn_norm, rows, post_norm, layer.qkv)
        self._multiply(layer.qkv, normed, rows.qkv)
        mixed = self._wanted(rows.mixed, layer.attn_output)
        self._attention.step(index, layer, rows.qkv, kv, rounded=mixed.rounded, floats=mixed.floats)
        return self._add(layer.attn_output, mixed, rows, layer.post_attention_norm)

    def _feed_forward(self, layer: LayerWeights, rows: _Rows, post_norm: Array | None) -> Array | None:
        normed = self._norm(rows.x, layer.ffn_norm, rows, post_norm, layer.gate_up)
        gated_rows = self._wanted(rows.gated, layer.ffn_down)
        self._gate(layer.gate_up, normed, rows, gated_rows)
        return self._add(layer.ffn_down, gated_rows, rows, layer.post_ffw_norm)

    def _head(self, x: Array, rows: _Rows, post_norm: Array | None) -> None:
        head = self._weights.head
        normed = self._norm(x, self._weights.output_norm, rows, post_norm, head)
        self._multiply(head, normed, rows.logits)

    def _norm(
        self, x: Array, weight: Array, rows: _Rows, post_norm: Array | None, projection: Projection
    ) -> Input:
        """The norm of x for a projection. With `post_norm` the update is normed by it and added first."""
        normed = self._wanted(rows.normed, projection)
        add_norm(
            self._device,
            x,
            weight,
            self._config.rms_eps,
            update=None if post_norm is None else rows.update,
            post_weight=post_norm,
            rounded=normed.rounded,
            floats=normed.floats,
        )
        return normed

    def _add(self, projection: Projection, x: Input, rows: _Rows, post_norm: Array | None) -> Array | None:
        """Add a projection to the hidden states; where it is normed before, the next `_norm` does both."""
        if post_norm is None:
            self._multiply(projection, x, rows.x, accumulate=True)
        else:
            self._multiply(projection, x, rows.update)
        return post_norm

    def _gate(self, gate_up: Projection, normed: Input, rows: _Rows, out: Input) -> None:
        activation = ACTIVATIONS[self._config.activation]
        if len(gate_up.matrices) > 1:  # of two types
            self._multiply(gate_up, normed, rows.gate_up)
            gated(self._device, rows.gate_up, activation, rounded=out.rounded, floats=out.floats)
            return
        (matrix,) = gate_up.matrices
        inner = rows.inner if out.floats is None else out.floats
        multiply_gated(
            self._device, matrix, self._form(matrix, normed), inner, activation, settings=self._settings
        )
        if out.rounded is not None:
            round_rows(self._device, inner, rounded=out.rounded)

    def _multiply(self, projection: Projection, x: Input, out: Array, *, accumulate: bool = False) -> None:
        column = 0
        for matrix in projection.matrices:
            part = out[:, column : column + matrix.n_rows]
            multiply(
                self._device,
                matrix,
                self._form(matrix, x),
                part,
                accumulate=accumulate,
                settings=self._settings,
            )
            column += matrix.n_rows

    # -- forms of input

    def _room(self, projections: Sequence[Projection], n_columns: int) -> Input:
        """Memory for input of any of them."""
        rounds = any(self._wants(each)[0] for each in projections)
        floats = any(self._wants(each)[1] for each in projections)
        return Input(
            rounded(self._device, MOST_IDS, n_columns) if rounds else None,
            self._device.empty((MOST_IDS, n_columns), np.float32) if floats else None,
        )

    def _wanted(self, room: Input, projection: Projection) -> Input:
        """The forms that this projection wants."""
        rounds, floats = self._wants(projection)
        return room.only(rounded=rounds, floats=floats)

    def _wants(self, projection: Projection) -> tuple[bool, bool]:
        """Whether any of its matrices wants rounded input, and whether any wants floats."""
        wishes = [self._rounds and matrix.is_quantised for matrix in projection.matrices]
        return any(wishes), not all(wishes)

    def _form(self, matrix: DeviceMatrix, x: Input) -> Rounded | Array:
        """The form for one matrix."""
        form = x.rounded if self._rounds and matrix.is_quantised else x.floats
        assert form is not None, "there is room for every form that a matrix wants"
        return form


class _Rows(NamedTuple):
    """Memory of a pass, a row for each token; f32 but for `Input`."""

    x: Array
    """Hidden states."""
    update: Array
    """What is normed before it is added to x."""
    qkv: Array
    gate_up: Array
    """Where gate and up are two matrices."""
    inner: Array
    """[T, F], gated, before it is rounded."""
    logits: Array
    normed: Input
    mixed: Input
    """What attention gives."""
    gated: Input

    def first(self, n_tokens: int) -> _Rows:
        """The rows of so many tokens."""
        return _Rows(
            x=self.x[:n_tokens],
            update=self.update[:n_tokens],
            qkv=self.qkv[:n_tokens],
            gate_up=self.gate_up[:n_tokens],
            inner=self.inner[:n_tokens],
            logits=self.logits[:n_tokens],
            normed=self.normed.rows(n_tokens),
            mixed=self.mixed.rows(n_tokens),
            gated=self.gated.rows(n_tokens),
        )
