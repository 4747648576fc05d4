"""Which of a model's tensors are one matrix on the GPU, what a weight block takes there, and where each goes.

Products with the same input are one product where their matrices are of one type: query, key and value; gate
and up. The matrices of a block lie one behind the other in one piece of memory, which is its own or a slot of
the staging ring. Knows names, types and shapes; reads nothing and does not compute.

The number of a block is twice its layer, and one more for the feed-forward block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine.architectures import Activation
from engine.model_config import ModelConfig
from engine.tiers.blocks import Block, BlockKind
from engine.tiers.placement import Place
from engine.weights import ModelWeights
from kernels.cuda.device import Array, Device
from kernels.cuda.matrices import DeviceMatrix, matrix_in, vram_bytes
from kernels.quant_types import QuantType, block_size

ACTIVATIONS = {Activation.SILU: "silu", Activation.GELU_TANH: "gelu"}
"""Names that the kernels know them by."""
_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"


class MatrixSpec(NamedTuple):
    """One matrix on the GPU: tensors of one type and width, one below the other."""

    tensors: tuple[str, ...]
    quant_type: QuantType
    n_rows: int
    n_columns: int

    @property
    def n_bytes(self) -> int:
        """What it takes on the GPU, a multiple of 256."""
        return vram_bytes(self.quant_type, self.n_rows, self.n_columns)

    @property
    def is_quantised(self) -> bool:
        """Whether its weights are codes and scales, not floats."""
        return block_size(self.quant_type) > 1


class BlockSpecs(NamedTuple):
    """The matrices of a block, before there is memory for them."""

    first: tuple[MatrixSpec, ...]
    """Query, key and value; or gate and up."""
    second: tuple[MatrixSpec, ...]
    """The output of attention; or down."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The matrices of one input, one below the other: the first rows of the output are those of the first."""

    matrices: tuple[DeviceMatrix, ...]

    @property
    def n_rows(self) -> int:
        """Of all together."""
        return sum(matrix.n_rows for matrix in self.matrices)


@dataclass(frozen=True, slots=True, eq=False)
class BlockMatrices:
    """A block's matrices in one piece of memory; undefined until somebody fills it, equal only to itself."""

    number: int
    first: Projection
    """Query, key and value; or gate and up."""
    second: Projection
    """The output of attention; or down."""
    places: Mapping[str, Place]
    """For every tensor of the block."""

    @property
    def layer(self) -> int:
        """The layer that it belongs to."""
        return self.number // 2

    @property
    def is_attention(self) -> bool:
        """Whether it is the layer's attention, not its feed-forward block."""
        return self.number % 2 == 0


@dataclass(frozen=True, slots=True, eq=False)
class VocabularyMatrix:
    """A matrix with a row for each id: the embedding, the head, or both in one."""

    matrix: DeviceMatrix
    places: Mapping[str, Place]
    """For its one tensor."""

    @property
    def projection(self) -> Projection:
        """As what the last hidden states are multiplied with."""
        return Projection((self.matrix,))


@dataclass(frozen=True, slots=True)
class LayerVectors:
    """The norms of one layer, f32; None where the architecture has none."""

    attn_norm: Array
    attn_q_norm: Array | None
    attn_k_norm: Array | None
    post_attention_norm: Array | None
    ffn_norm: Array
    post_ffw_norm: Array | None


@dataclass(frozen=True, slots=True)
class Vectors:
    """All norms of a model: they are small, and always on the GPU."""

    layers: tuple[LayerVectors, ...]
    output_norm: Array


@dataclass(slots=True, eq=False)
class DeviceWeights:
    """What of a model is on the GPU to stay; blocks come and go, the other matrices too."""

    vectors: Vectors
    blocks: dict[int, BlockMatrices]
    """By number."""
    head: VocabularyMatrix | None
    embedding: VocabularyMatrix | None
    """The head itself where the two are one matrix."""

    @property
    def places(self) -> dict[str, Place]:
        """For every tensor that is here."""
        holders = (*self.blocks.values(), self.head, self.embedding)
        return {name: place for each in holders if each is not None for name, place in each.places.items()}


def number_of(block: Block) -> int:
    """The number of a layer's block."""
    assert block.layer is not None, "embedding and head are no layer blocks"
    return 2 * block.layer + (block.kind is BlockKind.FEED_FORWARD)


def matrix_specs(weights: ModelWeights, config: ModelConfig) -> Iterator[MatrixSpec]:
    """Every matrix that the whole model has on the GPU, in order of use."""
    yield _vocabulary_spec(weights, _EMBEDDING)
    for number in range(2 * config.n_layers):
        first, second = block_specs(weights, number)
        yield from first
        yield from second
    if not config.tied_head:
        yield _vocabulary_spec(weights, _OUTPUT)


def block_specs(weights: ModelWeights, number: int) -> BlockSpecs:
    """The matrices of a block."""
    layer, is_feed_forward = divmod(number, 2)
    first, second = (
        _stacked(weights, [f"blk.{layer}.{name}.weight" for name in names])
        for names in (_FEED_FORWARD if is_feed_forward else _ATTENTION)
    )
    return BlockSpecs(first, second)


def head_spec(weights: ModelWeights, config: ModelConfig) -> MatrixSpec:
    """The matrix of the output projection."""
    return _vocabulary_spec(weights, _head_name(config))


def block_bytes(weights: ModelWeights, number: int) -> int:
    """What a block takes on the GPU, a multiple of 256."""
    return sum(spec.n_bytes for specs in block_specs(weights, number) for spec in specs)


