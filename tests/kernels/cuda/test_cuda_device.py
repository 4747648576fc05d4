"""The GPU as a Device: counted memory, launches in order, graphs, events, products, machine code on disk."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.cuda import compiler, instances, nvrtc
from kernels.cuda.device import Device, Kernel
from kernels.cuda.devices import NoDevice, devices
from kernels.cuda.instances import Card
from kernels.errors import CompileError, DeviceError, DeviceMemoryError

pytestmark = pytest.mark.gpu

SOURCES = {
    # Every kind of argument.
    "affine.cu": '#include "ptx.cuh"\n'
    "KERNEL affine(float *x, int n, float a, u64 extra, const float *b, u32 stride, s64 shift) {\n"
    "  wait_for_previous();\n"
    "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i < n) x[i] = a * x[i * stride] + (b ? b[i] : 0.0f) + (float)extra + (float)shift;\n"
    "}\n",
    # Each element comes from two far apart: any element read too early, or overwritten too early, shows.
    "mix.cu": '#include "ptx.cuh"\n'
    "KERNEL mix(const u32 *from, u32 *to, u32 n) {\n"
    "  let_next_start();\n"
    "  wait_for_previous();\n"
    "  u32 i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i < n) to[i] = (from[(i * 7 + 1) % n] ^ from[n - 1 - i]) * 2654435761u + i;\n"
    "}\n",
    "count.cu": '#include "ptx.cuh"\n'
    "KERNEL count(int *state, int *log) {\n"
    "  wait_for_previous();\n"
    "  log[state[0]] = 100 + state[0];\n"
    "  state[0] += 1;\n"
    "}\n",
    # As many words of shared memory as there are threads' worth of 100 each, read back in reverse.
    "reverse.cu": '#include "ptx.cuh"\n'
    "KERNEL reverse(int *x, int n) {\n"
    "  SHARED_MEMORY(memory);\n"
    "  int *all = (int *)memory;\n"
    "  wait_for_previous();\n"
    "  for (int i = threadIdx.x; i < n; i += blockDim.x) all[i] = x[i];\n"
    "  __syncthreads();\n"
    "  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = all[n - 1 - i];\n"
    "}\n",
}
MIX = Kernel.of("mix.cu", "mix")
COUNT = Kernel.of("count.cu", "count")
AFFINE = Kernel.of("affine.cu", "affine")
REVERSE = Kernel.of("reverse.cu", "reverse")
N = 100_003


@pytest.fixture(scope="module")
def sources() -> Iterator[None]:
    """Kernels that are not in the package."""
    real = compiler.read_source
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "read_source", lambda name: SOURCES.get(name) or real(name))
        yield


@pytest.fixture(scope="module")
def opening(sources: None) -> Callable[..., Any]:
    found = devices()
    if isinstance(found, NoDevice):
        pytest.skip(found.reason)
    return pytest.importorskip("kernels.cuda.cuda_device", reason="CuPy is not installed").CudaDevice


@pytest.fixture(scope="module")
def gpu(opening: Callable[..., Any]) -> Iterator[Any]:
    device = opening()
    yield device
    device.close()


def test_a_gpu_is_a_device(gpu: Any) -> None:
    device: Device = gpu
    found = devices()
    assert isinstance(found, list)
    assert (device.name, device.compute_capability, device.n_processors) == (
        found[0].name,
        found[0].compute_capability,
        found[0].n_processors,
    )
    free, total = gpu.memory()
    assert 0 < free <= total
    assert total == pytest.approx(found[0].total_bytes, rel=0.05)


def test_every_kind_of_argument_arrives(gpu: Any) -> None:
    x, b = np.arange(300, dtype=np.float32), np.linspace(0, 1, 300, dtype=np.float32)
    for addend, expected in ((gpu.upload(b), b), (np.uint64(0), 0)):
        on_gpu = gpu.upload(x)
        scalars = np.uint32(1), np.int64(-10)
        gpu.launch(
            AFFINE, (3, 1), 128, on_gpu, np.int32(300), np.float32(2.5), np.uint64(7), addend, *scalars
        )
        np.testing.assert_array_equal(gpu.download(on_gpu), np.float32(2.5) * x + expected + 7 - 10)


def test_arguments_of_wrong_sizes_are_refused(gpu: Any) -> None:
    x = gpu.zeros(4, np.int32)
    for arguments in ((x,), (x, np.int64(4)), (x, 4), (np.zeros(4), np.int32(4))):
        with pytest.raises(TypeError):
            gpu.launch(REVERSE, 1, 32, *arguments)


def test_a_launch_that_cannot_be_is_refused_and_the_next_one_runs(gpu: Any) -> None:
    x = gpu.upload(np.arange(8, dtype=np.int32))
    with pytest.raises(DeviceError, match=r"launching reverse .*CUDA_ERROR"):
        gpu.launch(REVERSE, 1, 4096, x, np.int32(8), shared_bytes=32)
    gpu.launch(REVERSE, 1, 32, x, np.int32(8), shared_bytes=32)
    assert gpu.download(x).tolist() == list(range(7, -1, -1))


def test_a_block_may_have_more_shared_memory_than_48_kib(gpu: Any) -> None:
    x = np.arange(24_000, dtype=np.int32)  # 96,000 bytes: compute capability 8.6 has 99 KiB
    on_gpu = gpu.upload(x)
    gpu.launch(REVERSE, 1, 256, on_gpu, np.int32(x.size), shared_bytes=x.nbytes)
    np.testing.assert_array_equal(gpu.download(on_gpu), x[::-1])


def mixed(gpu: Any, before_each: Callable[[], None]) -> np.ndarray[Any, Any]:
    """The end of a chain of 200 launches, each of which needs all of the one before it."""
    buffers = [gpu.upload(np.arange(N, dtype=np.uint32)), gpu.zeros(N, np.uint32)]
    for step in range(200):
        before_each()
        source, target = buffers[step % 2], buffers[(step + 1) % 2]
        gpu.launch(MIX, -(-N // 256), 256, source, target, np.uint32(N))
    return gpu.download(buffers[0])


def test_launches_that_overlap_see_what_those_before_them_wrote(gpu: Any) -> None:
    def plainly() -> None:
        gpu.synchronize()
        gpu.fence()

    expected = np.arange(N, dtype=np.uint32)
    i = np.arange(N)
    for _ in range(200):
        expected = (expected[(i * 7 + 1) % N] ^ expected[::-1]) * np.uint32(2654435761) + i.astype(np.uint32)
    np.testing.assert_array_equal(mixed(gpu, plainly), expected)
    for _ in range(20):
        np.testing.assert_array_equal(mixed(gpu, lambda: None), expected)


def test_a_graph_of_overlapping_launches_computes_the_same(gpu: Any) -> None:
    start = np.arange(N, dtype=np.uint32)
    buffers = [gpu.upload(start), gpu.zeros(N, np.uint32)]

    def run() -> None:
        for source, target in (buffers, buffers[::-1]):
            gpu.launch(MIX, -(-N // 256), 256, source, target, np.uint32(N))

    gpu.prepare([MIX])
    graph = gpu.capture(run)
    np.testing.assert_array_equal(gpu.download(buffers[0]), start)  # nothing ran while recording
    for _ in range(100):
        graph.launch()
    np.testing.assert_array_equal(gpu.download(buffers[0]), mixed(gpu, lambda: None))


def test_a_graph_finds_its_position_in_device_memory(gpu: Any) -> None:
    state, log = gpu.zeros(1, np.int32), gpu.zeros(10, np.int32)
    gpu.prepare([COUNT])
    graph = gpu.capture(lambda: gpu.launch(COUNT, 1, 1, state, log))
    for _ in range(5):
        graph.launch()
    assert gpu.download(log).tolist() == [100, 101, 102, 103, 104, 0, 0, 0, 0, 0]


def test_a_recording_that_fails_leaves_the_stream_usable(gpu: Any) -> None:
    x = gpu.upload(np.arange(8, dtype=np.int32))

    def run() -> None:
        gpu.launch(REVERSE, 1, 32, x, np.int32(8), shared_bytes=32)
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        gpu.capture(run)
    gpu.launch(REVERSE, 1, 32, x, np.int32(8), shared_bytes=32)
    assert gpu.download(x).tolist() == list(range(7, -1, -1))


@pytest.mark.parametrize("shape", [(1, 64, 128), (9, 640, 576), (100, 1000, 1536), (512, 4096, 4096)])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_products_are_numpys(gpu: Any, shape: tuple[int, int, int], accumulate: bool, dtype: type) -> None:
    n_tokens, n_rows, n_columns = shape
    random = np.random.default_rng(1)
    x = random.standard_normal((n_tokens, n_columns)).astype(dtype)
    weights = random.standard_normal((n_rows, n_columns)).astype(dtype)
    before = random.standard_normal((n_tokens, n_rows + 24)).astype(np.float32)
    whole = gpu.upload(before)
    multiply = gpu.matmul_half if dtype is np.float16 else gpu.matmul_float
    multiply(gpu.upload(x), gpu.upload(weights), whole[:, 8:-16], accumulate=accumulate)
    expected = before.astype(np.float64)
    product = x.astype(np.float64) @ weights.astype(np.float64).T
    expected[:, 8:-16] = product + (expected[:, 8:-16] if accumulate else 0)
    # Sums in float32 of products whose sum is about the root of n_columns; TF32 would be off by 3e-4 of that.
    np.testing.assert_allclose(gpu.download(whole), expected, rtol=1e-5, atol=2e-5 * n_columns**0.5)


def test_products_that_do_not_fit_are_refused(gpu: Any) -> None:
    x, weights, out = (gpu.zeros(shape, np.float32) for shape in ((2, 8), (4, 8), (2, 4)))
    with pytest.raises(ValueError, match="cannot multiply"):
        gpu.matmul_half(x, weights, out, accumulate=False)
    with pytest.raises(ValueError, match="cannot multiply"):
        gpu.matmul_float(x, x, out, accumulate=False)


def test_products_can_be_recorded(gpu: Any) -> None:
    x, weights = np.ones((16, 64), np.float16), np.ones((32, 64), np.float16)
    on_gpu, out = (gpu.upload(x), gpu.upload(weights)), gpu.zeros((16, 32), np.float32)
    gpu.matmul_half(*on_gpu, out, accumulate=False)
    graph = gpu.capture(lambda: gpu.matmul_half(*on_gpu, out, accumulate=True))
    graph.launch()
    graph.launch()
    assert (gpu.download(out) == 3 * 64).all()


def test_events_wait_and_time(gpu: Any) -> None:
    x, y = gpu.zeros(1 << 24, np.uint32), gpu.zeros(1 << 24, np.uint32)

    def work(times: int) -> None:
        for _ in range(times):
            gpu.launch(MIX, (1 << 24) // 256, 256, x, y, np.uint32(1 << 24))

    work(1)
    started = time.perf_counter()
    start = gpu.record(timing=True)
    work(10)
    end = gpu.record(timing=True)
    end.wait()
    assert 0 < end.since(start) <= time.perf_counter() - started
    gpu.record().wait()


def test_memory_is_counted_and_given_back(gpu: Any) -> None:
    before = gpu.used_bytes
    whole = gpu.empty((1000, 1000), np.float32)
    part = whole[10:20]
    assert gpu.used_bytes == before + 4_000_000
    del whole
    assert gpu.used_bytes == before + 4_000_000  # a view keeps it
    del part
    gc.collect()
    assert gpu.used_bytes == before


def test_a_budget_is_kept(opening: Callable[..., Any]) -> None:
    budget = 100 << 20
    device = opening(0, None, budget)
    used = device.used_bytes
    assert 0 < used <= 32 << 20  # cuBLAS's workspace
    first = device.zeros(budget - used - 1000, np.uint8)
    with pytest.raises(DeviceMemoryError) as refused:
        device.empty(1001, np.uint8)
    assert (refused.value.asked, refused.value.budget, refused.value.used) == (1001, budget, budget - 1000)
    assert refused.value.free > 0
    del first
    gc.collect()
    device.empty(1001, np.uint8)
    device.close()
    gc.collect()
    assert device.used_bytes == 0


def test_more_than_the_gpu_has_is_refused_with_figures(gpu: Any) -> None:
    _, total = gpu.memory()
    with pytest.raises(DeviceMemoryError) as refused:
        gpu.empty(total + 1, np.uint8)
    assert refused.value.asked == total + 1 and refused.value.budget is None
    assert gpu.download(gpu.zeros(3, np.int32)).tolist() == [0, 0, 0]


def test_locked_memory_is_copied_from_any_byte_and_written_by_kernels(gpu: Any) -> None:
    locked = gpu.pinned(1003)
    locked[:] = np.arange(1003) % 251
    on_gpu = gpu.zeros(1000, np.uint8)
    gpu.copy_async(on_gpu, locked[3:])
    np.testing.assert_array_equal(gpu.download(on_gpu), locked[3:])
    words = locked[:800].view(np.int32)
    words[:] = np.arange(200)
    gpu.launch(REVERSE, 1, 64, gpu.host_address(words[100:]), np.int32(100), shared_bytes=400)
    gpu.record().wait()
    assert words.tolist() == [*range(100), *range(199, 99, -1)]
    with pytest.raises(ValueError, match="cannot copy"):
        gpu.copy_async(on_gpu, locked)


def test_only_contiguous_arrays_are_downloaded(gpu: Any) -> None:
    whole = gpu.upload(np.arange(12, dtype=np.float16).reshape(3, 4))
    np.testing.assert_array_equal(gpu.download(whole[1:]), [[4, 5, 6, 7], [8, 9, 10, 11]])
    with pytest.raises(ValueError, match="as one run"):
        gpu.download(whole[:, 1:])


def test_machine_code_is_found_by_the_next_process(
    opening: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress: list[tuple[int, int]] = []
    first = opening(0, tmp_path)
    first.prepare([COUNT, MIX], lambda done, total: progress.append((done, total)))
    first.close()
    assert progress == [(1, 2), (2, 2)]
    monkeypatch.setattr(nvrtc.Nvrtc, "compile", None)
    second = opening(0, tmp_path)
    state, log = second.zeros(1, np.int32), second.zeros(1, np.int32)
    second.launch(COUNT, 1, 1, state, log)
    assert second.download(log).tolist() == [100]
    second.close()


def test_a_kernel_that_does_not_compile_says_why(gpu: Any) -> None:
    with pytest.raises(CompileError, match=r"no file missing\.cu"):
        gpu.prepare([Kernel.of("missing.cu", "missing")])


def test_every_representative_kernel_loads(gpu: Any) -> None:
    gpu.prepare(instances.representative(Card(gpu.name, gpu.compute_capability, gpu.n_processors)))


def test_an_eager_launch_costs_little(gpu: Any) -> None:
    state, log = gpu.zeros(1, np.int32), gpu.zeros(100_000, np.int32)
    times = []
    for _ in range(10):
        gpu.synchronize()
        started = time.perf_counter()
        for _ in range(200):
            gpu.launch(COUNT, 1, 1, state, log)
        times.append((time.perf_counter() - started) / 200)
    print(f"an eager launch takes {min(times) * 1e6:.1f} us of the host")
    assert min(times) < 15e-6
