"""A pass of many tokens on the GPU: each matrix is expanded, a piece at a time, and multiplied by cuBLAS.

Knows the order of the kernels in a block, and nothing of how blocks get here; what a block computes is said
in `numpy_backend`. Activations are half floats in the fast precision, every row scaled by a power of two that
the kernel behind the product takes out again, and float32 in the exact one.

Letters: T tokens, D hidden size, F inner size of the feed-forward layer, K columns of a matrix.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from engine.backends.base import TokenIds
from engine.backends.cuda_attention import Attention, DeviceKV
from engine.backends.cuda_parts import Part, in_one_piece
from engine.backends.cuda_weights import (
    ACTIVATIONS,
    BlockMatrices,
    DeviceWeights,
    LayerVectors,
    Projection,
    block_specs,
)
from engine.cancel import CancelToken
from engine.config import Precision
from engine.errors import CancelledError
from engine.model_config import ModelConfig
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.weights import ModelWeights
from kernels.cuda.crossing import from_host, to_host
from kernels.cuda.device import Array, Device, Event
from kernels.cuda.matrices import dequantize, embedding
from kernels.cuda.norms import Half, add_norm, gated

EXPANDED_BYTES = 112 << 20
"""Of a matrix that is expanded at a time: the largest of an 8B model, in half floats, is one piece."""
_ALIGNED_ROWS = 128
_LAYERS_AHEAD = 2
"""That the host may be ahead of the GPU: so many still run after a cancel."""


class Rows(NamedTuple):
    """Input of products, a row for each token."""

    values: Array
    """[T, K] f16 in the fast precision, else f32."""
    scale: Array | None
    """[T] f32: what a row's products are to be multiplied with; None is 1."""

    @property
    def half(self) -> Half | None:
        """As half floats with a scale."""
        return None if self.scale is None else Half(self.values, self.scale)

    @property
    def floats(self) -> Array | None:
        """As float32."""
        return self.values if self.scale is None else None


class _Part(NamedTuple):
    """Some rows of a matrix."""

    first_row: int
    n_rows: int


class _Update(NamedTuple):
    """What the next norm first adds to the hidden states."""

    values: Array
    """[T, D] f32"""
    scale: Array | None
    post_norm: Array | None
    """What it is normed with before."""


