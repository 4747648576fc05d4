"""A model's tensors by their GGUF names, checked once against the config, never expanded.

Knows which tensors a model must have, with which shapes; does not read metadata and does not compute.
The bytes are in ggml's layout, in the file's mapping; `tiers` brings them to memory. Called by the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.errors import UnsupportedModelError
from engine.gguf import GGUFFile
from engine.model_config import ModelConfig
from kernels.quant_types import QuantType

Shape = tuple[int, ...]


class Weight(NamedTuple):
    """One tensor as it lies in the file."""

    data: npt.NDArray[np.uint8]
    """1-D, read-only, rows one after another."""
    shape: Shape
    """Rows first: a matrix [out, in] has `out` rows of `in` elements."""
    quant_type: QuantType


class ModelWeights(Mapping[str, Weight]):
    """GGUF tensor name -> `Weight`; the file has every tensor of the model and no other."""

    def __init__(self, gguf: GGUFFile, config: ModelConfig) -> None:
        """Check presence, shape and type of every tensor; UnsupportedModelError names the first at fault.

        Bytes are touched only when asked for.
        """
        self.gguf = gguf
        self._shapes = expected_shapes(config)
        for name, shape in self._shapes.items():
            _check(gguf, name, shape)
        for name in gguf.tensors:
            if name not in self._shapes and not name.startswith(IGNORED):
                # Leaving it out would compute another model than the file describes.
                raise UnsupportedModelError(
                    f"{gguf.path}: tensor {name!r} has no place in the {config.architecture} architecture as "
                    "supported here; choose another model"
                )

    def __getitem__(self, name: str) -> Weight:
        """The tensor's bytes, shape and type."""
        quant_type = self.gguf.tensors[name].quant_type
        return Weight(self.gguf.tensor_bytes(name), self._shapes[name], quant_type)

    def __iter__(self) -> Iterator[str]:
        """Names, in the order in which a forward pass uses them."""
        return iter(self._shapes)

    def __len__(self) -> int:
        """How many tensors the model has."""
        return len(self._shapes)


IGNORED = ("rope_freqs.", "v.", "mm.")
"""The config holds the RoPE factors; v. and mm. are a vision tower packed into a text model's file."""


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor of the model with its shape, rows first, in order of use."""
    c = config
    shapes: dict[str, Shape] = {"token_embd.weight": (c.vocab_size, c.hidden_size)}
    q_size, kv_size = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    layer: dict[str, Shape] = {
        "attn_norm": (c.hidden_size,),
        "attn_q": (q_size, c.hidden_size),
        "attn_k": (kv_size, c.hidden_size),
        "attn_v": (kv_size, c.hidden_size),
        "attn_q_norm": (c.head_dim,),
        "attn_k_norm": (c.head_dim,),
        "attn_output": (c.hidden_size, q_size),
        "post_attention_norm": (c.hidden_size,),
        "ffn_norm": (c.hidden_size,),
        "ffn_gate": (c.ffn_size, c.hidden_size),
        "ffn_up": (c.ffn_size, c.hidden_size),
        "ffn_down": (c.hidden_size, c.ffn_size),
        "post_ffw_norm": (c.hidden_size,),
    }
    absent = set()
    if not c.qk_norm:
        absent |= {"attn_q_norm", "attn_k_norm"}
    if not c.post_norms:
        absent |= {"post_attention_norm", "post_ffw_norm"}
    for index in range(c.n_layers):
        shapes |= {f"blk.{index}.{name}.weight": shape for name, shape in layer.items() if name not in absent}
    shapes["output_norm.weight"] = (c.hidden_size,)
    if not c.tied_head:
        shapes["output.weight"] = (c.vocab_size, c.hidden_size)
    return shapes


def _check(gguf: GGUFFile, name: str, shape: Shape) -> None:
    """Refuse a tensor that is missing or has another shape or type than the kernels read."""
    info = gguf.tensors.get(name)
    if info is None:
        raise UnsupportedModelError(f"{gguf.path}: tensor {name} is missing; get another copy of the model")
    if info.shape != shape:
        raise UnsupportedModelError(
            f"{gguf.path}: tensor {name} has shape {info.shape}, expected {shape}; "
            "get another copy of the model"
        )
    # Vectors are F32 in every file that ggml itself can run.
    readable = (QuantType.F32,) if len(shape) == 1 else tuple(QuantType)
    if info.type_id not in readable:
        raise UnsupportedModelError(
            f"{gguf.path}: tensor {name} is stored as {info.type_name}, which is not supported here; "
            "choose another quantisation of the model"
        )
