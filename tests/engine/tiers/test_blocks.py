"""Every matrix of a model is in exactly one place of exactly one block, in the order of a pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.gguf import GGUFFile, open_gguf
from engine.model_config import read_model_config
from engine.tiers.blocks import Block, BlockKind, slot_bytes_for, weight_blocks
from kernels.quant_types import QuantType, row_bytes
from tests.tiny_gguf import write_tiny_model


def blocks_of(path: Path, **options: object) -> tuple[GGUFFile, tuple[Block, ...]]:
    gguf = open_gguf(write_tiny_model(path / "m.gguf", **options))  # type: ignore[arg-type]
    return gguf, weight_blocks(gguf, read_model_config(gguf))


MODELS: list[dict[str, object]] = [
    {},
    {"tied": True},
    {"architecture": "gemma3", "quant_type": QuantType.Q4_K, "tied": True, "vocab_size": 9001},
    {"quant_type": QuantType.Q8_0, "vocab_size": 9001, "split_max_tensors": 5},
]


@pytest.mark.parametrize("options", MODELS)
def test_pieces_are_the_bytes_of_every_matrix_once(tmp_path: Path, options: dict[str, object]) -> None:
    gguf, blocks = blocks_of(tmp_path, **options)
    found: dict[str, bytes] = {}
    next_row: dict[str, int] = {}
    for piece in (piece for block in blocks for piece in block.pieces):
        assert piece.first_row == next_row.get(piece.tensor, 0)
        assert piece.n_bytes == piece.n_rows * row_bytes(piece.quant_type, piece.n_columns)
        next_row[piece.tensor] = piece.first_row + piece.n_rows
        with open(gguf.part_paths[piece.part], "rb") as file:
            file.seek(piece.offset)
            found[piece.tensor] = found.get(piece.tensor, b"") + file.read(piece.n_bytes)
    matrices = {name for name, info in gguf.tensors.items() if len(info.shape) == 2}
    assert found.keys() == matrices
    for name, data in found.items():
        assert data == gguf.tensor_bytes(name).tobytes(), name


@pytest.mark.parametrize("options", MODELS)
def test_blocks_come_in_the_order_of_a_pass(tmp_path: Path, options: dict[str, object]) -> None:
    _, blocks = blocks_of(tmp_path, **options)
    assert [block.index for block in blocks] == list(range(len(blocks)))
    names = [block.name for block in blocks]
    layers = [f"blk.{i} {kind}" for i in range(2) for kind in ("attention", "feed_forward")]
    heads = [f"head {i}" for i in range(len(blocks) - len(layers) - (not options.get("tied")))]
    assert names == ["embedding"] * (not options.get("tied")) + layers + heads


def test_a_large_head_is_cut_into_blocks_like_the_others(tmp_path: Path) -> None:
    _, blocks = blocks_of(tmp_path, quant_type=QuantType.Q8_0, vocab_size=9001)
    heads = [block.pieces[0] for block in blocks if block.kind is BlockKind.HEAD]
    largest = max(block.n_bytes for block in blocks if block.layer is not None)
    assert len(heads) > 2
    assert all(piece.n_rows % 16 == 0 for piece in heads[:-1])
    assert all(largest / 2 < piece.n_bytes < largest * 1.5 for piece in heads)


def test_a_small_head_is_one_block(tmp_path: Path) -> None:
    _, blocks = blocks_of(tmp_path)
    assert [block.kind for block in blocks].count(BlockKind.HEAD) == 1


def test_a_slot_holds_the_pages_around_each_piece(tmp_path: Path) -> None:
    _, blocks = blocks_of(tmp_path)
    for block in blocks:
        pages = sum(
            (piece.offset + piece.n_bytes - 1) // 4096 - piece.offset // 4096 + 1 for piece in block.pieces
        )
        assert pages * 4096 <= slot_bytes_for(block) <= (pages + 2 * len(block.pieces)) * 4096
