"""The C kernels against their oracles, for every instruction set of this processor."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import numpy.typing as npt
import pytest

from kernels import reference
from kernels.quant_types import QuantType, block_size
from kernels.tolerances import within
from tests.tiny_gguf import random_matrix

cpu = pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")

SETS = cpu.instruction_sets()
FLOAT_TYPES = (QuantType.F32, QuantType.F16, QuantType.BF16)
Floats = npt.NDArray[np.float32]


def floats(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def matrix(quant_type: QuantType, rows: int, columns: int) -> npt.NDArray[np.uint8]:
    return (
        np.ascontiguousarray(random_matrix(np.random.default_rng(3), (rows, columns), quant_type))
        .view(np.uint8)
        .ravel()
    )


def shapes(quant_type: QuantType) -> list[tuple[int, int]]:
    """Rows and columns: one span, odd multiples of the block, widths of real models."""
    widths = (32, 96, 256, 576, 2048) if block_size(quant_type) <= 32 else (256, 768, 2048)
    return [(rows, width) for width in widths for rows in (1, 16, 37)]


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("quant_type", list(QuantType), ids=lambda t: t.name)
def test_matmul_equals_the_oracle_in_both_precisions(quant_type: QuantType, instruction_set: str) -> None:
    for rows, columns in shapes(quant_type):
        data, x = matrix(quant_type, rows, columns), floats(11, columns)
        size = np.abs(reference.dequantize(data, quant_type).reshape(rows, columns))
        for exact in (True, False):
            seen = x if exact or quant_type in FLOAT_TYPES else reference.round_activations(x)
            expected = reference.matmul(seen, data, quant_type)
            result = cpu.matmul(x, data, quant_type, float_precision=exact, instruction_set=instruction_set)
            assert within("matmul", result, expected, np.abs(seen) @ size.T), (rows, columns, exact)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("quant_type", list(QuantType), ids=lambda t: t.name)
def test_a_row_of_matmul_is_bitwise_the_same_whoever_shares_the_call(
    quant_type: QuantType, instruction_set: str
) -> None:
    rows, columns = 70, 768
    data, x = matrix(quant_type, rows, columns), floats(13, columns)
    for exact in (True, False):

        def product(part: Floats, threads: int, exact: bool = exact) -> Floats:
            return cpu.matmul(
                part,
                data,
                quant_type,
                float_precision=exact,
                threads=threads,
                instruction_set=instruction_set,
            )

        whole = product(x, 1)
        np.testing.assert_array_equal(product(x, 2), whole)
        np.testing.assert_array_equal(np.concatenate([product(x[i : i + 1], 2) for i in range(13)]), whole)
        np.testing.assert_array_equal(np.concatenate([product(x[:5], 1), product(x[5:], 2)]), whole)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("quant_type", list(QuantType), ids=lambda t: t.name)
def test_a_long_row_of_matmul_is_bitwise_the_same_for_any_number_of_columns(
    quant_type: QuantType, instruction_set: str
) -> None:
    # Longer than what any set takes at a time, and where blocks allow it, with an end inside a span.
    width = 16_640 if block_size(quant_type) > 32 else 16_672
    data, x = matrix(quant_type, 19, width), floats(40, width)
    alone = [cpu.matmul(row[None], data, quant_type, instruction_set=instruction_set) for row in x]
    expected = np.concatenate(alone)
    seen = x[:5] if quant_type in FLOAT_TYPES else reference.round_activations(x[:5])
    size = np.abs(reference.dequantize(data, quant_type).reshape(19, width))
    assert within("matmul", expected[:5], reference.matmul(seen, data, quant_type), np.abs(seen) @ size.T)
    for columns in (*range(2, 18), 24, 32, 33, 40):
        result = cpu.matmul(x[:columns], data, quant_type, threads=2, instruction_set=instruction_set)
        np.testing.assert_array_equal(result, expected[:columns])


@pytest.mark.parametrize("quant_type", [t for t in QuantType if t not in FLOAT_TYPES], ids=lambda t: t.name)
def test_extreme_quants_and_activations_do_not_saturate(quant_type: QuantType) -> None:
    data = matrix(quant_type, 16, 256)
    if quant_type is QuantType.Q8_0:
        blocks = data.reshape(-1, 34).copy()
        blocks[:, 2:] = 128  # -128, which has no positive twin
        data = blocks.ravel()
    x = np.where(np.arange(256) % 3 == 0, -1, 1).astype(np.float32)[None] * np.float32(1e4)
    size = np.abs(reference.dequantize(data, quant_type).reshape(16, 256))
    expected = reference.matmul(reference.round_activations(x), data, quant_type)
    for instruction_set in SETS:
        result = cpu.matmul(x, data, quant_type, instruction_set=instruction_set)
        assert within("matmul", result, expected, np.abs(x) @ size.T), instruction_set


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_activation_that_is_no_number_is_not_rounded_away(bad: float, instruction_set: str) -> None:
    data, x = matrix(QuantType.Q4_0, 16, 512), floats(3, 512)
    x[1, 300] = bad
    result = cpu.matmul(x, data, QuantType.Q4_0, instruction_set=instruction_set)
    assert np.all(np.isnan(result[1])) and np.all(np.isfinite(result[[0, 2]]))
    alone = cpu.matmul(x[1:2], data, QuantType.Q4_0, instruction_set=instruction_set)
    assert np.all(np.isnan(alone))


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("quant_type", list(QuantType), ids=lambda t: t.name)
def test_embedding_equals_the_oracle(quant_type: QuantType, instruction_set: str) -> None:
    data, ids = matrix(quant_type, 9, 768), np.array([8, 0, 3, 3], np.int32)
    expected = reference.embedding(ids, data, quant_type, 768)
    size = np.max(np.abs(expected))
    assert within(
        "embedding",
        cpu.embedding(ids, data, quant_type, 768, instruction_set=instruction_set),
        expected,
        size,
    )


def test_embedding_refuses_an_id_outside_the_table() -> None:
    with pytest.raises(ValueError, match="outside the table"):
        cpu.embedding(np.array([9], np.int32), matrix(QuantType.F32, 9, 32), QuantType.F32, 32)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("n", [1, 15, 16, 17, 576, 2049])
def test_row_operations_equal_their_oracles(n: int, instruction_set: str) -> None:
    x, y, weight = floats(3, n) * 4, floats(3, n, seed=1), floats(n, seed=2)
    on = {"instruction_set": instruction_set}
    assert within("rmsnorm", cpu.rmsnorm(x, weight, 1e-5, **on), reference.rmsnorm(x, weight, 1e-5))
    assert within("softmax", cpu.softmax(x, **on), reference.softmax(x))
    assert within("swiglu", cpu.swiglu(x, y, **on), reference.swiglu(x, y))
    assert within("geglu", cpu.geglu(x, y, **on), reference.geglu(x, y))


@pytest.mark.parametrize("instruction_set", SETS)
def test_row_operations_survive_large_numbers(instruction_set: str) -> None:
    x, one = np.array([[-200.0, -90.0, 0.0, 90.0, 200.0]], np.float32), np.ones((1, 5), np.float32)
    on = {"instruction_set": instruction_set}
    assert within("swiglu", cpu.swiglu(x, one, **on), reference.swiglu(x, one))
    assert within("geglu", cpu.geglu(x, one, **on), reference.geglu(x, one))
    masked = np.array([[0.0, -np.inf, 1.0, -np.inf]], np.float32)
    result = cpu.softmax(masked, **on)
    assert within("softmax", result, reference.softmax(masked)) and result[0, 1] == 0


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("neox", [True, False])
def test_rope_equals_its_oracle_and_leaves_the_tail_alone(neox: bool, instruction_set: str) -> None:
    x, angles = floats(5, 3, 24), floats(5, 8) * 100
    cos, sin = np.cos(angles), np.sin(angles)
    result = cpu.rope(x, cos, sin, neox=neox, instruction_set=instruction_set)
    assert within("rope", result, reference.rope(x, cos, sin, neox=neox), float(np.abs(x).max()) * 2)
    np.testing.assert_array_equal(result[..., 16:], x[..., 16:])


ATTENTION_SHAPES = [  # new tokens, heads, KV heads, head dim, tokens before, window
    (1, 9, 3, 64, 700, 0),
    (37, 4, 1, 256, 300, 0),
    (70, 8, 2, 40, 0, 0),
    (50, 4, 1, 64, 600, 512),
    (1, 4, 1, 64, 900, 512),
    (130, 4, 4, 32, 100, 70),
    (3, 12, 1, 16, 255, 1),
]


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("shape", ATTENTION_SHAPES, ids=str)
def test_attention_equals_its_oracle(shape: tuple[int, ...], instruction_set: str) -> None:
    tokens, heads, kv_heads, head_dim, before, window = shape
    q = floats(tokens, heads, head_dim)
    k, v = (floats(kv_heads, before + tokens, head_dim, seed=s) for s in (1, 2))
    expected = reference.attention(q, k, v, before, window, head_dim**-0.5)
    for half, name in ((False, "attention"), (True, "attention float16")):
        result = cpu.attention(
            q, k, v, before, window, head_dim**-0.5, half_cache=half, instruction_set=instruction_set
        )
        assert within(name, result, expected, float(np.abs(v).max())), half


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("shape", ATTENTION_SHAPES, ids=str)
def test_attention_is_bitwise_the_same_however_the_prompt_is_cut(
    shape: tuple[int, ...], instruction_set: str
) -> None:
    tokens, heads, kv_heads, head_dim, before, window = shape
    q = floats(tokens, heads, head_dim)
    k, v = (floats(kv_heads, before + tokens, head_dim, seed=s) for s in (1, 2))

    def attend(first: int, last: int, threads: int) -> Floats:
        end = before + last
        return cpu.attention(
            q[first:last],
            k[:, :end],
            v[:, :end],
            before + first,
            window,
            head_dim**-0.5,
            threads=threads,
            instruction_set=instruction_set,
        )

    whole = attend(0, tokens, 1)
    np.testing.assert_array_equal(attend(0, tokens, 2), whole)
    one_by_one = [attend(i, i + 1, 2) for i in range(0, tokens, 7)]
    np.testing.assert_array_equal(np.concatenate(one_by_one), whole[::7])


def test_the_kernels_leave_the_interpreter_free() -> None:
    """A loop in another thread goes on while a long product runs."""
    data, x = matrix(QuantType.Q4_0, 4096, 2048), floats(256, 2048)
    done = threading.Event()

    def work() -> None:
        cpu.matmul(x, data, QuantType.Q4_0)
        done.set()

    worker = threading.Thread(target=work)
    gc.collect()
    ticks, longest, last = 0, 0.0, time.perf_counter()
    worker.start()
    while not done.is_set():
        time.sleep(0.0005)
        now = time.perf_counter()
        ticks, longest, last = ticks + 1, max(longest, now - last), now
    worker.join()
    assert ticks > 3, "the product held the interpreter for its whole length"


def test_wrong_lengths_are_refused() -> None:
    data = matrix(QuantType.Q4_0, 4, 64)
    with pytest.raises(ValueError, match="not whole Q4_0 blocks"):
        cpu.matmul(floats(1, 48), data, QuantType.Q4_0)
    with pytest.raises(ValueError, match="instruction set"):
        cpu.matmul(floats(1, 64), data, QuantType.Q4_0, instruction_set="mmx")
