"""The emulator itself: what it computes against NumPy, and that it finds faults that a GPU would not name."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.cuda import compiler
from kernels.cuda.device import Array, Kernel
from kernels.errors import CompileError, DeviceMemoryError
from tests.kernels.cuda import emulated_device
from tests.kernels.cuda.emulated_device import EMULATOR, REPO, EmulatedDevice, EmulationError

pytestmark = pytest.mark.skipif(
    bool(emulated_device.compiler_missing()), reason=emulated_device.compiler_missing()
)

NONE = np.uint64(0)
Launch: TypeAlias = Callable[..., None]


@pytest.fixture
def emulator() -> EmulatedDevice:
    return EmulatedDevice(seconds=5)


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Files that a test puts beside those of kernels/cuda: their text by name, another for each text."""
    texts: dict[str, str] = {}
    read_source = compiler.read_source
    monkeypatch.setattr(compiler, "read_source", lambda name: texts.get(name) or read_source(name))
    return texts


@pytest.fixture
def launch(sources: dict[str, str]) -> Launch:
    """`launch(device, parameters, body, grid, block, *args, shared_bytes=0)`: a kernel from its text."""

    def launch(
        device: EmulatedDevice,
        parameters: str,
        body: str,
        grid: Any,
        block: Any,
        *args: Any,
        shared_bytes: int = 0,
    ) -> None:
        text = f'#include "ptx.cuh"\nKERNEL probe({parameters}) {{\n  wait_for_previous();\n{body}\n}}\n'
        kernel = Kernel.of(f"{abs(hash(text))}.cu", "probe")
        sources[kernel.source] = text
        device.launch(kernel, grid, block, *args, shared_bytes=shared_bytes)

    return launch


def run(
    launch: Launch, body: str, *inputs: NDArray[Any], block: int = 32, dtype: Any = np.uint32
) -> NDArray[Any]:
    """out [block, 4] of a body that knows `out`, `in0`, `in1`, … (words) and `lane`."""
    device = EmulatedDevice(seconds=5)
    out = device.zeros((block, 4), dtype)
    names = "".join(f", const u32 *in{i}" for i in range(len(inputs)))
    ctype = {"u4": "u32", "i4": "int", "f4": "float"}[np.dtype(dtype).str[1:]]
    body = f"  const int lane = threadIdx.x;\n  out += 4 * lane;\n{body}"
    arrays = [device.upload(np.ascontiguousarray(values)) for values in inputs]
    launch(device, f"{ctype} *out{names}", body, 1, block, out, *arrays)
    return device.download(out)


def accumulators(out: NDArray[Any]) -> NDArray[Any]:
    """The 16 x 8 result from what 32 lanes hold of it."""
    result = np.zeros((16, 8), out.dtype)
    for lane in range(32):
        for i in range(4):
            result[lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] = out[lane, i]
    return result


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


# ---- what it computes


def test_it_has_every_name_of_ptx_and_no_other() -> None:
    def declared(text: str) -> dict[str, int]:
        names = re.findall(r"DEVICE \w+ (\w+)\((.*?)\) \{", text)
        return {name: parameters.count(",") for name, parameters in names if not name.startswith("emulated_")}

    emulated = declared((EMULATOR / "ptx.cuh").read_text())
    assert emulated == {
        k: v for k, v in declared(compiler.read_source("ptx.cuh")).items() if k != "shared_address"
    }


@pytest.mark.parametrize("n_inner", [32, 16])
def test_products_of_bytes(launch: Launch, rng: np.random.Generator, n_inner: int) -> None:
    a, b = (rng.integers(-128, 128, (n, n_inner), np.int8) for n in (16, 8))
    row, column = "in0 + lane / 4 * ROW + lane % 4", "in1 + lane / 4 * ROW + lane % 4"
    words = {32: "a[0], a[8 * ROW], a[4], a[8 * ROW + 4], b[0], b[4]", 16: "a[0], a[8 * ROW], b[0]"}[n_inner]
    body = f"""  enum {{ ROW = {n_inner // 4} }};
  const u32 *a = {row}, *b = {column};
  int c[4] = {{lane, 1, 2, 3}};
  mma_s8_k{n_inner}(c, {words});
  for (int i = 0; i < 4; i++) out[i] = c[i] - (i ? i : lane);"""
    out = run(launch, body, a, b, dtype=np.int32)
    np.testing.assert_array_equal(accumulators(out), a.astype(np.int32) @ b.astype(np.int32).T)


