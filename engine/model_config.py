"""GGUF metadata to a frozen `ModelConfig`: the one place that reads a model's hyperparameters.

Knows the metadata keys and checks every value's range; does not touch weights, apart from the
RoPE frequency factors, which GGUF stores as a tensor. Called by the engine and the command line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engine.architectures import ARCHITECTURES, Activation, Architecture, RopePairing
from engine.errors import GGUFError, UnsupportedModelError
from engine.gguf import GGUFFile
from kernels.quant_types import QuantType


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """One rotary embedding; pair i turns by frequency_scale / (base^(2i/dim) * factor_i) per position."""

    dim: int
    """Leading elements of each head that are rotated; even."""
    base: float
    pairing: RopePairing
    frequency_scale: float = 1.0
    """1 / the linear context extension factor."""
    factors: tuple[float, ...] | None = None
    """Divisor per pair (Llama 3.1), dim/2 of them; None is all ones."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything that the arithmetic of one model depends on."""

    architecture: str
    n_layers: int
    hidden_size: int
    ffn_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    training_context: int
    """Context the model was trained for, in tokens."""
    rms_eps: float
    rope: RopeConfig
    """Rotation of layers that see everything."""
    local_rope: RopeConfig
    """Rotation of windowed layers; the same as `rope` where there are none."""
    sliding_window: int
    """How many positions, its own included, a windowed layer's query sees; 0 where no layer has a window."""
    windowed: tuple[bool, ...]
    """Per layer: whether it has the window."""
    embedding_scale: float
    query_scale: float
    """What the scores q.k are multiplied with."""
    activation: Activation
    qk_norm: bool
    post_norms: bool
    tied_head: bool
    """The output projection is the embedding matrix."""

    def window(self, layer: int) -> int:
        """How many positions a query of this layer sees, its own included; 0 is all of them."""
        return self.sliding_window if self.windowed[layer] else 0

    def layer_rope(self, layer: int) -> RopeConfig:
        """The rotation of this layer."""
        return self.local_rope if self.windowed[layer] else self.rope


