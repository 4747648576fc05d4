"""Which of a model's tensors are one matrix on the GPU, what they take there, and where each goes.

Products with the same input are one product where their matrices are of one type: query, key and value; gate
and up. Knows names, types and shapes; reads nothing (`VramWeights` does) and does not compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine.architectures import Activation
from engine.model_config import ModelConfig
from engine.tiers.vram import Place
from engine.weights import ModelWeights
from kernels.cuda.device import Array, Device
from kernels.cuda.matrices import DeviceMatrix, allocate, vram_bytes
from kernels.quant_types import QuantType

ACTIVATIONS = {Activation.SILU: "silu", Activation.GELU_TANH: "gelu"}
"""Names that the kernels know them by."""


class MatrixSpec(NamedTuple):
    """One matrix on the GPU: tensors of one type and width, one below the other."""

    tensors: tuple[str, ...]
    quant_type: QuantType
    n_rows: int
    n_columns: int

    @property
    def n_bytes(self) -> int:
        """What it takes on the GPU."""
        return vram_bytes(self.quant_type, self.n_rows, self.n_columns)


@dataclass(frozen=True, slots=True)
class Projection:
    """The matrices of one input, one below the other: the first rows of the output are those of the first."""

    matrices: tuple[DeviceMatrix, ...]

    @property
    def n_rows(self) -> int:
        """Of all together."""
        return sum(matrix.n_rows for matrix in self.matrices)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; vectors are f32, None where the architecture has none."""

    attn_norm: Array
    qkv: Projection
    attn_q_norm: Array | None
    attn_k_norm: Array | None
    attn_output: Projection
    post_attention_norm: Array | None
    ffn_norm: Array
    gate_up: Projection
    ffn_down: Projection
    post_ffw_norm: Array | None

    @property
    def matrices(self) -> tuple[DeviceMatrix, ...]:
        """All of them."""
        projections = self.qkv, self.attn_output, self.gate_up, self.ffn_down
        return tuple(matrix for projection in projections for matrix in projection.matrices)


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """A model's weights on the GPU; the matrices are undefined until `VramWeights` has filled them."""

    embedding: DeviceMatrix
    layers: tuple[LayerWeights, ...]
    output_norm: Array
    head: Projection
    """The embedding itself where the model has no matrix of its own for it."""
    places: dict[str, Place]
    """For every matrix of the file."""


def matrix_specs(weights: ModelWeights, config: ModelConfig) -> Iterator[MatrixSpec]:
    """Every matrix that the model has on the GPU, in order of use."""
    for tensors in _inputs(config):
        yield from _stacked(weights, tensors)


def allocate_weights(device: Device, weights: ModelWeights, config: ModelConfig) -> DeviceWeights:
    """Reserve memory for every matrix, and upload the vectors. Raises what the device raises."""
    places: dict[str, Place] = {}

    def projection(*tensors: str) -> Projection:
        specs = _stacked(weights, tensors)
        return Projection(tuple(_reserve(device, spec, weights, places) for spec in specs))

    def vector(name: str) -> Array | None:
        return device.upload(weights[name].data.view(np.float32)) if name in weights else None

    def required(name: str) -> Array:
        uploaded = vector(name)
        assert uploaded is not None, "ModelWeights checked that it is there"
        return uploaded

    def layer(block: str) -> LayerWeights:
        return LayerWeights(
            attn_norm=required(f"{block}.attn_norm.weight"),
            qkv=projection(*_named(block, _QKV)),
            attn_q_norm=vector(f"{block}.attn_q_norm.weight"),
            attn_k_norm=vector(f"{block}.attn_k_norm.weight"),
            attn_output=projection(*_named(block, _OUTPUT)),
            post_attention_norm=vector(f"{block}.post_attention_norm.weight"),
            ffn_norm=required(f"{block}.ffn_norm.weight"),
            gate_up=projection(*_named(block, _GATE_UP)),
            ffn_down=projection(*_named(block, _DOWN)),
            post_ffw_norm=vector(f"{block}.post_ffw_norm.weight"),
        )

    embedding = projection("token_embd.weight")
    layers = tuple(layer(f"blk.{index}") for index in range(config.n_layers))
    head = embedding if config.tied_head else projection("output.weight")
    return DeviceWeights(embedding.matrices[0], layers, required("output_norm.weight"), head, places)


_QKV, _OUTPUT = ("attn_q", "attn_k", "attn_v"), ("attn_output",)
_GATE_UP, _DOWN = ("ffn_gate", "ffn_up"), ("ffn_down",)


def _named(block: str, names: Sequence[str]) -> list[str]:
    return [f"{block}.{name}.weight" for name in names]


def _inputs(config: ModelConfig) -> Iterator[Sequence[str]]:
    """Tensors that are multiplied with the same input, together."""
    yield ["token_embd.weight"]
    for index in range(config.n_layers):
        for names in (_QKV, _OUTPUT, _GATE_UP, _DOWN):
            yield _named(f"blk.{index}", names)
    if not config.tied_head:
        yield ["output.weight"]


def _stacked(weights: ModelWeights, tensors: Sequence[str]) -> list[MatrixSpec]:
    """Neighbours of one type as one matrix."""
    specs: list[MatrixSpec] = []
    for name in tensors:
        _, (n_rows, n_columns), quant_type = weights[name]
        if specs and specs[-1].quant_type == quant_type:
            last = specs[-1]
            specs[-1] = last._replace(tensors=(*last.tensors, name), n_rows=last.n_rows + n_rows)
        else:
            specs.append(MatrixSpec((name,), quant_type, n_rows, n_columns))
    return specs


def _reserve(
    device: Device, spec: MatrixSpec, weights: ModelWeights, places: dict[str, Place]
) -> DeviceMatrix:
    """Memory for one matrix; notes where its tensors go."""
    matrix = allocate(device, spec.quant_type, spec.n_rows, spec.n_columns)
    first_row = 0
    for name in spec.tensors:
        places[name] = Place(matrix, first_row)
        first_row += weights[name].shape[0]
    return matrix
