"""The model on the C kernels: a run of weight blocks that are in memory is one native call.

Knows which tensors a block hands to the kernels and how much may go into one call. Where a block is and when
it comes is the business of `TieredWeights`; the arithmetic and its order are in `kernels/cpu/forward.c`.
"""

from __future__ import annotations

import numpy as np

from engine.architectures import Activation, RopePairing
from engine.backends.base import Float32Array, TokenIds, cancel_flag
from engine.cancel import CancelToken
from engine.config import Precision
from engine.errors import CancelledError
from engine.kv_cache import HostKV
from engine.logits import HostLogits
from engine.machine import spread_over_cores
from engine.model_config import ModelConfig
from engine.rope import rope_tables
from engine.tiers.blocks import Block
from engine.tiers.residents import Bytes
from engine.tiers.store import TieredWeights
from engine.weights import ModelWeights
from kernels import cpu


class CpuBackend:
    """`Backend` over `kernels.cpu`. Raises MemoryError when its working memory cannot be had."""

    def __init__(
        self,
        weights: ModelWeights,
        tiers: TieredWeights,
        config: ModelConfig,
        precision: Precision,
        *,
        threads: int,
        max_tokens: int = 512,
        instruction_set: str | None = None,
        no_gpu: str = "",
    ) -> None:
        """Compute `config`'s model; one call takes up to `max_tokens` rows. Matrices come from `tiers`.

        `no_gpu` says why no GPU does.
        """
        self.tiers = tiers
        self.threads = threads
        best = cpu.instruction_sets()[0]
        self._set = instruction_set or best
        self.name = f"cpu {self._set}"
        choice = "the best instruction set of this processor" if self._set == best else "the one asked for"
        self.reason = f"{choice}; {no_gpu}" if no_gpu else choice
        self._config = config
        self._half = precision is Precision.FAST
        self._embedding_type = weights["token_embd.weight"].quant_type
        with spread_over_cores(threads):
            self._model = _native_model(weights, config, precision, threads, max_tokens, self._set)
        self._put_new()

    def new_kv(self, max_context: int) -> HostKV:
        """Reserve a cache for this many positions."""
        c = self._config
        keys, values = cpu.kv_arrays(c.n_layers, c.n_kv_heads, max_context, c.head_dim, half=self._half)
        return HostKV(keys, values, max_context)

    def embed(self, token_ids: TokenIds) -> Float32Array:
        """Look up the ids, [T] -> [T, D], the embedding scale applied."""
        return cpu.embedding(
            np.arange(len(token_ids), dtype=np.int32),
            self.tiers.embedding_rows(token_ids),
            self._embedding_type,
            self._config.hidden_size,
            scale=self._config.embedding_scale,
            instruction_set=self._set,
        )

    def layers(
        self, first: int, last: int, x: Float32Array, start_pos: int, kv: HostKV, cancel: CancelToken
    ) -> None:
        """Run layers first..last-1 over x [T, D] in place; see `Backend.layers`."""
        c = self._config
        rotation = rope_tables(c.rope, start_pos, len(x))
        local = rotation if c.local_rope == c.rope else rope_tables(c.local_rope, start_pos, len(x))
        flag = cancel_flag(cancel)
        if first == 0:
            self.tiers.before_pass()
        self._put_new()
        for start, end, streamed in self.tiers.runs(2 * first, 2 * last):
            if streamed is not None:
                self._put(streamed, self.tiers.acquire(streamed, cancel))
            try:
                done = self._model.blocks(start, end, x, start_pos, rotation, local, kv.keys, kv.values, flag)
            finally:
                if streamed is not None:
                    self.tiers.release(streamed)
            if not done:
                raise CancelledError("stopped")

    def head(self, x: Float32Array, cancel: CancelToken) -> Float32Array:
        """Final norm and output projection, [R, D] -> [R, V]."""
        logits = np.empty((len(x), self._config.vocab_size), np.float32)
        for rows in self.tiers.head(cancel):
            self._model.head(x, rows.data, rows.quant_type, rows.first_row, logits)
        return logits

    def next_logits(self, x: Float32Array, cancel: CancelToken) -> HostLogits:
        """Logits [V] of the last row of x."""
        return HostLogits(self.head(x[-1:], cancel)[0])

    def close(self) -> None:
        """Stop the threads and let go of the weights; the backend cannot be used afterwards."""
        self.__dict__.pop("_model", None)
        self.tiers.close()

    def _put_new(self) -> None:
        for block, matrices in self.tiers.take_new():
            self._put(block, matrices)

    def _put(self, block: Block, matrices: list[Bytes]) -> None:
        """Tell the kernels where a block's matrices lie."""
        assert block.layer is not None, "the head is passed with each call"
        for piece, data in zip(block.pieces, matrices, strict=True):
            self._model.place(block.layer, cpu.LAYER_TENSORS.index(piece.tensor.split(".")[2]), data)


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