def head_bytes(weights: ModelWeights, config: ModelConfig) -> int:
    """What the output projection takes on the GPU, a multiple of 256."""
    return head_spec(weights, config).n_bytes


def embedding_bytes(weights: ModelWeights) -> int:
    """The same for the embedding."""
    return _vocabulary_spec(weights, _EMBEDDING).n_bytes


def allocate_weights(
    device: Device,
    weights: ModelWeights,
    config: ModelConfig,
    numbers: Iterable[int],
    *,
    head: bool,
    embedding: bool,
) -> DeviceWeights:
    """Upload the vectors, and reserve memory for these blocks, and for head and embedding if wanted.

    Where the two are one matrix `head` is for both. Raises what the device raises.
    """
    vectors = upload_vectors(device, weights, config)
    blocks = {number: allocate_block(device, weights, number) for number in sorted(numbers)}
    projection = allocate_head(device, weights, config) if head else None
    if config.tied_head:
        return DeviceWeights(vectors, blocks, projection, projection)
    table = allocate_embedding(device, weights) if embedding else None
    return DeviceWeights(vectors, blocks, projection, table)


def upload_vectors(device: Device, weights: ModelWeights, config: ModelConfig) -> Vectors:
    """Copy all norms to the GPU. Raises DeviceMemoryError."""

    def vector(name: str) -> Array | None:
        return device.upload(weights[name].data.view(np.float32)) if name in weights else None

    def required(name: str) -> Array:
        uploaded = vector(name)
        assert uploaded is not None, "ModelWeights checked that it is there"
        return uploaded

    def layer(block: str) -> LayerVectors:
        return LayerVectors(
            attn_norm=required(f"{block}.attn_norm.weight"),
            attn_q_norm=vector(f"{block}.attn_q_norm.weight"),
            attn_k_norm=vector(f"{block}.attn_k_norm.weight"),
            post_attention_norm=vector(f"{block}.post_attention_norm.weight"),
            ffn_norm=required(f"{block}.ffn_norm.weight"),
            post_ffw_norm=vector(f"{block}.post_ffw_norm.weight"),
        )

    layers = tuple(layer(f"blk.{index}") for index in range(config.n_layers))
    return Vectors(layers, required("output_norm.weight"))


def allocate_block(device: Device, weights: ModelWeights, number: int) -> BlockMatrices:
    """A block in memory of its own. Raises DeviceMemoryError, ValueError for shapes that no kernel takes."""
    return block_in(device.empty(block_bytes(weights, number), np.uint8), weights, number)


def block_in(memory: Array, weights: ModelWeights, number: int) -> BlockMatrices:
    """A block at the beginning of `memory`, uint8, which has room for it and starts at a multiple of 256.

    Raises ValueError for shapes that no kernel takes.
    """
    specs, places = block_specs(weights, number), dict[str, Place]()
    first, end = _projection(memory, 0, specs.first, weights, places)
    second, _ = _projection(memory, end, specs.second, weights, places)
    return BlockMatrices(number, first, second, places)


def allocate_head(device: Device, weights: ModelWeights, config: ModelConfig) -> VocabularyMatrix:
    """The output projection. Raises as `allocate_block`."""
    return _allocate_vocabulary(device, weights, _head_name(config))


def allocate_embedding(device: Device, weights: ModelWeights) -> VocabularyMatrix:
    """The embedding of a model whose head is another matrix. Raises as `allocate_block`."""
    return _allocate_vocabulary(device, weights, _EMBEDDING)


_ATTENTION = (("attn_q", "attn_k", "attn_v"), ("attn_output",))
_FEED_FORWARD = (("ffn_gate", "ffn_up"), ("ffn_down",))
"""Of each kind of block, the tensors that are multiplied with the same input."""


def _stacked(weights: ModelWeights, tensors: Sequence[str]) -> tuple[MatrixSpec, ...]:
    """Neighbours of one type as one matrix."""
    specs: list[MatrixSpec] = []
    for name in tensors:
        _, (n_rows, n_columns), quant_type = weights[name]
        if specs and specs[-1].quant_type == quant_type:
            last = specs[-1]
            specs[-1] = last._replace(tensors=(*last.tensors, name), n_rows=last.n_rows + n_rows)
        else:
            specs.append(MatrixSpec((name,), quant_type, n_rows, n_columns))
    return tuple(specs)


def _vocabulary_spec(weights: ModelWeights, name: str) -> MatrixSpec:
    (spec,) = _stacked(weights, [name])
    return spec


def _head_name(config: ModelConfig) -> str:
    """The tensor of the output projection."""
    return _EMBEDDING if config.tied_head else _OUTPUT


def _allocate_vocabulary(device: Device, weights: ModelWeights, name: str) -> VocabularyMatrix:
    spec, places = _vocabulary_spec(weights, name), dict[str, Place]()
    projection, _ = _projection(device.empty(spec.n_bytes, np.uint8), 0, [spec], weights, places)
    return VocabularyMatrix(projection.matrices[0], places)


def _projection(
    memory: Array, start: int, specs: Sequence[MatrixSpec], weights: ModelWeights, places: dict[str, Place]
) -> tuple[Projection, int]:
    """Matrices in `memory` from byte `start` on, and where they end; notes where their tensors go."""
    matrices = []
    for spec in specs:
        end = start + spec.n_bytes
        matrix = matrix_in(memory[start:end], spec.quant_type, spec.n_rows, spec.n_columns)
        first_row = 0
        for name in spec.tensors:
            places[name] = Place(matrix, first_row)
            first_row += weights[name].shape[0]
        matrices.append(matrix)
        start = end
    return Projection(tuple(matrices)), start
