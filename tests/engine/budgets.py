"""Memory budgets under which a given share of a model's weights stays in memory."""

from __future__ import annotations

from pathlib import Path

from engine.config import Precision
from engine.gguf import open_gguf
from engine.kv_cache import kv_bytes
from engine.model_config import read_model_config
from engine.requirements import scratch_bytes
from engine.tiers.blocks import BlockKind, slot_bytes_for, weight_blocks
from engine.tiers.budget import Budget
from engine.tiers.planner import least_memory


def memory_beside_weights(path: Path, context: int, chunk: int = 512) -> int:
    """Bytes that loading counts for cache and computing."""
    config = read_model_config(open_gguf(path))
    return scratch_bytes(config, min(chunk, context)) + kv_bytes(config, context, Precision.FAST)


def least_for_weights(path: Path) -> int:
    """Bytes from which on the model's weights can be streamed."""
    gguf = open_gguf(path)
    return least_memory(weight_blocks(gguf, read_model_config(gguf)))


def room_for(path: Path, share: float) -> int:
    """Bytes for weights: 0 is the least that works, 1 holds all; below 1 something is always streamed."""
    gguf = open_gguf(path)
    blocks = weight_blocks(gguf, read_model_config(gguf))
    kept = [block for block in blocks if share >= 1 or block.kind is not BlockKind.EMBEDDING]
    least = least_memory(blocks)
    return least + int((sum(map(slot_bytes_for, kept)) - least) * share)


def budget_for(path: Path, context: int, share: float) -> Budget:
    """The same for a whole model."""
    return Budget(memory_beside_weights(path, context) + room_for(path, share))
