"""Blocks and sizes of known models, and rates of a known machine, for whatever plans: no file is needed."""

from __future__ import annotations

from collections.abc import Sequence

from engine.tiers.blocks import Block, BlockKind, Piece
from engine.tiers.rates import LinkRates, Rates
from engine.tiers.tier_plan import GpuSizes
from kernels.quant_types import QuantType, row_bytes

RATES = Rates(
    dram=134e9,
    gemv={QuantType.Q4_K: 120e9, QuantType.Q6_K: 120e9},
    disk=2e9,
    cpu_flops=1.5e12,
    link=LinkRates(
        vram=3.3e12,
        h2d=55.4e9,
        h2d_beside_cpu=46e9,
        cpu_beside_h2d=0.9,
        matrix_flops=4e14,
        crossing_s=60e-6,
    ),
)
"""A server with 16 cores, PCIe 5 and an H200."""
MATRICES = tuple[tuple[str, int, int, QuantType], ...]


def shaped(
    n_layers: int, hidden: int, ffn: int, kv: int, vocab: int, *, tied: bool = False
) -> tuple[Block, ...]:
    """Blocks of a Llama in Q4_K_M: half of the values and of the second feed-forward products in 6 bits."""
    cuts: list[tuple[BlockKind, int | None, MATRICES, int]] = []
    four, six = QuantType.Q4_K, QuantType.Q6_K
    if not tied:
        cuts.append((BlockKind.EMBEDDING, None, (("token_embd", vocab, hidden, four),), 0))
    for layer in range(n_layers):
        better = six if layer % 2 else four
        attention = ("q", hidden, hidden, four), ("k", kv, hidden, four), ("v", kv, hidden, better)
        cuts.append((BlockKind.ATTENTION, layer, (*attention, ("output", hidden, hidden, four)), 0))
        feed_forward = ("gate", ffn, hidden, four), ("up", ffn, hidden, four), ("down", hidden, ffn, better)
        cuts.append((BlockKind.FEED_FORWARD, layer, feed_forward, 0))
    for number in range(2):
        cuts.append((BlockKind.HEAD, None, (("output", vocab // 2, hidden, six),), number))
    return tuple(
        Block(index, kind, layer, tuple(_piece(*matrix) for matrix in matrices), number)
        for index, (kind, layer, matrices, number) in enumerate(cuts)
    )


def _piece(tensor: str, n_rows: int, n_columns: int, quant_type: QuantType) -> Piece:
    n_bytes = n_rows * row_bytes(quant_type, n_columns)
    return Piece(tensor, 0, 0, n_bytes, quant_type, 0, n_rows, n_columns)


def sizes_of(blocks: Sequence[Block], kv_row: int, context: int, fixed: int = 900_000_000) -> GpuSizes:
    """GPU memory of such blocks; `kv_row` elements of keys and of values for each position and layer."""
    rounded = {block.index: -(-block.n_bytes // (2 << 20)) * (2 << 20) for block in blocks}
    embedding = [block.index for block in blocks if block.kind is BlockKind.EMBEDDING]
    return GpuSizes(
        block_bytes=rounded,
        slot_bytes={block.index: rounded[block.index] for block in blocks if block.layer is not None},
        kv_layer_bytes=context * kv_row * 2 * 2,
        host_kv_layer_bytes=context * kv_row * 2 * 2,
        host_fixed_bytes={chunk: 1_000_000 + 500 * chunk for chunk in (512, 1024, 2048)},
        host_rows_bytes={512: 0, 1024: 250_000_000, 2048: 700_000_000},
        fixed_bytes={512: fixed, 1024: fixed + 250_000_000, 2048: fixed + 750_000_000},
        spare_bytes={512: fixed // 4, 1024: fixed // 2, 2048: fixed},
        head=tuple(block.index for block in blocks if block.kind is BlockKind.HEAD),
        embedding=embedding[0] if embedding else None,
    )


LLAMA_70B = shaped(80, 8192, 28672, 1024, 128256)
SIZES_70B = sizes_of(LLAMA_70B, 1024, 8192)
LLAMA_8B = shaped(32, 4096, 14336, 1024, 128256)
SIZES_8B = sizes_of(LLAMA_8B, 1024, 8192)
TIED = shaped(4, 512, 1024, 128, 4096, tied=True)
SIZES_TIED = sizes_of(TIED, 128, 1024)
