"""The model on the C kernels: every run of layers is one native call.

Knows which tensors a layer hands to the kernels and how much may go into one call; the arithmetic and its
order are in `kernels/cpu/forward.c`. Called by `Transformer`.
"""

from __future__ import annotations

from engine.architectures import Activation, RopePairing
from engine.backends.base import CancelFlag, Float32Array, TokenIds
from engine.config import Precision
from engine.errors import CancelledError
from engine.kv_cache import KVCache
from engine.model_config import ModelConfig
from engine.rope import rope_tables
from engine.weights import ModelWeights
from kernels import cpu


class CpuBackend:
    """`Backend` over `kernels.cpu`. Raises MemoryError when its working memory cannot be had."""

    def __init__(
        self,
        weights: ModelWeights,
        config: ModelConfig,
        precision: Precision,
        *,
        threads: int,
        max_tokens: int = 512,
        instruction_set: str | None = None,
    ) -> None:
        """Compute `config`'s model from `weights`; one call takes up to `max_tokens` rows."""
        self.threads = threads
        best = cpu.instruction_sets()[0]
        self._set = instruction_set or best
        self.name = f"cpu {self._set}"
        self.reason = (
            "the best instruction set of this processor" if self._set == best else "the one asked for"
        )
        self._config = config
        self._half = precision is Precision.FAST
        self._embedding = weights["token_embd.weight"]
        self._model = _native_model(weights, config, precision, threads, max_tokens, self._set)

    def new_kv(self, max_context: int) -> KVCache:
        """Reserve a cache for this many positions."""
        c = self._config
        keys, values = cpu.kv_arrays(c.n_layers, c.n_kv_heads, max_context, c.head_dim, half=self._half)
        return KVCache(keys, values, max_context)

    def embed(self, token_ids: TokenIds) -> Float32Array:
        """Look up the ids, [T] -> [T, D], the embedding scale applied."""
        data, shape, quant_type = self._embedding
        return cpu.embedding(
            token_ids,
            data,
            quant_type,
            shape[1],
            scale=self._config.embedding_scale,
            instruction_set=self._set,
        )

    def layers(
        self, first: int, last: int, x: Float32Array, start_pos: int, kv: KVCache, cancel: CancelFlag
    ) -> None:
        """Run layers first..last-1 over x [T, D] in place; see `Backend.layers`."""
        c = self._config
        rotation = rope_tables(c.rope, start_pos, len(x))
        local = rotation if c.local_rope == c.rope else rope_tables(c.local_rope, start_pos, len(x))
        if not self._model.layers(first, last, x, start_pos, rotation, local, kv.keys, kv.values, cancel):
            raise CancelledError("stopped")

    def head(self, x: Float32Array) -> Float32Array:
        """Final norm and output projection, [R, D] -> [R, V]."""
        return self._model.head(x)

    def close(self) -> None:
        """Stop the threads and let go of the weights; the backend cannot be used afterwards."""
        self.__dict__.pop("_model", None)
        self.__dict__.pop("_embedding", None)


def _native_model(
    weights: ModelWeights,
    config: ModelConfig,
    precision: Precision,
    threads: int,
    max_tokens: int,
    instruction_set: str,
) -> cpu.NativeModel:
    """Hand every tensor to the kernels."""

    def matrix(name: str) -> cpu.Matrix | None:
        if name not in weights:
            return None
        data, shape, quant_type = weights[name]
        rows = shape[0] if len(shape) == 2 else 1
        return cpu.Matrix(data, quant_type, rows, shape[-1])

    def required(name: str) -> cpu.Matrix:
        found = matrix(name)
        assert found is not None, f"ModelWeights checked that {name} is there"
        return found

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
            [matrix(f"blk.{index}.{name}.weight") for name in cpu.LAYER_TENSORS]
            for index in range(config.n_layers)
        ],
        [config.window(index) for index in range(config.n_layers)],
        required("output_norm.weight"),
        required("token_embd.weight" if config.tied_head else "output.weight"),
        instruction_set=instruction_set,
    )
