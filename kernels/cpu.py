"""The typed door to the C extension: the operations of `reference.py` under the same names, and whole models.

Knows shapes, types and which instruction set computes; does not know GGUF or architectures. Where the
extension was not built, importing this module raises ImportError and `reference` serves instead.
Letters: T tokens, H heads, K KV heads, E head dim, S positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels import _cpu
from kernels.quant_types import QuantType, row_bytes

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

TILE = 64
"""Positions of one tile of the KV cache (cpu.h)."""
LAYER_TENSORS = (
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_q_norm",
    "attn_k_norm",
    "attn_output",
    "post_attention_norm",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "post_ffw_norm",
)
"""A layer's tensors in the order of `enum layer_tensor` (forward.h)."""


def instruction_sets() -> list[str]:
    """Names of the instruction sets that this processor runs, best first."""
    return list(_cpu.sets())


def _dense(x: Floats) -> Floats:
    return np.ascontiguousarray(x, np.float32)


def matmul(
    x: Floats,
    data: Bytes,
    quant_type: QuantType,
    *,
    float_precision: bool = False,
    threads: int = 1,
    instruction_set: str | None = None,
) -> Floats:
    """x [T, columns] times the transpose of a quantised matrix [rows, columns] -> [T, rows].

    Unless `float_precision`, x is rounded to 8 bits in groups of 16 for quantised types. Raises ValueError
    when the bytes are no whole rows.
    """
    n_tokens, n_columns = x.shape
    rows = _rows(data, quant_type, n_columns)
    out = np.empty((n_tokens, rows), np.float32)
    _cpu.matmul(
        instruction_set, threads, quant_type, rows, n_columns, n_tokens, float_precision, data, _dense(x), out
    )
    return out


def embedding(
    token_ids: npt.NDArray[np.int32],
    data: Bytes,
    quant_type: QuantType,
    n_columns: int,
    *,
    scale: float = 1.0,
    instruction_set: str | None = None,
) -> Floats:
    """Rows of a quantised matrix times `scale`: ids [T] -> [T, n_columns]. Raises ValueError for a bad id."""
    out = np.empty((len(token_ids), n_columns), np.float32)
    rows = _rows(data, quant_type, n_columns)
    ids = np.ascontiguousarray(token_ids, np.int32)
    _cpu.embedding(instruction_set, quant_type, rows, n_columns, scale, data, ids, out)
    return out


def _rows(data: Bytes, quant_type: QuantType, n_columns: int) -> int:
    return data.size // row_bytes(quant_type, n_columns)


_NOTHING = np.empty(0, np.float32)


def rmsnorm(x: Floats, weight: Floats, eps: float, *, instruction_set: str | None = None) -> Floats:
    """x / sqrt(mean(x^2) + eps) * weight along the last axis."""
    x = _dense(x)
    out = np.empty_like(x)
    _cpu.rows(instruction_set, "rmsnorm", x, _dense(weight), x.shape[-1], eps, out)
    return out


def softmax(x: Floats, *, instruction_set: str | None = None) -> Floats:
    """Along the last axis; -inf has probability 0."""
    x = _dense(x)
    out = np.empty_like(x)
    _cpu.rows(instruction_set, "softmax", x, _NOTHING, x.shape[-1], 0.0, out)
    return out


def swiglu(gate: Floats, up: Floats, *, instruction_set: str | None = None) -> Floats:
    """silu(gate) * up."""
    gate = _dense(gate)
    out = np.empty_like(gate)
    _cpu.rows(instruction_set, "swiglu", gate, _dense(up), gate.shape[-1], 0.0, out)
    return out


def geglu(gate: Floats, up: Floats, *, instruction_set: str | None = None) -> Floats:
    """gelu(gate) * up, with the tanh approximation of GELU."""
    gate = _dense(gate)
    out = np.empty_like(gate)
    _cpu.rows(instruction_set, "geglu", gate, _dense(up), gate.shape[-1], 0.0, out)
    return out


def rope(x: Floats, cos: Floats, sin: Floats, *, neox: bool, instruction_set: str | None = None) -> Floats:
    """Rotate the first 2P elements of every head: x [T, heads, E], cos and sin [T, P] -> [T, heads, E]."""
    out = np.array(x, np.float32, order="C")
    _, heads, head_dim = x.shape
    _cpu.rope(instruction_set, out, _dense(cos), _dense(sin), heads, head_dim, cos.shape[1], neox)
    return out


def attention(
    queries: Floats,
    keys: Floats,
    values: Floats,
    start_pos: int,
    window: int,
    scale: float,
    *,
    half_cache: bool = False,
    threads: int = 1,
    instruction_set: str | None = None,
) -> Floats:
    """Causal attention of queries [T, H, E] at start_pos onwards to keys and values [K, S, E] -> [T, H, E].

    A query at position p sees positions p - window + 1 to p, or all up to p when `window` is 0.
    `half_cache` keeps keys and values in float16.
    """
    _, n_heads, head_dim = queries.shape
    n_kv_heads, n_positions, _ = keys.shape
    out = np.empty_like(queries)
    cache = kv_arrays(1, n_kv_heads, n_positions, head_dim, half=half_cache)
    _cpu.attention(
        instruction_set,
        threads,
        _dense(queries * np.float32(scale)),
        _dense(keys.swapaxes(0, 1)),
        _dense(values.swapaxes(0, 1)),
        *cache,
        n_kv_heads,
        n_heads // n_kv_heads,
        head_dim,
        start_pos,
        window,
        half_cache,
        out,
    )
    return out