class Prompt:
    """Passes of up to `chunk` tokens through one model."""

    def __init__(
        self,
        device: Device,
        source: ModelWeights,
        weights: DeviceWeights,
        config: ModelConfig,
        precision: Precision,
        attention: Attention,
        chunk: int,
    ) -> None:
        """Reserve memory, which does not depend on what `weights` holds."""
        c = config
        self._device, self._weights, self._config, self._attention = device, weights, config, attention
        halves = precision is Precision.FAST
        kind = np.dtype(np.float16 if halves else np.float32)
        specs = [
            spec for number in range(2 * c.n_layers) for part in block_specs(source, number) for spec in part
        ]
        self._shapes = sorted({(spec.n_rows, spec.n_columns) for spec in specs})
        """Of all matrices that are multiplied."""
        largest = max(n_rows * n_columns for n_rows, n_columns in self._shapes)
        widest = max(n_columns for _, n_columns in self._shapes)
        longest = max((c.n_heads + 2 * c.n_kv_heads) * c.head_dim, 2 * c.ffn_size, c.hidden_size)
        expanded = min(largest, max(widest, EXPANDED_BYTES // kind.itemsize))
        self.memory, arrays = in_one_piece(
            device,
            [
                Part((chunk, c.hidden_size), np.float32),
                Part((chunk * longest,), np.float32),
                Part((chunk * widest,), kind),
                Part((max(expanded, chunk * c.n_heads * c.head_dim),), kind),
            ],
        )
        """What passes compute in but for small arrays, which would cost a page of the driver's here.

        Whoever uses it between two passes leaves it undefined, and what a pass has left in `x` is gone then.
        """
        self._x, self._wide, self._rows, self._expanded = arrays
        # Wide: query, key and value, or gate and up, and then the block's update, for which they are done
        # with. Rows: the input of the product that is next. Expanded: rows of a matrix, and between the
        # products of attention its queries.
        self._scales = device.empty((2, chunk), np.float32) if halves else None
        """Of norms and of what gating gives: its kernel reads one and writes the other."""
        self._ids = device.empty(chunk, np.int32)
        self._host_ids = device.pinned(4 * chunk).view(np.int32)
        self._ids_copied: Event | None = None

    @property
    def x(self) -> Array:
        """[chunk, D] f32: hidden states between runs of blocks, and after the last one."""
        return self._x

    def run(self, token_ids: TokenIds, kv: DeviceKV, cancel: CancelToken, skip: SkipSet = NOTHING) -> Array:
        """Run ids from the position in the state on through all layers -> hidden states [T, D] f32.

        They hold until the next call. Raises CancelledError. Embedding and blocks, but for those left out,
        are all on the GPU.
        """
        self.embed(token_ids)
        x, blocks = self._x[: len(token_ids)], self._weights.blocks
        update: _Update | None = None
        running: deque[Event] = deque()
        for layer in range(self._config.n_layers):
            if cancel.cancelled:
                raise CancelledError("stopped")
            for number in (2 * layer, 2 * layer + 1):
                if number not in skip:
                    update = self._block(blocks[number], x, update, kv)
            running.append(self._device.record())
            if len(running) > _LAYERS_AHEAD:
                running.popleft().wait()
        if update is not None:  # None where every block is left out
            self._add(x, update, None, None)
        return x

    def embed(self, token_ids: TokenIds) -> None:
        """Look ids up, into the first rows of `x`; the embedding is on the GPU."""
        n_tokens, table = len(token_ids), self._weights.embedding
        assert table is not None, "who has no embedding on the GPU looks ids up elsewhere"
        if self._ids_copied is not None:
            self._ids_copied.wait()
        self._host_ids[:n_tokens] = token_ids
        self._device.copy_async(self._ids[:n_tokens], self._host_ids[:n_tokens])
        self._ids_copied = self._device.record()
        scale = self._config.embedding_scale
        embedding(self._device, self._ids[:n_tokens], table.matrix, scale, self._x[:n_tokens])

    def run_blocks(self, blocks: Sequence[BlockMatrices], n_tokens: int, kv: DeviceKV) -> None:
        """Run blocks that follow each other over the first rows of `x`; the first position is in the state.

        Returns at once.
        """
        x = self._x[:n_tokens]
        update: _Update | None = None
        for block in blocks:
            update = self._block(block, x, update, kv)
        self._add(x, update, None, None)

    def arrive(self, address: np.uint64, n_tokens: int) -> None:
        """Read the first rows of `x` from `Device.host_address` of [T, D] f32."""
        from_host(self._device, address, self._x[:n_tokens])

    def leave(self, address: np.uint64, n_tokens: int) -> None:
        """Write them to it."""
        to_host(self._device, self._x[:n_tokens], address)

    def warm_up(self) -> None:
        """Multiply once with matrices of every shape, whatever is in memory: cuBLAS loads its kernels."""
        chunk = self._x.shape[0]
        shapes = {
            (part.n_rows, n_columns)
            for n_rows, n_columns in self._shapes
            for part in self._parts(n_rows, n_columns)
        }
        for n_rows, n_columns in sorted(shapes):
            out = self._wide[: chunk * n_rows].reshape(chunk, n_rows)
            expanded = self._expanded[: n_rows * n_columns].reshape(n_rows, n_columns)
            self._matmul(self._values(chunk, n_columns), expanded, out)

    def _block(self, block: BlockMatrices, x: Array, update: _Update | None, kv: DeviceKV) -> _Update:
        """One block -> its update, which the next norm adds to x; the norm here adds the one before it."""
        vectors = self._weights.vectors.layers[block.layer]
        if block.is_attention:
            return self._attend(block, vectors, x, update, kv)
        return self._feed_forward(block, vectors, x, update)

    def _attend(
        self, block: BlockMatrices, vectors: LayerVectors, x: Array, update: _Update | None, kv: DeviceKV
    ) -> _Update:
        normed = self._norm(x, update, vectors.attn_norm)
        qkv = self._project(block.first, normed)
        c = self._config
        mixed = Rows(self._values(qkv.shape[0], c.n_heads * c.head_dim), None)
        memory = self._expanded  # nothing is in it between two products
        self._attention.prompt(block.layer, vectors, qkv, normed.scale, kv, memory, mixed.values)
        return self._updated(block.second, mixed, vectors.post_attention_norm)

    def _feed_forward(
        self, block: BlockMatrices, vectors: LayerVectors, x: Array, update: _Update | None
    ) -> _Update:
        normed = self._norm(x, update, vectors.ffn_norm)
        gate_up = self._project(block.first, normed)
        inner = self._input(1, gate_up.shape[0], self._config.ffn_size)
        activation = ACTIVATIONS[self._config.activation]
        gated(self._device, gate_up, activation, scale=normed.scale, half=inner.half, floats=inner.floats)
        return self._updated(block.second, inner, vectors.post_ffw_norm)

    def _norm(self, x: Array, update: _Update | None, weight: Array) -> Rows:
        normed = self._input(0, *x.shape)
        self._add(x, update, weight, normed)
        return normed

    def _updated(self, projection: Projection, x: Rows, post_norm: Array | None) -> _Update:
        return _Update(self._project(projection, x), x.scale, post_norm)

    def _add(self, x: Array, update: _Update | None, weight: Array | None, normed: Rows | None) -> None:
        """Add the update to x, and write its norm where one is wanted."""
        add_norm(
            self._device,
            x,
            weight,
            self._config.rms_eps,
            update=None if update is None else update.values,
            update_scale=None if update is None else update.scale,
            post_weight=None if update is None else update.post_norm,
            half=None if normed is None else normed.half,
            floats=None if normed is None else normed.floats,
        )

    def _input(self, which: int, n_tokens: int, n_columns: int) -> Rows:
        """Memory for the input of the next product, with the first or the second scale."""
        scale = None if self._scales is None else self._scales[which][:n_tokens]
        return Rows(self._values(n_tokens, n_columns), scale)

    def _values(self, n_tokens: int, n_columns: int) -> Array:
        return self._rows[: n_tokens * n_columns].reshape(n_tokens, n_columns)

    def _project(self, projection: Projection, x: Rows) -> Array:
        """x [T, K] times every matrix -> [T, rows of all], to be multiplied with the scale of x.

        In memory that the next product uses again.
        """
        n_tokens, column = x.values.shape[0], 0
        out = self._wide[: n_tokens * projection.n_rows].reshape(n_tokens, projection.n_rows)
        for matrix in projection.matrices:
            for first_row, n_rows in self._parts(matrix.n_rows, matrix.n_columns):
                expanded = self._expanded[: n_rows * matrix.n_columns].reshape(n_rows, matrix.n_columns)
                dequantize(self._device, matrix, first_row, n_rows, expanded)
                self._matmul(x.values, expanded, out[:, column : column + n_rows])
                column += n_rows
        return out

    def _parts(self, n_rows: int, n_columns: int) -> Iterator[_Part]:
        """Cut the rows of a matrix into what is expanded at a time."""
        most = self._expanded.shape[0] // n_columns
        if most < n_rows:  # cuBLAS is several times slower where a part of the output is not aligned
            most = max(1, most // _ALIGNED_ROWS * _ALIGNED_ROWS)
        for first in range(0, n_rows, most):
            yield _Part(first, min(most, n_rows - first))

    def _matmul(self, x: Array, expanded: Array, out: Array) -> None:
        multiply = self._device.matmul_float if self._scales is None else self._device.matmul_half
        multiply(x, expanded, out, accumulate=False)
