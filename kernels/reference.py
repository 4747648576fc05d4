"""Every operation in NumPy, written to be checked by eye: the oracle of the native kernels.

Knows arrays and quant blocks; does not know models. Also what serves where no compiler exists, so no
operation expands a whole matrix at once. Letters: T tokens, H heads, K KV heads, E head dim, S positions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.quant_types import QuantType, row_bytes
from kernels.reference_quants import Bytes, Floats, dequantize

_EXPANDED_ELEMENTS = 1 << 22
"""How much of a matrix is expanded to float32 at a time: 16 MiB."""


def embedding(token_ids: npt.NDArray[np.int32], data: Bytes, quant_type: QuantType, n_columns: int) -> Floats:
    """Rows of a quantised matrix: ids [T] -> [T, n_columns]."""
    rows = data.reshape(-1, row_bytes(quant_type, n_columns))[token_ids]
    return dequantize(rows.reshape(-1), quant_type).reshape(len(token_ids), n_columns)


def matmul(x: Floats, data: Bytes, quant_type: QuantType) -> Floats:
    """x [T, columns] times the transpose of a quantised matrix [rows, columns] -> [T, rows]."""
    n_tokens, n_columns = x.shape
    rows = data.reshape(-1, row_bytes(quant_type, n_columns))
    out = np.empty((n_tokens, len(rows)), np.float32)
    step = max(1, _EXPANDED_ELEMENTS // n_columns)
    for first in range(0, len(rows), step):
        part = dequantize(rows[first : first + step].reshape(-1), quant_type).reshape(-1, n_columns)
        np.matmul(x, part.T, out=out[:, first : first + step])
    return out


def rmsnorm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x / sqrt(mean(x^2) + eps) * weight along the last axis."""
    mean_square: Floats = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    normed: Floats = x / np.sqrt(mean_square + np.float32(eps))
    return normed * weight


def rope(x: Floats, cos: Floats, sin: Floats, *, neox: bool) -> Floats:
    """Rotate the first 2P elements of every head: x [T, heads, E], cos and sin [T, P] -> [T, heads, E].

    Pairs are elements i and i + P when `neox`, otherwise 2i and 2i + 1.
    """
    n_pairs = cos.shape[1]
    first, second = (
        (slice(0, n_pairs), slice(n_pairs, 2 * n_pairs))
        if neox
        else (slice(0, 2 * n_pairs, 2), slice(1, 2 * n_pairs, 2))
    )
    a, b = x[..., first], x[..., second]
    cos, sin = cos[:, None, :], sin[:, None, :]
    out = x.copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


def softmax(x: Floats) -> Floats:
    """Along the last axis; -inf has probability 0."""
    weights: Floats = np.exp(x - np.max(x, axis=-1, keepdims=True))
    weights /= np.sum(weights, axis=-1, keepdims=True, dtype=np.float32)
    return weights