def read_model_config(gguf: GGUFFile) -> ModelConfig:
    """Read and check a model's hyperparameters.

    Raises UnsupportedModelError for what we do not run, GGUFError for missing or senseless values.
    """
    name = gguf.get_str("general.architecture")
    traits = ARCHITECTURES.get(name)
    if traits is None:
        raise UnsupportedModelError(
            f"{gguf.path}: architecture {name!r} is not supported; choose a model of "
            f"{' or '.join(ARCHITECTURES)} architecture"
        )
    _refuse_variants(gguf, name)
    n_layers = _count(gguf, f"{name}.block_count", most=_MOST_LAYERS)
    hidden_size = _count(gguf, f"{name}.embedding_length")
    n_heads = _count(gguf, f"{name}.attention.head_count")
    n_kv_heads = _count(gguf, f"{name}.attention.head_count_kv", n_heads)
    head_dim = _count(gguf, f"{name}.attention.key_length", hidden_size // n_heads)
    if n_heads % n_kv_heads:
        raise GGUFError(
            f"{gguf.path}: {n_heads} heads cannot share {n_kv_heads} KV heads; get another copy of it"
        )
    value_dim = _count(gguf, f"{name}.attention.value_length", head_dim)
    if value_dim != head_dim:
        raise UnsupportedModelError(
            f"{gguf.path}: values of {value_dim} elements beside keys of {head_dim} are not supported; "
            "choose another model"
        )
    width = hidden_size / n_heads if n_layers in traits.query_scale_by_width else float(head_dim)
    rope, local_rope = _read_ropes(gguf, name, traits, head_dim)
    window, windowed = _read_windows(gguf, name, traits, n_layers)
    return ModelConfig(
        architecture=name,
        n_layers=n_layers,
        hidden_size=hidden_size,
        ffn_size=_count(gguf, f"{name}.feed_forward_length"),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        vocab_size=_vocab_size(gguf),
        training_context=_count(gguf, f"{name}.context_length"),
        rms_eps=_positive(gguf, f"{name}.attention.layer_norm_rms_epsilon"),
        rope=rope,
        local_rope=local_rope,
        sliding_window=window,
        windowed=windowed,
        embedding_scale=math.sqrt(hidden_size) if traits.scale_embedding else 1.0,
        query_scale=1.0 / math.sqrt(width),
        activation=traits.activation,
        qk_norm=traits.qk_norm,
        post_norms=traits.post_norms,
        tied_head="output.weight" not in gguf.tensors,
    )


def _refuse_variants(gguf: GGUFFile, name: str) -> None:
    """Refuse keys that change the arithmetic in ways this engine does not compute."""
    for key, what in (
        (f"{name}.expert_count", "a mixture of experts"),
        (f"{name}.attn_logit_softcapping", "soft-capped attention"),
        (f"{name}.final_logit_softcapping", "soft-capped logits"),
    ):
        value = gguf.metadata.get(key, 0)
        if value:
            raise UnsupportedModelError(
                f"{gguf.path}: {key} is {value}: {what} is not supported; choose another model"
            )


def _read_ropes(
    gguf: GGUFFile, name: str, traits: Architecture, head_dim: int
) -> tuple[RopeConfig, RopeConfig]:
    """Read the rotation of ordinary layers and that of windowed ones."""
    dim = _count(gguf, f"{name}.rope.dimension_count", head_dim)
    if dim > head_dim or dim % 2:
        raise GGUFError(
            f"{gguf.path}: {name}.rope.dimension_count is {dim}: it must be even and at most {head_dim}"
        )
    base = _positive(gguf, f"{name}.rope.freq_base", 10_000.0)
    rope = RopeConfig(dim, base, traits.pairing, _frequency_scale(gguf, name), _frequency_factors(gguf, dim))
    if traits.local_rope_base is None:
        return rope, rope
    local_base = _positive(gguf, f"{name}.rope.freq_base_swa", traits.local_rope_base)
    return rope, RopeConfig(dim, local_base, traits.pairing)


def _frequency_scale(gguf: GGUFFile, name: str) -> float:
    """1 / the linear factor; other kinds of scaling are refused."""
    kind = gguf.get_str(f"{name}.rope.scaling.type", "none")
    # Old converters wrote scale_linear and no type.
    legacy = gguf.get_float(f"{name}.rope.scale_linear", 1.0)
    if kind == "none" and legacy == 1.0:
        return 1.0
    if kind not in ("none", "linear"):
        raise UnsupportedModelError(
            f"{gguf.path}: {name}.rope.scaling.type is {kind!r}, and only 'linear' is supported; "
            "choose another model"
        )
    return 1.0 / _positive(gguf, f"{name}.rope.scaling.factor", legacy)


def _frequency_factors(gguf: GGUFFile, dim: int) -> tuple[float, ...] | None:
    """Llama 3.1's divisor per pair, from the tensor rope_freqs.weight."""
    info = gguf.tensors.get("rope_freqs.weight")
    if info is None:
        return None
    if info.quant_type != QuantType.F32 or info.shape != (dim // 2,):
        raise GGUFError(f"{gguf.path}: rope_freqs.weight is {info.shape}: expected ({dim // 2},) in F32")
    factors = gguf.tensor_bytes(info.name).view(np.float32)
    if not np.all(np.isfinite(factors) & (factors > 0)):
        raise GGUFError(
            f"{gguf.path}: rope_freqs.weight holds values that are not positive; get another copy of it"
        )
    return tuple(float(factor) for factor in factors)


def _read_windows(
    gguf: GGUFFile, name: str, traits: Architecture, n_layers: int
) -> tuple[int, tuple[bool, ...]]:
    """Window length and which layers have it."""
    if traits.global_every is None:
        return 0, (False,) * n_layers
    window = _count(gguf, f"{name}.attention.sliding_window")
    period = _count(gguf, f"{name}.attention.sliding_window_pattern", traits.global_every)
    return window, tuple((layer + 1) % period != 0 for layer in range(n_layers))


def _vocab_size(gguf: GGUFFile) -> int:
    """Rows of the embedding matrix: the file's own vocab_size key is optional and sometimes wrong."""
    info = gguf.tensors.get("token_embd.weight")
    if info is None:
        raise UnsupportedModelError(
            f"{gguf.path}: tensor token_embd.weight is missing (a file with only a vocabulary?); "
            "choose a whole model"
        )
    return info.shape[0]


_MOST_LAYERS = 1 << 12
_LARGEST_COUNT = 1 << 24
"""No size of a model comes near them; products of a few stay far from overflow, tables per layer small."""


def _count(gguf: GGUFFile, key: str, default: int | None = None, most: int = _LARGEST_COUNT) -> int:
    """A whole number from 1 to `most`; required where there is no default."""
    value = gguf.get_int(key) if default is None else gguf.get_int(key, default)
    if not 1 <= value <= most:
        raise GGUFError(f"{gguf.path}: {key} is {value}: expected 1 to {most}; get another copy of it")
    return value


def _positive(gguf: GGUFFile, key: str, default: float | None = None) -> float:
    """A finite number above 0; required where there is no default."""
    value = gguf.get_float(key) if default is None else gguf.get_float(key, default)
    if not (math.isfinite(value) and value > 0):
        raise GGUFError(f"{gguf.path}: {key} is {value}: expected a number above 0; get another copy of it")
    return value
