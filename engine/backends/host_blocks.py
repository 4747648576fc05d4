"""Weight blocks and head on the C kernels: which tensors a block hands over, and how a run is called.

Knows the native model; does not know where a block is or when it comes. Called by the backend of the CPU, and
by that of a GPU for the blocks that the processor computes. The arithmetic and its order are in
`kernels/cpu/forward.c`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from engine.architectures import Activation, RopePairing
from engine.backends.base import Float32Array, cancel_flag
from engine.cancel import CancelToken
from engine.config import Precision
from engine.errors import CancelledError
from engine.kv_cache import HostKV
from engine.machine import spread_over_cores
from engine.model_config import ModelConfig
from engine.rope import rope_tables
from engine.tiers.blocks import Block
from engine.tiers.residents import Bytes
from engine.tiers.vocabulary_rows import HeadRows
from engine.weights import ModelWeights
from kernels import cpu


class Positions(NamedTuple):
    """Where the rows [T, D] of a pass are."""

    start_pos: int
    rotation: tuple[Float32Array, Float32Array]
    """Cosines and sines [T, rope_dim / 2]."""
    local_rotation: tuple[Float32Array, Float32Array]
    """For layers that have a window."""


class HostBlocks:
    """A model's blocks on the processor. Raises MemoryError when its working memory cannot be had."""

    def __init__(
        self,
        weights: ModelWeights,
        config: ModelConfig,
        precision: Precision,
        *,
        threads: int,
        max_tokens: int,
        instruction_set: str | None = None,
    ) -> None:
        """Take up to `max_tokens` rows in a call; matrices are put in their place later."""
        self.instruction_set = instruction_set or cpu.instruction_sets()[0]
        self.max_tokens = max_tokens
        self._config = config
        self._half = precision is Precision.FAST
        self._embedding_type = weights["token_embd.weight"].quant_type
        with spread_over_cores(threads):
            self._model = _native_model(weights, config, precision, threads, max_tokens, self.instruction_set)

    def new_kv(self, max_context: int) -> HostKV:
        """Reserve a cache for this many positions; layers that write none of it take no memory."""
        c = self._config
        keys, values = cpu.kv_arrays(c.n_layers, c.n_kv_heads, max_context, c.head_dim, half=self._half)
        return HostKV(keys, values, max_context)

    def embed(self, rows: Bytes, n_tokens: int) -> Float32Array:
        """Rows of the embedding, one after another, -> [T, D], the embedding scale applied."""
        return cpu.embedding(
            np.arange(n_tokens, dtype=np.int32),
            rows,
            self._embedding_type,
            self._config.hidden_size,
            scale=self._config.embedding_scale,
            instruction_set=self.instruction_set,
        )

    def put(self, block: Block, matrices: list[Bytes] | None) -> None:
        """Say where a layer block's matrices lie from now on; None is nowhere."""
        assert block.layer is not None, "the head is passed with each call"
        nowhere = [None] * len(block.pieces)
        for piece, data in zip(block.pieces, matrices or nowhere, strict=True):
            self._model.place(block.layer, cpu.LAYER_TENSORS.index(piece.tensor.split(".")[2]), data)

    def follow(self, changes: Iterable[tuple[Block, list[Bytes] | None]]) -> None:
        """Say so of all blocks that have changed place."""
        for block, matrices in changes:
            self.put(block, matrices)

    def positions(self, start_pos: int, n_tokens: int) -> Positions:
        """What the rows of a pass need to know of where they are."""
        c = self._config
        rotation = rope_tables(c.rope, start_pos, n_tokens)
        local = rotation if c.local_rope == c.rope else rope_tables(c.local_rope, start_pos, n_tokens)
        return Positions(start_pos, rotation, local)

    def run(
        self, first: int, last: int, x: Float32Array, at: Positions, kv: HostKV, cancel: CancelToken
    ) -> None:
        """Run blocks first..last-1 (2i is the attention of layer i, 2i + 1 its feed-forward) over x in place.

        Raises CancelledError.
        """
        if not self._model.blocks(first, last, x, *at, kv.keys, kv.values, cancel_flag(cancel)):
            raise CancelledError("stopped")

    def head(self, x: Float32Array, rows: HeadRows, logits: Float32Array) -> None:
        """Final norm of x [R, D], times some rows of the output matrix, into logits [R, V]."""
        self._model.head(x, rows.data, rows.quant_type, rows.first_row, logits)


def _native_model(
    weights: ModelWeights,
    config: ModelConfig,
    precision: Precision,
    threads: int,
    max_tokens: int,
    instruction_set: str,
) -> cpu.NativeModel:
    """Hand shapes and vectors to the kernels; matrices are put in their place later."""

    def tensor(name: str) -> cpu.Matrix | None:
        if name not in weights:
            return None
        data, shape, quant_type = weights[name]
        if len(shape) == 2:
            return cpu.Matrix(None, quant_type, *shape)
        # Copied: a mapped file that somebody shortens would end the process.
        return cpu.Matrix(data.copy(), quant_type, 1, shape[0])

    output_norm = tensor("output_norm.weight")
    assert output_norm is not None, "ModelWeights checked that it is there"
    sizes = cpu.Sizes(
        n_layers=config.n_layers,
        hidden_size=config.hidden_size,
        ffn_size=config.ffn_size,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        rope_dim=config.rope.dim,
        vocab_size=config.vocab_size,
        max_tokens=max_tokens,
        threads=threads,
        neox=config.rope.pairing is RopePairing.NEOX,
        gelu=config.activation is Activation.GELU_TANH,
        float_precision=precision is Precision.FLOAT,
    )
    return cpu.NativeModel(
        sizes,
        config.rms_eps,
        config.query_scale,
        [
            [tensor(f"blk.{index}.{name}.weight") for name in cpu.LAYER_TENSORS]
            for index in range(config.n_layers)
        ],
        [config.window(index) for index in range(config.n_layers)],
        output_norm,
        instruction_set=instruction_set,
    )
