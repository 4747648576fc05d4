"""Properties of the NumPy oracles that can be seen without another implementation."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import reference
from kernels.quant_types import QuantType

RNG = np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def raw(matrix: np.ndarray) -> np.ndarray:
    return matrix.reshape(-1).view(np.uint8)


def test_matmul_in_pieces_equals_the_whole_product(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = floats(3, 24), floats(17, 24)
    monkeypatch.setattr(reference, "_EXPANDED_ELEMENTS", 5 * 24)
    np.testing.assert_allclose(
        reference.matmul(x, raw(weight), QuantType.F32), x @ weight.T, rtol=1e-5, atol=1e-5
    )


def test_embedding_picks_rows_in_the_order_asked_for() -> None:
    table = floats(9, 8)
    picked = reference.embedding(np.array([4, 0, 4], np.int32), raw(table), QuantType.F32, 8)
    np.testing.assert_array_equal(picked, table[[4, 0, 4]])


def test_rmsnorm_gives_rows_of_unit_mean_square() -> None:
    normed = reference.rmsnorm(floats(4, 64) * 30, np.ones(64, np.float32), 1e-6)
    np.testing.assert_allclose(np.mean(normed**2, axis=-1), 1, rtol=1e-5)


@pytest.mark.parametrize("neox", [True, False])
def test_rope_keeps_lengths_and_leaves_the_tail_of_a_head_alone(neox: bool) -> None:
    x, angles = floats(5, 2, 16), floats(5, 6)
    rotated = reference.rope(x, np.cos(angles), np.sin(angles), neox=neox)
    np.testing.assert_allclose(np.linalg.norm(rotated, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)
    np.testing.assert_array_equal(rotated[..., 12:], x[..., 12:])


@pytest.mark.parametrize(("neox", "partner"), [(True, 4), (False, 1)])
def test_rope_rotates_the_first_element_towards_its_partner(neox: bool, partner: int) -> None:
    x = np.zeros((1, 1, 8), np.float32)
    x[..., 0] = 1
    quarter = np.full((1, 4), np.pi / 2, np.float32)
    rotated = reference.rope(x, np.cos(quarter), np.sin(quarter), neox=neox)
    assert np.argmax(np.abs(rotated)) == partner


def test_softmax_of_huge_and_hidden_scores_is_finite() -> None:
    weights = reference.softmax(np.array([[1e30, -np.inf, 1e30]], np.float32))
    np.testing.assert_allclose(weights, [[0.5, 0, 0.5]])


@pytest.mark.parametrize("window", [0, 1, 3, 100])
def test_attention_equals_a_loop_over_queries_and_heads(window: int) -> None:
    n_tokens, start_pos, n_heads, n_kv_heads, head_dim = 5, 4, 6, 2, 8
    queries = floats(n_tokens, n_heads, head_dim)
    keys, values = floats(n_kv_heads, 9, head_dim), floats(n_kv_heads, 9, head_dim)
    out = reference.attention(queries, keys, values, start_pos, window, 0.3)
    for token in range(n_tokens):
        position = start_pos + token
        first = max(0, position - window + 1) if window else 0
        for head in range(n_heads):
            seen = slice(first, position + 1)
            scores = np.exp(keys[head // 3, seen] @ queries[token, head] * 0.3)
            expected = scores / scores.sum() @ values[head // 3, seen]
            np.testing.assert_allclose(out[token, head], expected, rtol=1e-4, atol=1e-5)


def test_swiglu_is_right_at_both_ends() -> None:
    gate = np.array([-200.0, 0.0, 1.0, 200.0], np.float32)
    out = reference.swiglu(gate, np.full(4, 2, np.float32))
    np.testing.assert_allclose(out, [0, 0, 2 / (1 + np.exp(-1)), 400], rtol=1e-6, atol=1e-6)


def test_geglu_is_right_at_both_ends() -> None:
    gate = np.array([-20.0, 0.0, 1.0, 20.0], np.float32)
    out = reference.geglu(gate, np.full(4, 2, np.float32))
    np.testing.assert_allclose(out, [0, 0, 2 * 0.841192, 40], rtol=1e-5, atol=1e-6)


def test_activations_are_rounded_to_half_a_step_of_their_chunk() -> None:
    x = floats(3, 272) * 100
    x[0, :128] = 0
    off = np.abs(np.pad(x - reference.round_activations_15(x), ((0, 0), (0, 112)))).reshape(3, 3, 128)
    top = np.abs(np.pad(x, ((0, 0), (0, 112)))).reshape(3, 3, 128).max(axis=-1, keepdims=True)
    assert np.all(off <= 0.5001 * top / 16256)
    assert off.any()


def test_planes_of_rounded_activations_hold_them_in_the_order_of_the_products() -> None:
    x = floats(2, 288) * 3
    q, d, s = reference.planes_of_15(x)
    seen = np.zeros((2, 384), np.float32)
    halves = np.zeros((2, 24), np.float32)
    for token in range(2):
        for e in range(384):
            chunk, b, h, lane, i = e // 128, e % 128 // 32, e % 32 // 16, e % 16 // 4, e % 4
            word, at = 2 * b + h, (4 * chunk + lane) * 16
            high, low = (int(q[token, p + word // 4, at + word % 4 * 4 + i]) for p in (0, 2))
            seen[token, e] = (128 * high + low) * d[token, e // 128]
            halves[token, e // 16] += seen[token, e]
    np.testing.assert_array_equal(seen[:, :288], reference.round_activations_15(x))
    assert not seen[:, 288:].any()
    np.testing.assert_allclose(s, halves, rtol=1e-5, atol=1e-5)


def test_half_rows_are_moved_to_the_middle_of_what_a_half_holds() -> None:
    x = floats(4, 64) * np.array([[1e-30], [1], [1e6], [0]], np.float32)
    halves, factors = reference.half_rows(x)
    top = np.abs(halves).max(axis=-1)
    assert np.all((top[:3] >= 2048) & (top[:3] <= 4096))
    assert factors[3] == 1
    np.testing.assert_allclose(
        halves * factors[:, None], x, rtol=1e-3, atol=1e-6 * np.abs(x).max(axis=-1, keepdims=True).max()
    )