def attention(
    queries: Floats,
    keys: npt.NDArray[np.floating],
    values: npt.NDArray[np.floating],
    start_pos: int,
    window: int,
    scale: float,
) -> Floats:
    """Causal attention of queries [T, H, E] at start_pos onwards to keys and values [K, S, E] -> [T, H, E].

    H / K neighbouring query heads share a KV head. A query at position p sees positions p - window + 1 to p,
    or all up to p when `window` is 0. S is start_pos + T.
    """
    n_tokens, n_heads, head_dim = queries.shape
    n_kv_heads, n_positions, _ = keys.shape
    grouped = queries.reshape(n_tokens, n_kv_heads, n_heads // n_kv_heads, head_dim)
    distance = start_pos + np.arange(n_tokens)[:, None] - np.arange(n_positions)[None, :]
    hidden = (distance < 0) | (distance >= window) if window else distance < 0
    out = np.empty_like(grouped)
    for head in range(n_kv_heads):
        scores = np.einsum("tge,se->gts", grouped[:, head], keys[head].astype(np.float32), optimize=True)
        weights = softmax(np.where(hidden, np.float32(-np.inf), scores * np.float32(scale)))
        out[:, head] = np.einsum("gts,se->tge", weights, values[head].astype(np.float32), optimize=True)
    return out.reshape(n_tokens, n_heads, head_dim)


def swiglu(gate: Floats, up: Floats) -> Floats:
    """silu(gate) * up."""
    # exp of a large -gate overflows to inf, and gate / inf is the right 0.
    with np.errstate(over="ignore"):
        activated: Floats = gate / (1 + np.exp(-gate))
    return activated * up


def geglu(gate: Floats, up: Floats) -> Floats:
    """gelu(gate) * up, with the tanh approximation of GELU."""
    inner = np.float32(0.7978845608028654) * (gate + np.float32(0.044715) * gate**3)  # sqrt(2 / pi)
    activated: Floats = np.float32(0.5) * gate * (1 + np.tanh(inner))
    return activated * up


def round_activations(x: Floats) -> Floats:
    """What the fast matrix product sees of x [T, columns]: groups of 16 rounded to 255 steps of their own."""
    groups = x.reshape(len(x), -1, 16)
    top = np.max(np.abs(groups), axis=-1, keepdims=True)
    steps = np.where(top > 0, np.float32(127) / np.where(top > 0, top, 1), 0).astype(np.float32)
    rounded: Floats = np.rint(groups * steps) * (top / np.float32(127))
    return rounded.reshape(x.shape)


class Rounded15(NamedTuple):
    """Activations [T, K] rounded to 15 bits in chunks of 128, K padded with zeros to whole ones."""

    q: npt.NDArray[np.int8]
    """[T, 4, padded / 2]: two planes of high bytes, two of low ones, in the order of rounding.cuh."""
    d: Floats
    """[T, padded / 128]: the step of a chunk; NaN where a value is not finite."""
    s: Floats
    """[T, padded / 16]: the step times the sum of 16 values."""


def round_activations_15(x: Floats) -> Floats:
    """What the fast matrix product of a GPU sees of x [T, K]: chunks of 128 in 2 * 16256 + 1 steps."""
    steps, rounded = _rounded_15(x)
    values: Floats = rounded * steps[..., None]
    return values.reshape(len(x), -1)[:, : x.shape[1]]


def planes_of_15(x: Floats) -> Rounded15:
    """The same as it lies in video memory."""
    steps, rounded = _rounded_15(x)
    n_tokens = len(x)
    whole = rounded.astype(np.int32)
    high = (whole + 64) >> 7
    bytes_of = np.stack([high, whole - 128 * high], axis=1).astype(np.int8)
    # Element 32b + 16h + 4t + i of chunk c is byte i of word 2b + h of lane t; words 4j.. are in plane j.
    words = bytes_of.reshape(n_tokens, 2, -1, 8, 4, 4)  # [T, high or low, c, word, t, i]
    planes = words.reshape(n_tokens, 2, -1, 2, 4, 4, 4).transpose(
        0, 1, 3, 2, 5, 4, 6
    )  # [T, ., j, c, t, word, i]
    sums = whole.reshape(n_tokens, -1, 2, 16).sum(axis=-1).astype(np.float32)
    return Rounded15(
        np.ascontiguousarray(planes).reshape(n_tokens, 4, -1),
        steps,
        (steps[..., None] * sums.reshape(n_tokens, -1, 8)).reshape(n_tokens, -1),
    )


def _rounded_15(x: Floats) -> tuple[Floats, Floats]:
    """Steps [T, chunks] and whole numbers [T, chunks, 128] of padded rows."""
    chunks = np.pad(x, ((0, 0), (0, -x.shape[1] % 128))).reshape(len(x), -1, 128)
    top = np.max(np.abs(chunks), axis=-1)
    finite = np.isfinite(top)
    kept = finite & (top >= np.float32(1e-30))  # below, 16256 / top would soon overflow
    safe = np.where(kept, top, 1).astype(np.float32)
    steps = np.where(kept, safe * np.float32(1 / 16256), np.where(finite, 0, np.nan)).astype(np.float32)
    per_step = np.where(kept, np.float32(16256) / safe, 0).astype(np.float32)
    rounded: Floats = np.rint(np.where(kept[..., None], chunks, 0) * per_step[..., None])
    return steps, rounded


def half_rows(x: Floats) -> tuple[npt.NDArray[np.float16], Floats]:
    """x [T, K] as half floats times powers of two, and what to multiply each row with to undo that, [T].

    The largest of a row comes to lie in [2048, 4096). A row below 2^-115 becomes zeros; one that is not
    finite gets the factor NaN.
    """
    top = np.max(np.abs(x), axis=-1)
    finite = np.isfinite(top)
    tiny = ~finite | (top < np.float32(2.0**-115))
    exponents = np.where(tiny, 0, 12 - np.frexp(np.where(finite, top, 1))[1])
    factors = np.where(finite, np.ldexp(np.float32(1), -exponents), np.nan).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ldexp(x, exponents[:, None]).astype(np.float16), factors