def test_products_of_halves(launch: Launch, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal((n, 16)).astype(np.float16) for n in (16, 8))
    body = """  const u32 *a = in0 + lane / 4 * 8 + lane % 4, *b = in1 + lane / 4 * 8 + lane % 4;
  float c[4] = {1.0f, 1.0f, 1.0f, 1.0f};
  mma_f16_k16(c, a[0], a[64], a[4], a[68], b[0], b[4]);
  for (int i = 0; i < 4; i++) out[i] = c[i];"""
    out = run(launch, body, a, b, dtype=np.float32)
    np.testing.assert_allclose(
        accumulators(out), 1 + a.astype(float) @ b.astype(float).T, rtol=1e-6, atol=1e-6
    )


def test_products_of_short_floats(launch: Launch, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal((n, 8)).astype(np.float32) for n in (16, 8))
    body = """  const float *a = (const float *)in0 + lane / 4 * 8 + lane % 4;
  const float *b = (const float *)in1 + lane / 4 * 8 + lane % 4;
  float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  mma_tf32_k8(c, a[0], a[64], a[4], a[68], b[0], b[4]);
  for (int i = 0; i < 4; i++) out[i] = c[i];"""
    out = run(launch, body, a, b, dtype=np.float32)
    short = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(float) for x in (a, b)]
    np.testing.assert_allclose(accumulators(out), short[0] @ short[1].T, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_from_shared_memory(launch: Launch, rng: np.random.Generator, transposed: bool) -> None:
    matrices = rng.integers(0, 1 << 16, (4, 8, 8), np.uint16)
    body = f"""  __shared__ uint4 rows[32];
  rows[lane] = load16(in0 + 4 * lane);
  __syncwarp();
  u32 r[4];
  load_matrices{"_transposed" if transposed else ""}(r, &rows[lane]);
  for (int i = 0; i < 4; i++) out[i] = r[i];"""
    out = run(launch, body, matrices).view(np.uint16).reshape(8, 4, 4, 2)  # g, t, matrix, element
    seen = out.transpose(2, 0, 1, 3).reshape(4, 8, 8)
    np.testing.assert_array_equal(seen, matrices.swapaxes(1, 2) if transposed else matrices)


def test_every_half_as_a_float(launch: Launch) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    device = EmulatedDevice()
    out = device.empty(1 << 16, np.float32)
    body = "  const int i = blockIdx.x * 1024 + threadIdx.x; out[i] = half_to_float(halves[i] | 0xabcd0000u);"
    launch(device, "float *out, const u16 *halves", body, 64, 1024, out, device.upload(halves))
    np.testing.assert_array_equal(device.download(out), halves.view(np.float16).astype(np.float32))


def test_floats_are_rounded_to_halves_as_numpy_does(launch: Launch, rng: np.random.Generator) -> None:
    middles = np.arange(0, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = ((middles[1:] + middles[:-1]) / 2).astype(np.float32)  # ties
    near = np.concatenate(
        [middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(1e9))]
    )
    wide = np.exp2(rng.uniform(-30, 20, 1 << 15)).astype(np.float32)
    values = np.concatenate(
        [near, -near, wide, np.float32([65519.9, 65520, 1e30, np.inf, -np.inf, np.nan, 0, -0.0])]
    )
    values = np.resize(values, (len(values) + 1023) // 1024 * 1024)
    device = EmulatedDevice()
    out = device.empty(len(values), np.uint32)
    body = """  const int i = blockIdx.x * 1024 + threadIdx.x;
  out[i] = (u32)float_to_half(values[i]) << 16 | pack_halves(1.0f, values[i]) >> 16;"""
    launch(
        device, "u32 *out, const float *values", body, len(values) // 1024, 1024, out, device.upload(values)
    )
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    expected.view(np.uint16)[np.isnan(values)] = 0x7FFF
    np.testing.assert_array_equal(
        device.download(out).view(np.uint16).reshape(-1, 2).T, [expected.view(np.uint16)] * 2
    )


def test_arithmetic_of_halves(launch: Launch, rng: np.random.Generator) -> None:
    a, b = (
        rng.integers(0, 0x7C00, (32, 2), np.uint16) | rng.integers(0, 2, (32, 2), np.uint16) << 15
        for _ in range(2)
    )
    out = run(
        launch,
        "  out[0] = multiply_halves(in0[lane], in1[lane]); out[1] = add_halves(in0[lane], in1[lane]);",
        a,
        b,
    )
    x, y = a.view(np.float16), b.view(np.float16)
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_array_equal(out.view(np.float16).reshape(32, 4, 2)[:, 0], x * y)
        np.testing.assert_array_equal(out.view(np.float16).reshape(32, 4, 2)[:, 1], x + y)


def test_integers(launch: Launch) -> None:
    body = """  out[0] = __dp4a((int)0x80ff7f01, (int)0x8001ff02, 5);
  out[1] = __byte_perm(0x33221100, 0x77665544, 0x7250);
  const float values[4] = {0.5f, 1.5f, -2.5f, 3e9f};
  out[2] = __float2int_rn(values[lane % 4]);
  out[3] = __popc(0xf0f0u) + 100 * __ffs(8) + 10000 * __clz(1) + 1000000 * __clz(0);"""
    out = run(launch, body, block=4, dtype=np.int32)
    np.testing.assert_array_equal(out[:, 0], 16384 - 1 - 127 + 2 + 5)
    np.testing.assert_array_equal(out[:, 1], 0x77225500)
    np.testing.assert_array_equal(out[:, 2], [0, 2, -2, 2**31 - 1])
    np.testing.assert_array_equal(out[:, 3], 8 + 400 + 310000 + 32000000)


def test_shuffles_and_votes(launch: Launch) -> None:
    lane = np.arange(64) % 32
    body = """  const int l = lane % 32;
  out[0] = __shfl_sync(0xffffffffu, l, l + 3) | __shfl_xor_sync(0xffffffffu, l, 5) << 8;
  out[1] = __shfl_down_sync(0xffffffffu, l, 4) | __shfl_up_sync(0xffffffffu, l, 4) << 8;
  out[2] = __shfl_xor_sync(l < 16 ? 0xffffu : 0xffff0000u, l, 1);
  out[2] |= __shfl_down_sync(0xffffffffu, l, 2, 8) << 8;
  out[3] = __ballot_sync(0xffffffffu, l % 3 == 0) + __any_sync(0xffffffffu, l == 7);
  out[3] += __all_sync(0xffffffffu, l < 31);"""
    out = run(launch, body, block=64)
    np.testing.assert_array_equal(out[:, 0], (lane + 3) % 32 | (lane ^ 5) << 8)
    np.testing.assert_array_equal(
        out[:, 1], np.where(lane < 28, lane + 4, lane) | np.where(lane > 3, lane - 4, lane) << 8
    )
    np.testing.assert_array_equal(out[:, 2], lane ^ 1 | np.where(lane % 8 < 6, lane + 2, lane) << 8)
    np.testing.assert_array_equal(out[:, 3], sum(1 << i for i in range(0, 32, 3)) + 1)


def test_sums_over_blocks_by_the_last_one(launch: Launch, emulator: EmulatedDevice) -> None:
    body = """  __shared__ u32 last;
  atomicAdd(sums + blockIdx.x, threadIdx.x);
  __syncthreads();
  __threadfence();
  if (threadIdx.x == 0) last = atomicAdd(n_done, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) atomicAdd(total, sums[i]);
  if (threadIdx.x == 0) *n_done = 0;"""
    sums, n_done, total = (
        emulator.zeros(70, np.uint32),
        emulator.zeros(1, np.uint32),
        emulator.zeros(1, np.uint32),
    )
    for _ in range(2):
        launch(emulator, "u32 *sums, u32 *n_done, u32 *total", body, 70, 96, sums, n_done, total)
    assert emulator.download(total) == 3 * 70 * 96 * 95 // 2
    assert emulator.download(n_done) == 0


def test_blocks_and_threads_have_three_dimensions(launch: Launch, emulator: EmulatedDevice) -> None:
    body = """  const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * 24 + thread] = block * 24 + thread;"""
    out = emulator.zeros(6 * 24, np.int32)
    launch(emulator, "int *out", body, (1, 2, 3), (2, 3, 4), out)
    np.testing.assert_array_equal(emulator.download(out), np.arange(6 * 24))


def test_asynchronous_copies_land_when_they_are_waited_for(launch: Launch) -> None:
    body = """  __shared__ uint4 copies[2][32];
  copy_async16(&copies[0][lane], in0 + 4 * lane, true);
  copies_commit();
  copy_async16(&copies[1][lane], nullptr, false);
  copies_commit();
  out[0] = copies[0][lane].x;
  copies_wait<1>();
  out[1] = copies[0][lane].x;
  out[2] = copies[1][lane].y;
  copies_wait<0>();
  out[3] = copies[1][lane].y;"""
    words = np.arange(128, dtype=np.uint32)
    out = run(launch, body, words)
    np.testing.assert_array_equal(out.T, [[2**32 - 1] * 32, words[::4], [2**32 - 1] * 32, [0] * 32])


def test_the_other_way_to_switch_stacks() -> None:
    """Processors that context.h has no assembly for take ucontext."""
    script = """
import numpy as np
from tests.kernels.cuda import emulated_device as e
e._RUNTIME_FLAGS.append("-DEMULATOR_UCONTEXT")
from kernels.cuda import compiler
from kernels.cuda.device import Kernel
read = compiler.read_source
text = '''#include "ptx.cuh"
KERNEL k(float *x) {
  wait_for_previous();
  x[threadIdx.x] = warp_sum(threadIdx.x);
  __syncthreads();
}'''
compiler.read_source = lambda name: text if name == "k.cu" else read(name)
device = e.EmulatedDevice()
x = device.empty(64, np.float32)
device.launch(Kernel.of("k.cu", "k"), 1, 64, x)
assert (device.download(x) == np.repeat([496.0, 1520.0], 32)).all()
"""
    subprocess.run(
        [sys.executable, "-c", script],
        cwd=REPO,
        env={"PYTHONPATH": str(REPO), "PATH": "/usr/bin:/bin"},
        check=True,
    )


# ---- the device


def test_memory_starts_as_nan_and_ends(emulator: EmulatedDevice) -> None:
    assert np.isnan(emulator.download(emulator.empty((3, 5), np.float32))).all()
    small = EmulatedDevice(n_bytes=100)
    kept = small.empty(25, np.float32)
    with pytest.raises(DeviceMemoryError, match="1 bytes: 0 bytes are free"):
        small.empty(1, np.uint8)
    del kept
    assert small.memory() == (100, 100)


def test_arrays_are_views_that_only_kernels_compute_with(emulator: EmulatedDevice) -> None:
    host = np.arange(24, dtype=np.float32).reshape(4, 6)
    array: Any = emulator.upload(host)
    np.testing.assert_array_equal(emulator.download(array[1:3].reshape(2, 2, 3)), host[1:3].reshape(2, 2, 3))
    assert array[2, 3].shape == ()
    assert array[1].view(np.int32)[0].nbytes == 4
    with pytest.raises(TypeError):
        array + 1
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(EmulationError, match="not contiguous"):
        emulator.download(array[:, 1:3])


def test_products_of_cublas(emulator: EmulatedDevice, rng: np.random.Generator) -> None:
    x, weights, out = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 8), (5, 8), (3, 9)))
    for dtype, multiply in ((np.float32, emulator.matmul_float), (np.float16, emulator.matmul_half)):
        x, weights = x.astype(dtype), weights.astype(dtype)
        place: Any = emulator.upload(out)
        multiply(emulator.upload(x), emulator.upload(weights), place[:, 2:7], accumulate=False)
        multiply(emulator.upload(x), emulator.upload(weights), place[:, 2:7], accumulate=True)
        expected = out.copy()
        expected[:, 2:7] = 2 * (x.astype(np.float32) @ weights.astype(np.float32).T)
        np.testing.assert_allclose(emulator.download(place), expected, rtol=1e-6)


