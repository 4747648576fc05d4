"""A pass of one to eight tokens on the GPU, or the part that it computes: products with weights as they lie.

Knows the order of the kernels in a block, and in which form each product wants its input; does not know where
ids come from, what is done with logits, or how blocks get here. What is run again and again is a graph;
position and ids are in device memory, so that one graph serves every step of its size. What a block computes
is said in `numpy_backend`. How many graphs there are, and what happens without, is the business of
`cuda_graphs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import numpy as np

from engine.backends.cuda_attention import Attention, DeviceKV
from engine.backends.cuda_graphs import Graphs
from engine.backends.cuda_rows import Forms, Input, StepRows, reserve_rows
from engine.backends.cuda_weights import (
    ACTIVATIONS,
    BlockMatrices,
    DeviceWeights,
    LayerVectors,
    Projection,
)
from engine.config import Precision
from engine.model_config import ModelConfig
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.weights import ModelWeights
from kernels.cuda.crossing import from_host, to_host
from kernels.cuda.device import Array, Device
from kernels.cuda.launch_settings import LaunchSettings
from kernels.cuda.matrices import DeviceMatrix, embedding
from kernels.cuda.norms import Rounded, add_norm, gated, round_rows
from kernels.cuda.products import Product, multiply_each, multiply_gated, multiply_gated_rounded
from kernels.cuda.sketch import Launch, Sketch

_MOST_PASSES = 12
"""Passes through the model that there are graphs for at a time: of one to eight tokens, and some drafts;
fewer where a pass is many runs. Who tries hundreds of skip sets uses few of them twice."""


class _Run(NamedTuple):
    """What a graph of some blocks is known by. Blocks in it cannot go, and no other one gets their place."""

    blocks: tuple[BlockMatrices, ...]
    n_tokens: int
    arrives: np.uint64 | None
    leaves: np.uint64 | None


class _Pass(NamedTuple):
    """What a graph of the whole model is known by."""

    n_tokens: int
    skip: SkipSet


class Step:
    """Passes of up to eight tokens through one model, and its head for anybody's hidden states."""

    def __init__(
        self,
        device: Device,
        source: ModelWeights,
        weights: DeviceWeights,
        config: ModelConfig,
        precision: Precision,
        attention: Attention,
        state: Array,
        settings: LaunchSettings,
    ) -> None:
        """Reserve memory, which does not depend on what `weights` holds. `state` is as in sampling.py."""
        self._device, self._weights, self._config, self._precision = device, weights, config, precision
        self._attention, self._state, self._settings = attention, state, settings
        self._rows = reserve_rows(device, source, config, precision)
        self.graphs: Graphs[_Pass | _Run] = Graphs(device, _MOST_PASSES * 2 * config.n_layers)
        self._kv: DeviceKV | None = None
        """The cache that the graphs use."""

    @property
    def x(self) -> Array:
        """[8, D] f32: hidden states between runs of blocks."""
        return self._rows.x

    @property
    def logits(self) -> Array:
        """[8, V] f32: the first rows are of the last pass, or of the last call of `head`."""
        return self._rows.logits

    # -- the whole model

    def run(self, n_tokens: int, kv: DeviceKV, skip: SkipSet = NOTHING) -> None:
        """Run the tokens in the state through all layers and the head, into `x` and `logits`.

        All blocks but those left out are on the GPU.
        """
        self._use(kv)
        n_blocks = 2 * self._config.n_layers - len(skip)
        self.graphs.launch(_Pass(n_tokens, skip), n_blocks, lambda: self._pass(n_tokens, kv, skip))

    def prepare(self, kv: DeviceKV) -> None:
        """Capture the graph of passes of one token."""
        self._use(kv)
        self.graphs.capture(_Pass(1, NOTHING), 2 * self._config.n_layers, lambda: self._pass(1, kv, NOTHING))

    def launches(self, n_tokens: int, kv: DeviceKV) -> list[Launch]:
        """What a pass of so many tokens consists of, one by one."""
        noted, other = Sketch(self._device), copy(self)
        other._device, other._attention = noted, self._attention.on(noted)
        other._pass(n_tokens, kv, NOTHING)
        return noted.launches

    # -- a part of it

    def embed(self, n_tokens: int) -> None:
        """Look the tokens in the state up, into `x`; the embedding is on the GPU."""
        table = self._weights.embedding
        assert table is not None, "who has no embedding on the GPU looks ids up elsewhere"
        ids = self._state[1 : 1 + n_tokens]
        embedding(self._device, ids, table.matrix, self._config.embedding_scale, self._rows.x[:n_tokens])

    def run_blocks(
        self,
        blocks: Sequence[BlockMatrices],
        n_tokens: int,
        kv: DeviceKV,
        *,
        arrives: np.uint64 | None,
        leaves: np.uint64 | None,
        again: bool = True,
    ) -> None:
        """Run blocks that follow each other over `x`; the positions are in the state.

        `arrives` and `leaves` are `Device.host_address` of [T, D] f32: hidden states are first read from
        there, and written there in the end. None leaves them in `x`. What will not be run `again` is no
        graph, which takes as long to make as its kernels to be launched, and memory.
        """
        self._use(kv)
        run = _Run(tuple(blocks), n_tokens, arrives, leaves)
        if again:
            self.graphs.launch(run, len(run.blocks), lambda: self._run(run, kv))
        else:
            self._run(run, kv)

    def head(self, x: Array) -> None:
        """Final norm and output projection of x [T, D], T up to 8, into `logits`; x is left alone."""
        self._head(x, self._rows.first(x.shape[0]), None)

    def forget_passes(self) -> None:
        """Let go of what passes through the whole model hold: embedding, blocks and head."""
        self.graphs.forget(lambda key: isinstance(key, _Pass))

    def forget_runs(self) -> None:
        """Let go of all runs of blocks: others will be asked for."""
        self.graphs.forget(lambda key: isinstance(key, _Run))

    def forget(self, block: BlockMatrices) -> None:
        """Let go of a block that will be used no more."""
        self.graphs.forget(lambda key: isinstance(key, _Pass) or block in key.blocks)

    # -- one pass

    def _use(self, kv: DeviceKV) -> None:
        if kv is not self._kv:
            self.graphs.clear()
            self._kv = kv

    def _pass(self, n_tokens: int, kv: DeviceKV, skip: SkipSet) -> None:
        rows, blocks = self._rows.first(n_tokens), self._weights.blocks
        self.embed(n_tokens)
        post_norm: Array | None = None
        for number in range(2 * self._config.n_layers):
            if number not in skip:
                post_norm = self._block(blocks[number], rows, post_norm, kv)
        self._head(rows.x, rows, post_norm)

    def _run(self, run: _Run, kv: DeviceKV) -> None:
        rows = self._rows.first(run.n_tokens)
        if run.arrives is not None:
            from_host(self._device, run.arrives, rows.x)
        post_norm: Array | None = None
        for block in run.blocks:
            post_norm = self._block(block, rows, post_norm, kv)
        if post_norm is not None:
            eps = self._config.rms_eps
            add_norm(self._device, rows.x, None, eps, update=rows.update, post_weight=post_norm)
        if run.leaves is not None:
            to_host(self._device, rows.x, run.leaves)

    def _block(
        self, block: BlockMatrices, rows: StepRows, post_norm: Array | None, kv: DeviceKV
    ) -> Array | None:
        """One block; `post_norm`, given and returned, is what the update that is still to be added is normed
        with, None where there is none."""
        vectors = self._weights.vectors.layers[block.layer]
        if block.is_attention:
            return self._attend(block, vectors, rows, post_norm, kv)
        return self._feed_forward(block, vectors, rows, post_norm)

    def _attend(
        self,
        block: BlockMatrices,
        vectors: LayerVectors,
        rows: StepRows,
        post_norm: Array | None,
        kv: DeviceKV,
    ) -> Array | None:
        normed = self._norm(rows.x, vectors.attn_norm, rows, post_norm, block.first)
        self._multiply(block.first, normed, rows.qkv)
        mixed = rows.mixed.only(self._wanted(block.second))
        self._attention.step(block.layer, vectors, rows.qkv, kv, rounded=mixed.rounded, floats=mixed.floats)
        return self._add(block.second, mixed, rows, vectors.post_attention_norm)

    def _feed_forward(
        self, block: BlockMatrices, vectors: LayerVectors, rows: StepRows, post_norm: Array | None
    ) -> Array | None:
        normed = self._norm(rows.x, vectors.ffn_norm, rows, post_norm, block.first)
        gated_rows = rows.gated.only(self._wanted(block.second))
        self._gate(block.first, normed, rows, gated_rows)
        return self._add(block.second, gated_rows, rows, vectors.post_ffw_norm)

    def _head(self, x: Array, rows: StepRows, post_norm: Array | None) -> None:
        head = self._weights.head
        assert head is not None, "who has no head on the GPU computes logits elsewhere"
        normed = self._norm(x, self._weights.vectors.output_norm, rows, post_norm, head.projection)
        self._multiply(head.projection, normed, rows.logits)

    def _norm(
        self, x: Array, weight: Array, rows: StepRows, post_norm: Array | None, projection: Projection
    ) -> Input:
        """The norm of x for a projection. With `post_norm` the update is normed by it and added first."""
        normed = rows.normed.only(self._wanted(projection))
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

    def _add(self, projection: Projection, x: Input, rows: StepRows, post_norm: Array | None) -> Array | None:
        """Add a projection to the hidden states; where it is normed before, the next `_norm` does both."""
        if post_norm is None:
            self._multiply(projection, x, rows.x, accumulate=True)
        else:
            self._multiply(projection, x, rows.update)
        return post_norm

    def _gate(self, gate_up: Projection, normed: Input, rows: StepRows, out: Input) -> None:
        activation = ACTIVATIONS[self._config.activation]
        if len(gate_up.matrices) > 1:  # of two types
            self._multiply(gate_up, normed, rows.gate_up)
            gated(self._device, rows.gate_up, activation, rounded=out.rounded, floats=out.floats)
            return
        (matrix,) = gate_up.matrices
        form, settings = self._form(matrix, normed), self._settings
        if out.rounded is not None and out.floats is None and isinstance(form, Rounded):
            multiply_gated_rounded(
                self._device, matrix, form, rows.inner, out.rounded, activation, settings=settings
            )
            return
        inner = rows.inner if out.floats is None else out.floats
        multiply_gated(self._device, matrix, form, inner, activation, settings=settings)
        if out.rounded is not None:
            round_rows(self._device, inner, rounded=out.rounded)

    def _multiply(self, projection: Projection, x: Input, out: Array, *, accumulate: bool = False) -> None:
        products, column = [], 0
        for matrix in projection.matrices:
            part = out[:, column : column + matrix.n_rows]
            products.append(Product(matrix, self._form(matrix, x), part))
            column += matrix.n_rows
        multiply_each(self._device, products, accumulate=accumulate, settings=self._settings)

    def _wanted(self, projection: Projection) -> Forms:
        return Forms.of(projection.matrices, self._precision)

    def _form(self, matrix: DeviceMatrix, x: Input) -> Rounded | Array:
        """The form for one matrix."""
        form = x.rounded if Forms.of([matrix], self._precision).rounded else x.floats
        assert form is not None, "there is room for every form that a matrix wants"
        return form
