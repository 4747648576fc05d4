"""A model's matrices cut into weight blocks: the units in which weights have a tier, move and are read.

Knows which tensors belong together, in which order a pass uses them and where their bytes lie; does not know
budgets, memory or disks, and reads no weights. Vectors (norms) are always in memory and in no block. The
planner chooses among blocks; the streamer and the store walk them in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from engine.gguf import GGUFFile
from engine.model_config import ModelConfig
from kernels.quant_types import QuantType, row_bytes

_PAGE = 4096
"""The unit of reads around the page cache."""
_PANEL_ROWS = 16
"""Rows that the kernels take together: a cut between two panels costs them nothing (kernels/cpu/matmul.h)."""


class BlockKind(StrEnum):
    """What a block is for."""

    EMBEDDING = "embedding"
    """Looked up by single rows: a pass never needs it whole."""
    ATTENTION = "attention"
    FEED_FORWARD = "feed_forward"
    HEAD = "head"
    """Some rows of the output projection."""


class Piece(NamedTuple):
    """Rows of one matrix as they lie in the file."""

    tensor: str
    """GGUF name."""
    part: int
    """Index of the split file."""
    offset: int
    """First byte in that file."""
    n_bytes: int
    quant_type: QuantType
    first_row: int
    n_rows: int
    n_columns: int


@dataclass(frozen=True, slots=True)
class Block:
    """Matrices that are used together and have one tier."""

    index: int
    """Position in the pass, and in the tuple of all blocks."""
    kind: BlockKind
    layer: int | None
    """For attention and feed-forward."""
    pieces: tuple[Piece, ...]
    number: int = 0
    """Which of the head's blocks, from 0."""

    @property
    def n_bytes(self) -> int:
        """Bytes of its weights."""
        return sum(piece.n_bytes for piece in self.pieces)

    @property
    def main_type(self) -> QuantType:
        """The quant type that holds most of its bytes."""
        sizes: Counter[QuantType] = Counter()
        for piece in self.pieces:
            sizes[piece.quant_type] += piece.n_bytes
        return sizes.most_common(1)[0][0]

    @property
    def name(self) -> str:
        """For people: "blk.3 attention", "embedding", "head 2"."""
        if self.layer is not None:
            return f"blk.{self.layer} {self.kind}"
        return f"{self.kind} {self.number}" if self.kind is BlockKind.HEAD else str(self.kind)


def slot_bytes_for(block: Block) -> int:
    """Memory that the block takes at most, in a slot of the staging ring or to stay: whole pages.

    Every piece is read with the whole pages around it, and a tensor may begin anywhere in a page.
    """
    return sum((-(-piece.n_bytes // _PAGE) + 1) * _PAGE for piece in block.pieces)


def weight_blocks(gguf: GGUFFile, config: ModelConfig) -> tuple[Block, ...]:
    """All blocks in order of use: embedding (unless the head is the same matrix), layers, head.

    The head is cut into blocks of about the size of a layer's largest. The file must have passed the checks
    of `ModelWeights`.
    """
    cuts: list[tuple[BlockKind, int | None, tuple[Piece, ...], int]] = []
    if not config.tied_head:
        cuts.append((BlockKind.EMBEDDING, None, (_matrix(gguf, "token_embd.weight"),), 0))
    for layer in range(config.n_layers):
        for kind, names in _LAYER_BLOCKS.items():
            pieces = tuple(_matrix(gguf, f"blk.{layer}.{name}.weight") for name in names)
            cuts.append((kind, layer, pieces, 0))
    largest = max(sum(piece.n_bytes for piece in pieces) for _, layer, pieces, _ in cuts if layer is not None)
    head = _matrix(gguf, "token_embd.weight" if config.tied_head else "output.weight")
    cuts += [(BlockKind.HEAD, None, (piece,), i) for i, piece in enumerate(_cut(head, largest))]
    return tuple(Block(index, *cut) for index, cut in enumerate(cuts))


def in_order_of_need(blocks: Sequence[Block]) -> list[Block]:
    """Layers and head as passes use them, and then an embedding of its own: of it single rows are enough."""
    return sorted(blocks, key=lambda block: block.kind is BlockKind.EMBEDDING)


_LAYER_BLOCKS = {
    BlockKind.ATTENTION: ("attn_q", "attn_k", "attn_v", "attn_output"),
    BlockKind.FEED_FORWARD: ("ffn_gate", "ffn_up", "ffn_down"),
}
"""A layer's blocks and their matrices, in order of use."""


def _matrix(gguf: GGUFFile, name: str) -> Piece:
    info = gguf.tensors[name]
    return Piece(name, info.part, info.offset, info.n_bytes, info.quant_type, 0, *info.shape)


def _cut(matrix: Piece, target_bytes: int) -> Iterator[Piece]:
    """Cut by rows into whole panels, as equal as they allow, of about `target_bytes` each."""
    one_row = row_bytes(matrix.quant_type, matrix.n_columns)
    n_cuts = max(1, round(matrix.n_bytes / target_bytes))
    rows = -(-matrix.n_rows // (n_cuts * _PANEL_ROWS)) * _PANEL_ROWS
    for first in range(0, matrix.n_rows, rows):
        n_rows = min(rows, matrix.n_rows - first)
        yield matrix._replace(
            offset=matrix.offset + first * one_row,
            n_bytes=n_rows * one_row,
            first_row=first,
            n_rows=n_rows,
        )