def test_a_graph_runs_what_was_recorded_with_the_arguments_of_then(
    launch: Launch, emulator: EmulatedDevice
) -> None:
    x = emulator.zeros(1, np.int32)
    pinned = emulator.pinned(4).view(np.int32)
    pinned[:] = 10
    step = np.int32(3)

    def steps() -> None:
        launch(emulator, "int *x, int step", "  *x += step;", 1, 1, x, step)
        launch(emulator, "int *x, int *y", "  *y = *x;", 1, 1, x, emulator.host_address(pinned))

    graph = emulator.capture(steps)
    assert emulator.download(x) == 0
    step = np.int32(5)
    emulator.copy_async(x, pinned)
    graph.launch()
    graph.launch()
    assert pinned == emulator.download(x) == 16
    with pytest.raises(EmulationError, match="waiting while a graph is captured"):
        emulator.capture(lambda: emulator.download(x))  # type: ignore[arg-type, return-value]


def test_events_tell_the_time(emulator: EmulatedDevice) -> None:
    start, end = (emulator.record(timing=True) for _ in range(2))
    assert end.since(start) >= 0
    with pytest.raises(EmulationError, match="without timing"):
        end.since(emulator.record())


# ---- faults it finds


@pytest.mark.parametrize(
    ("body", "block", "message"),
    [
        ("  if (threadIdx.x < 16) __syncthreads(); else __syncwarp();", 32,
         r"0xffff0000 wait in __syncwarp\(0xffffffff\) at \w+\.cu:5"),
        ("  if (threadIdx.x < 40) __shfl_sync(0xffffffffu, 1, 0); else __ballot_sync(0xffffffffu, 1);", 64,
         r"warp 1, lane \d+: .*, while lanes 0x\w+ wait in"),
        ("  if (threadIdx.x < 32) __shfl_sync(0xfu, 1, 0);", 32, "does not name the lane itself"),
        ("  if (threadIdx.x < 20) warp_sum(1.0f);", 32, r"lane \d+ reads lane \d+, which takes no part"),
        ("  int c[4]; if (threadIdx.x != 5) mma_s8_k16(c, 1, 1, 1);", 32, "lane 5 has ended"),
        ("  x[4] = 1.0f;", 32, r"touched byte 16 of the buffer of 16 bytes at 0x\w+ at \w+\.cu:5"),
        ("  x[-1] = 1.0f;", 1, "wrote before the buffer of 16 bytes"),
        ("  ((u8 *)shared)[12] = 1;", 1, "wrote around its 12 bytes of dynamic shared memory"),
        ("  x[0] = ((float *)shared)[4];", 1, "touched byte 16 of 12 bytes of dynamic shared memory"),
        ("  x[0] = *(float *)nullptr;", 1, "which is no memory"),
        ("  x[0] = load8(x + 1).x;", 1, r"a load of 8 bytes .* not aligned at ptx\.cuh.* < \w+\.cu:5"),
        ("  x[0] = load4(shared);", 1, "a global load of shared memory"),
        ("  *(float4 *)(x + 1) = make_float4(0, 0, 0, 0);", 1, r"not aligned for its type, .* at \w+\.cu:5"),
        ("  __shared__ int table[8]; table[threadIdx.x] = 1;", 9, "an index outside its array"),
        ("  x[0] = 1 << (threadIdx.x + blockDim.x);", 32, "too far a shift"),
        ("  x[0] = 7 / ((int)threadIdx.x - 1);", 2, "division by zero"),
        ("  copy_async16(x, x, true);", 1, "is not shared memory"),
        ("  x[0] = __byte_perm(1, 2, 0x8000);", 1, "each must be below 8"),
        ("  volatile char a[1 << 17]; for (int i = sizeof a; i;) a[--i] = 1;", 1, "bytes of stack"),
        ("  while (((volatile float *)x)[0] != 0);", 1, r"still running at \w+\.cu:5"),
    ],
)  # fmt: skip
def test_a_fault_is_an_error_that_names_the_place(
    launch: Launch, body: str, block: int, message: str
) -> None:
    device = EmulatedDevice(seconds=0.2)
    x = device.empty(4, np.float32)
    with pytest.raises(EmulationError, match=message) as raised:
        launch(device, "float *x", "  SHARED_MEMORY(shared);\n" + body, 2, block, x, shared_bytes=12)
    assert str(raised.value).startswith("probe: ")
    assert "argument 0: float32 (4,)" in str(raised.value)
    launch(device, "float *x", "  x[threadIdx.x] = 7;", 1, 4, x)  # and it still works
    assert (device.download(x) == 7).all()