def kv_arrays(
    n_layers: int, n_kv_heads: int, n_positions: int, head_dim: int, *, half: bool
) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    """Zeroed keys [layers, K, tiles, E', TILE] and values [layers, K, tiles, TILE, E'].

    E' is head_dim rounded up to a multiple of 16.
    """
    tiles, padded = -(-n_positions // TILE), -(-head_dim // 16) * 16
    dtype = np.dtype(np.float16 if half else np.float32)
    keys = np.zeros((n_layers, n_kv_heads, tiles, padded, TILE), dtype)
    return keys, np.zeros((n_layers, n_kv_heads, tiles, TILE, padded), dtype)


class Matrix(NamedTuple):
    """One tensor in ggml's layout; a vector has one row."""

    data: Bytes | None
    """None for a matrix that is placed later."""
    quant_type: QuantType
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a native model is built for, in the order of `struct sizes` (forward.h)."""

    n_layers: int
    hidden_size: int
    ffn_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rope_dim: int
    vocab_size: int
    max_tokens: int
    """Rows of one call at most."""
    threads: int
    neox: bool
    gelu: bool
    float_precision: bool


class NativeModel:
    """A decoder's weight blocks and head, each run of them one native call.

    Block 2i is the attention of layer i, block 2i + 1 its feed-forward. Matrices may come and go between
    calls (`place`); the memory of those that are placed is kept alive.
    """

    def __init__(
        self,
        sizes: Sizes,
        eps: float,
        query_scale: float,
        layers: Sequence[Sequence[Matrix | None]],
        windows: Sequence[int],
        output_norm: Matrix,
        *,
        instruction_set: str | None = None,
    ) -> None:
        """Build from each layer's tensors in the order of LAYER_TENSORS. Raises MemoryError, ValueError.

        A matrix without data has to be placed before its block is computed.
        """
        self._sizes = sizes
        self._kept: dict[tuple[int, int], Bytes] = {
            (layer, tensor): m.data
            for layer, tensors in enumerate(layers)
            for tensor, m in enumerate(tensors)
            if m and m.data is not None
        }
        self._norm = output_norm.data
        self._model = _cpu.model(
            instruction_set,
            np.array(astuple(sizes), np.int64),
            eps,
            query_scale,
            np.array([[_described(m) for m in layer] for layer in layers], np.int64),
            np.array(windows, np.int64),
            np.array(_described(output_norm), np.int64),
        )

    def place(self, layer: int, tensor: int, data: Bytes | None) -> None:
        """Say where a matrix lies from now on; None takes it away. `tensor` counts in LAYER_TENSORS."""
        _cpu.place(self._model, layer, tensor, 0 if data is None else data.ctypes.data)
        if data is None:
            self._kept.pop((layer, tensor), None)
        else:
            self._kept[layer, tensor] = data

    def blocks(
        self,
        first: int,
        last: int,
        x: Floats,
        start_pos: int,
        rotation: tuple[Floats, Floats],
        local_rotation: tuple[Floats, Floats],
        keys: npt.NDArray[np.floating],
        values: npt.NDArray[np.floating],
        cancel: npt.NDArray[np.int32],
    ) -> bool:
        """Run blocks first..last-1 over x [T, D] in place; False when `cancel` was set meanwhile.

        `rotation` is cosines and sines [T, rope_dim / 2]; the local one serves layers that have a window.
        Raises ValueError when a matrix has not been placed.
        """
        return bool(
            _cpu.blocks(
                self._model,
                first,
                last,
                x,
                start_pos,
                *rotation,
                *local_rotation,
                keys,
                values,
                keys.shape[2],
                cancel,
            )
        )

    def head(self, x: Floats, data: Bytes, quant_type: QuantType, first_row: int, logits: Floats) -> None:
        """Final norm of rows x [R, D], times some rows of the output matrix, into logits [R, V].

        `data` holds whole rows from `first_row` on; R is at most max_tokens. Raises ValueError.
        """
        _cpu.head(self._model, _dense(x), quant_type, data, first_row, logits)


def read_bytes(data: Bytes, threads: int) -> None:
    """Read every byte once on so many threads, the yardstick of memory; whole words of 8, or ValueError."""
    _cpu.read(threads, data)


def _described(matrix: Matrix | None) -> tuple[int, int, int, int]:
    if matrix is None:
        return 0, 0, 0, 0
    address = 0 if matrix.data is None else matrix.data.ctypes.data
    return address, matrix.quant_type, matrix.rows, matrix.columns