WRITER = "  let_next_start(); x[0] = 5;"
EARLY_READER = """#include "ptx.cuh"
KERNEL early(const float *x, float *y) {
  const float seen = x[threadIdx.x];
  __syncthreads();
  wait_for_previous();
  if (WRITES) y[threadIdx.x] = seen;
}
"""


@pytest.fixture
def early(sources: dict[str, str]) -> Kernel:
    """A kernel that reads before it waits."""
    sources["early.cu"] = EARLY_READER
    return Kernel.of("early.cu", "early", WRITES=1)


def test_what_may_be_read_before_the_wait(launch: Launch, emulator: EmulatedDevice, early: Kernel) -> None:
    x, y = emulator.zeros(64, np.float32), emulator.empty(64, np.float32)
    emulator.launch(early, 2, 64, x, y)  # nobody but the host has written
    launch(emulator, "float *x", WRITER, 1, 1, x)
    emulator.fence()
    emulator.launch(early, 2, 64, x, y)
    launch(emulator, "float *x", WRITER, 1, 1, x)
    emulator.synchronize()
    emulator.launch(early, 2, 64, x, y)
    launch(emulator, "float *x", "  x[0] = 6;", 1, 1, x)  # the next one starts when this one has ended
    emulator.launch(early, 2, 64, x, y)
    launch(emulator, "float *x", WRITER, 1, 1, x)
    emulator.copy_async(y[:4], emulator.pinned(16).view(np.float32))
    emulator.launch(early, 2, 64, x, y)
    assert emulator.download(y)[0] == 5


def test_reading_before_the_wait_what_an_earlier_kernel_writes(
    launch: Launch, emulator: EmulatedDevice, early: Kernel
) -> None:
    x, y = emulator.zeros(64, np.float32), emulator.empty(64, np.float32)
    launch(emulator, "float *x", WRITER, 1, 1, x)
    launch(emulator, "float *x", "  let_next_start();", 1, 1, x)
    message = (
        r"touched byte \d+ of .* before wait_for_previous, which an earlier kernel writes at early\.cu:3"
    )
    with pytest.raises(EmulationError, match=message):
        emulator.launch(early, 2, 64, x, y)
    with pytest.raises(EmulationError, match=message):
        emulator.capture(
            lambda: (launch(emulator, "float *x", WRITER, 1, 1, x), emulator.launch(early, 2, 64, x, y))  # type: ignore[func-returns-value, arg-type, return-value]
        ).launch()


def test_a_recording_leaves_the_fence_to_the_launch_behind_it(
    launch: Launch, emulator: EmulatedDevice, early: Kernel
) -> None:
    """Also one that fails, after which its launches come one by one."""
    x, y = emulator.zeros(64, np.float32), emulator.empty(64, np.float32)

    def fails() -> None:
        emulator.launch(early, 2, 64, x, y)
        raise DeviceMemoryError(1, 0, None, 0)

    launch(emulator, "float *x", WRITER, 1, 1, x)
    emulator.fence()
    with pytest.raises(DeviceMemoryError):
        emulator.capture(fails)
    emulator.launch(early, 2, 64, x, y)


def test_writing_before_the_wait(emulator: EmulatedDevice, sources: dict[str, str]) -> None:
    sources["hasty.cu"] = '#include "ptx.cuh"\nKERNEL hasty(int *x) { x[0] = 1; wait_for_previous(); }\n'
    with pytest.raises(EmulationError, match=r"wrote byte 0 .* before wait_for_previous at hasty\.cu:2"):
        emulator.launch(Kernel.of("hasty.cu", "hasty"), 1, 1, emulator.zeros(1, np.int32))


def test_a_write_behind_a_buffer_of_odd_size(launch: Launch, emulator: EmulatedDevice) -> None:
    x = emulator.empty(5, np.uint8)
    with pytest.raises(EmulationError, match="wrote behind the buffer of 5 bytes"):
        launch(emulator, "u8 *x", "  x[5] = 1;", 1, 1, x)


def test_memory_that_was_freed(launch: Launch, emulator: EmulatedDevice) -> None:
    arrays: list[Array] = [emulator.zeros(4, np.float32)]
    graph = emulator.capture(lambda: launch(emulator, "float *x", "  x[0] = 1;", 1, 1, arrays[0]))
    arrays.clear()
    with pytest.raises(EmulationError, match="touched"):
        graph.launch()


def test_a_forgotten_wait(emulator: EmulatedDevice, sources: dict[str, str]) -> None:
    sources["idle.cu"] = """#include "ptx.cuh"
KERNEL idle(int n) { if (blockIdx.x < n) wait_for_previous(); }
"""
    emulator.launch(Kernel.of("idle.cu", "idle"), 3, 64, np.int32(3))
    with pytest.raises(EmulationError, match=r"block \(2, 0, 0\): thread 0 never called wait_for_previous"):
        emulator.launch(Kernel.of("idle.cu", "idle"), 3, 64, np.int32(2))


@pytest.mark.parametrize("backwards", [False, True])
def test_a_missing_barrier_shows_in_one_order_or_the_other(launch: Launch, backwards: bool) -> None:
    body = """  __shared__ int values[64];
  values[threadIdx.x] = threadIdx.x;
  x[0][threadIdx.x] = values[threadIdx.x ^ 32];
  __syncthreads();
  values[threadIdx.x] = 100 + threadIdx.x;
  x[1][threadIdx.x] = values[threadIdx.x ^ 32];"""
    device = EmulatedDevice(backwards=backwards)
    x = device.empty((2, 64), np.int32)
    launch(device, "int (*x)[64]", body, 1, 64, x)
    expected = np.arange(64) ^ 32
    assert ((device.download(x) != [expected, 100 + expected]).sum(1) == 32).all()


def test_shared_memory_is_not_inherited(launch: Launch, emulator: EmulatedDevice) -> None:
    body = """  SHARED_MEMORY(dynamic);
  __shared__ int fixed;
  x[blockIdx.x] = fixed & *(int *)dynamic;
  fixed = *(int *)dynamic = 0;"""
    x = emulator.zeros(3, np.int32)
    launch(emulator, "int *x", body, 3, 1, x, shared_bytes=4)
    assert (emulator.download(x) == -1).all()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), r"takes 3 arguments \(pif\), not 0"),
        ((NONE, np.int64(1), np.float32(1)), "argument 1 is int64, wanted is int32"),
        ((NONE, np.int32(1), 1.0), "argument 2 is float, wanted is float32"),
        ((np.zeros(3), np.int32(1), np.float32(1)), "ndarray where a device array is wanted"),
        ((np.uint64(4096), np.int32(1), np.float32(1)), "argument 0 points to no memory of the device"),
    ],
)
def test_arguments_are_checked(
    launch: Launch, emulator: EmulatedDevice, args: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(EmulationError, match=message):
        launch(emulator, "float *x, int n, float y", "", 1, 1, *args)


def test_launches_that_a_gpu_refuses(launch: Launch, emulator: EmulatedDevice) -> None:
    for grid, block, shared_bytes in ((1, 1025, 0), (0, 1, 0), ((1, 65536), 1, 0), (1, 1, 227 * 1024 + 1)):
        with pytest.raises(EmulationError, match="probe"):
            launch(emulator, "", "", grid, block, shared_bytes=shared_bytes)
    with pytest.raises(EmulationError, match="49156 bytes of static shared memory"):
        launch(
            emulator,
            "int *n",
            "  __shared__ int table[12289]; table[*n] = 1; *n = table[*n + 1];",
            1,
            1,
            NONE,
        )


def test_a_source_that_does_not_compile(launch: Launch, emulator: EmulatedDevice) -> None:
    with pytest.raises(CompileError, match=r"\.cu:4.*error: .*nothing"):
        launch(emulator, "", "  nothing();", 1, 1)


# ---- clusters

BEGIN = """  float *const own = (float *)emulator::dynamic_shared();
  u64 *const arrivals = (u64 *)(own + 32);
  if (threadIdx.x == 0) expect_arrivals(arrivals, 128);
  cluster_arrive();
"""
SEND = """  send_to_cluster(own + 31 - threadIdx.x, (blockIdx.x + 1) % CLUSTER,
                  100.0f * blockIdx.x + threadIdx.x, arrivals);
"""
READ = "  out[blockIdx.x * 32 + threadIdx.x] = own[threadIdx.x];\n"
MEET, AWAIT = "  cluster_wait();\n", "  wait_for_arrivals(arrivals);\n"


def of_cluster(sources: dict[str, str], body: str, n_blocks: int = 8) -> NDArray[Any]:
    """out [blocks, 32] of clusters of four blocks of one warp."""
    device = EmulatedDevice(seconds=5)
    text = (
        '#include "ptx.cuh"\nKERNEL CLUSTER_OF(CLUSTER) probe(float *out) {\n'
        f"  wait_for_previous();\n{body}\n}}\n"
    )
    kernel = Kernel.of(f"{abs(hash(text))}.cu", "probe", CLUSTER=4)
    sources[kernel.source] = text
    out = device.zeros((n_blocks, 32), np.float32)
    device.launch(kernel, n_blocks, 32, out, shared_bytes=144)
    return device.download(out)


def test_blocks_of_a_cluster_send_to_one_another(sources: dict[str, str]) -> None:
    out = of_cluster(sources, BEGIN + MEET + SEND + AWAIT + READ)
    for block in range(8):
        other = block // 4 * 4 + (block + 3) % 4
        np.testing.assert_array_equal(out[block], 100 * other + np.arange(31, -1, -1))


def test_what_another_block_has_not_sent_yet_is_not_a_number(sources: dict[str, str]) -> None:
    assert np.isnan(of_cluster(sources, BEGIN + MEET + SEND + READ + AWAIT)).any()


def test_more_that_is_expected_than_is_sent_is_found(sources: dict[str, str]) -> None:
    with pytest.raises(EmulationError, match="64 bytes are expected that were not sent"):
        of_cluster(sources, BEGIN + MEET + "  if (threadIdx.x < 16)\n" + SEND + AWAIT)


def test_nothing_is_sent_to_a_block_that_has_ended(sources: dict[str, str]) -> None:
    with pytest.raises(EmulationError, match="of the cluster has ended"):
        of_cluster(sources, BEGIN + SEND + READ)


def test_a_cluster_that_does_not_meet_as_a_whole_is_found(sources: dict[str, str]) -> None:
    wait = "  if (threadIdx.x == 5) __syncthreads(); else cluster_wait();\n"
    with pytest.raises(EmulationError, match="wait for the cluster"):
        of_cluster(sources, wait)


def test_a_grid_is_whole_clusters(sources: dict[str, str]) -> None:
    with pytest.raises(EmulationError, match="not clusters of 4"):
        of_cluster(sources, "", n_blocks=6)
