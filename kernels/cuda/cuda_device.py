"""A GPU as `Device`: arrays and the main stream by CuPy, launches by the driver, products by cuBLAS.

The only module that imports CuPy. Knows no kernel. One thread drives a device: the one that opened it. CuPy
compiles nothing here, and its memory pool is not used: every byte is asked of the driver once and counted.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import cupy
import cupy_backends.cuda.libs
import numpy as np
import numpy.typing as npt

from kernels.cuda.compiler import Compiler
from kernels.cuda.cublas import FLOAT, HALF, Cublas, workspace_bytes
from kernels.cuda.device import Array, Event, Kernel, Shape
from kernels.cuda.driver import MULTIPROCESSOR_COUNT, Driver
from kernels.cuda.graph import CudaGraph
from kernels.cuda.launch import LoadedKernel
from kernels.cuda.page_locks import LockedRuns, whole_pages
from kernels.cuda.streams import CudaEvent, CudaLane, own
from kernels.errors import DeviceError, DeviceMemoryError

_runtime = cupy.cuda.runtime
_OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation."""
_REGISTER_PORTABLE, _REGISTER_MAPPED = 1, 2
"""Flags of cudaHostRegister."""
_FIRST_WITH_DEPENDENT_LAUNCHES = 90


class CudaDevice:
    """One GPU, its main stream, lanes beside it, and what was allocated on it."""

    def __init__(
        self, ordinal: int = 0, cache_folder: Path | None = None, vram_budget: int | None = None
    ) -> None:
        """Open GPU `ordinal` in this thread, with cuBLAS's workspace as the first allocation.

        Machine code is kept in `cache_folder` if given; `vram_budget` is the most that may be allocated, in
        bytes (None: whatever is free). Raises DeviceError, CompileError without NVRTC, DeviceMemoryError.
        """
        self._driver = Driver()
        self.ordinal = ordinal
        """Its number among the GPUs that this process sees."""
        self.name = self._driver.device_text("cuDeviceGetName", ordinal)
        self.compute_capability = self._driver.compute_capability(ordinal)
        self.n_processors = self._driver.attribute(MULTIPROCESSOR_COUNT, ordinal)
        self._compiler = Compiler(
            self.compute_capability, cache_folder, newest_major=self._driver.cuda_version[0]
        )
        self._kernels: dict[Kernel, LoadedKernel] = {}
        self._may_depend = self.compute_capability >= _FIRST_WITH_DEPENDENT_LAUNCHES
        self._fenced = False
        self._books = _Books(vram_budget)
        self._locked = LockedRuns()
        """Host memory that `pinned` gave, or `lock` locked."""
        self._registered = LockedRuns()
        """Of it what `lock` locked."""
        with _asking(f"opening GPU {ordinal} ({self.name})"):
            cupy.cuda.Device(ordinal).use()
            self._stream = cupy.cuda.Stream(non_blocking=True)
        self._workspace: Array | None = self.empty(workspace_bytes(self.compute_capability), np.uint8)
        self._cublas = Cublas(
            _cublas_library(), self._stream.ptr, _address(self._workspace), self._workspace.nbytes
        )

    def enter(self) -> None:
        """Let the calling thread use it as well; see `Device`."""
        with _asking("entering the GPU from another thread"):
            cupy.cuda.Device(self.ordinal).use()

    def close(self) -> None:
        """Wait, for lanes too, then free locks, kernels, cuBLAS and workspace.

        Arrays, graphs and lanes go with their last reference.
        """
        self.synchronize()
        with _asking("closing"):
            _runtime.deviceSynchronize()
        for address in self._registered.clear():
            self._unregister(address)
        self._cublas.close()
        self._workspace = None
        while self._kernels:
            self._kernels.popitem()[1].unload()

    # ---- memory

    @property
    def used_bytes(self) -> int:
        """Device memory allocated here and still referred to. What CUDA itself needs is not among it."""
        return self._books.used

    def memory(self) -> tuple[int, int]:
        """Bytes of the GPU's memory that are free to anyone, and that there are."""
        with _asking("asking for the free memory"):
            free, total = _runtime.memGetInfo()
        return free, total

    def empty(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        """Device memory whose contents are undefined, 256-byte aligned. Raises DeviceMemoryError."""
        extents = (shape,) if isinstance(shape, int) else shape
        n_bytes = max(1, math.prod(extents) * np.dtype(dtype).itemsize)
        address, owner = self._books.allocate(n_bytes)
        memory = cupy.cuda.UnownedMemory(address, n_bytes, owner, self.ordinal)
        array: Array = cupy.ndarray(extents, np.dtype(dtype), cupy.cuda.MemoryPointer(memory, 0))
        return array

    def zeros(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        """Device memory that is zero before the next launch runs. Raises DeviceMemoryError."""
        array = self.empty(shape, dtype)
        with _asking("clearing memory"):
            _runtime.memsetAsync(_address(array), 0, array.nbytes, self._stream.ptr)
        return array

    def upload(self, host: npt.NDArray[Any]) -> Array:
        """A copy of `host` in device memory; `host` may change afterwards. Raises DeviceMemoryError."""
        array = self.empty(host.shape, host.dtype)
        self.copy_async(array, np.ascontiguousarray(host))
        self.synchronize()
        return array

    def copy_async(self, to: Array, host: npt.NDArray[Any]) -> None:
        """Copy `host`, part of a `pinned` array, into contiguous `to`; `host` must stay until it is done."""
        self.copy_to(self._stream.ptr, to, host)

    def copy_to(self, stream: int, to: Array, host: npt.NDArray[Any]) -> None:
        """The same on any stream, and from any memory: that which is not page-locked is slower, and waits."""
        if to.nbytes != host.nbytes or not _is_contiguous(to) or not host.flags.c_contiguous:
            raise ValueError(f"cannot copy {host.shape} {host.dtype} to {to.shape} {to.dtype} as one run")
        target, source = _address(to), host.ctypes.data
        for first, n_bytes, locked in self._locked.cut(source, host.nbytes):
            if locked:
                self._driver.copy_from_locked(target + first, source + first, n_bytes, stream)
                continue
            with _asking("copying to the GPU"):
                _runtime.memcpyAsync(
                    target + first, source + first, n_bytes, _runtime.memcpyHostToDevice, stream
                )

    def download(self, array: Array) -> npt.NDArray[Any]:
        """A copy of a contiguous `array` on the host, after waiting for what writes it."""
        if not _is_contiguous(array):
            raise ValueError(f"cannot copy an array of strides {array.strides} as one run")
        host = np.empty(array.shape, array.dtype)
        with _asking("copying from the GPU"):
            _runtime.memcpyAsync(
                host.ctypes.data, _address(array), host.nbytes, _runtime.memcpyDeviceToHost, self._stream.ptr
            )
        self.synchronize()
        return host

    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Page-locked host memory: copied at full speed, open to kernels (`host_address`)."""
        with _asking(f"locking {n_bytes} bytes of host memory"):
            address = _runtime.hostAlloc(
                max(1, n_bytes), _runtime.hostAllocPortable | _runtime.hostAllocMapped
            )
        buffer = (ctypes.c_uint8 * n_bytes).from_address(address)
        self._locked.add(address, max(1, n_bytes))
        weakref.finalize(buffer, _free_pinned, self._locked, address).atexit = False
        return np.ctypeslib.as_array(buffer)

    def host_address(self, host: npt.NDArray[Any]) -> np.uint64:
        """What to pass to a kernel that reads or writes `host`, part of a `pinned` array."""
        # Host and device share one address space for memory locked like this, on every 64-bit system.
        return np.uint64(host.ctypes.data)

    def lock(self, memory: npt.NDArray[np.uint8]) -> bool:
        """Page-lock `memory`, host memory in one run, as far as it is whole pages; see `Device`."""
        address, n_bytes = _pages_of(memory)
        if not n_bytes:
            return True
        self._locked.add(address, n_bytes)
        try:
            _runtime.hostRegister(address, n_bytes, _REGISTER_PORTABLE | _REGISTER_MAPPED)
        except _runtime.CUDARuntimeError:
            # Systems refuse with different codes; a GPU that has failed says so at the next call.
            self._locked.remove(address)
            return False
        self._registered.add(address, n_bytes)
        return True

    def unlock(self, memory: npt.NDArray[np.uint8]) -> None:
        """Undo `lock` of the same memory, from which no copy may be under way."""
        address, n_bytes = _pages_of(memory)
        if n_bytes:
            self._registered.remove(address)
            self._unregister(address)

    def _unregister(self, address: int) -> None:
        self._locked.remove(address)
        _free(_runtime.hostUnregister, address)

    # ---- work

    def prepare(
        self, kernels: Iterable[Kernel], on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Compile and load kernels, so that no launch has to; `on_progress(done, total)` counts compilations.

        Raises CompileError, DeviceError.
        """
        wanted = list(dict.fromkeys(kernels))
        self._compiler.prepare(wanted, on_progress)
        for kernel in wanted:
            self.loaded(kernel)

    def launch(
        self,
        kernel: Kernel,
        grid: Shape,
        block: Shape,
        *args: Array | np.generic,
        shared_bytes: int = 0,
    ) -> None:
        """Run `kernel` after what was launched before; see `Device`. Raises TypeError for unfit arguments."""
        loaded = self._kernels.get(kernel) or self.loaded(kernel)
        loaded.launch(
            self._stream.ptr,
            grid,
            block,
            args,
            shared_bytes,
            dependent=self._may_depend and not self._fenced,
        )
        self._fenced = False

    def fence(self) -> None:
        """Let the next launch start only when all before it is done, so that it may read new weights."""
        self._fenced = True

    def matmul_half(self, x: Array, weights: Array, out: Array, *, accumulate: bool) -> None:
        """out (+)= x @ weights.T: x [T, K], weights [N, K] f16; out [T, N] f32, its rows any stride apart."""
        self._matmul(HALF, np.dtype(np.float16), x, weights, out, accumulate)

    def matmul_float(self, x: Array, weights: Array, out: Array, *, accumulate: bool) -> None:
        """The same with x and weights in f32, without TF32."""
        self._matmul(FLOAT, np.dtype(np.float32), x, weights, out, accumulate)

    def _matmul(
        self, data_type: int, dtype: np.dtype[Any], x: Array, weights: Array, out: Array, accumulate: bool
    ) -> None:
        (n_tokens, n_columns), (n_rows, _) = x.shape, weights.shape
        if weights.shape[1] != n_columns or out.shape != (n_tokens, n_rows):
            raise ValueError(
                f"cannot multiply {x.shape} by the transpose of {weights.shape} into {out.shape}"
            )
        if (x.dtype, weights.dtype, out.dtype) != (dtype, dtype, np.dtype(np.float32)):
            raise ValueError(f"cannot multiply {x.dtype} by {weights.dtype} into {out.dtype}")
        self._cublas.multiply(
            data_type,
            (n_tokens, n_rows, n_columns),
            _rows(x),
            _rows(weights),
            _rows(out),
            accumulate=accumulate,
        )

    def capture(self, run: Callable[[], None]) -> CudaGraph:
        """Record what `run` launches, without running it. Raises DeviceError, and whatever `run` raises."""
        fenced = self._fenced
        try:
            return CudaGraph(self._driver, self._stream.ptr, run)
        finally:
            self._fenced = fenced  # nothing was launched

    def lane(self) -> CudaLane:
        """A new lane. Raises DeviceError."""
        return CudaLane(self._driver, self)

    def wait_for(self, event: Event) -> None:
        """What follows on the main stream waits for `event` of a lane; the host does not. Also a `fence`."""
        own(event).hold_back(self._stream.ptr)
        self._fenced = True

    def record(self, *, timing: bool = False) -> CudaEvent:
        """The place in the main stream after all that is on it by now; `timing`: for `Event.since`."""
        return CudaEvent(self._driver, self._stream.ptr, timing=timing)

    def synchronize(self) -> None:
        """Wait until all that was put on the main stream is done. Raises DeviceError for what failed."""
        # By an event: waiting for the stream itself keeps a core busy.
        self.record().wait()

    def loaded(self, kernel: Kernel) -> LoadedKernel:
        """A kernel on the device, compiled and loaded if it is not yet. Raises CompileError, DeviceError."""
        if kernel not in self._kernels:
            code = self._compiler.compile(kernel)
            self._kernels[kernel] = LoadedKernel(self._driver, code, kernel.name, may_depend=self._may_depend)
        return self._kernels[kernel]


class _Books:
    """What was allocated, and how much may be."""

    def __init__(self, budget: int | None) -> None:
        self.budget = budget
        self.used = 0

    def allocate(self, n_bytes: int) -> tuple[int, object]:
        """The address of new device memory, and what keeps it: once that is gone, the memory is freed."""
        if self.budget is not None and self.used + n_bytes > self.budget:
            raise self._refusal(n_bytes)
        try:
            address = _runtime.malloc(n_bytes)
        except _runtime.CUDARuntimeError as error:
            if error.status == _OUT_OF_MEMORY:
                raise self._refusal(n_bytes) from None
            raise DeviceError(f"allocating {n_bytes} bytes on the GPU: {error}") from None
        self.used += n_bytes
        owner = _Owner()
        weakref.finalize(owner, self._free, address, n_bytes).atexit = False
        return address, owner

    def _free(self, address: int, n_bytes: int) -> None:
        _free(_runtime.free, address)
        self.used -= n_bytes

    def _refusal(self, n_bytes: int) -> DeviceMemoryError:
        free, _ = _runtime.memGetInfo()
        return DeviceMemoryError(n_bytes, free, self.budget, self.used)


class _Owner:
    """Something that can be referred to weakly."""


def _free(give_back: Callable[[int], None], address: int) -> None:
    """Free memory. A GPU that has failed refuses even that: the driver frees it when the process ends."""
    with suppress(_runtime.CUDARuntimeError):
        give_back(address)


def _free_pinned(locked: LockedRuns, address: int) -> None:
    locked.remove(address)
    _free(_runtime.freeHost, address)


@contextmanager
def _asking(what: str) -> Iterator[None]:
    """Turn CuPy's errors into ours."""
    try:
        yield
    except _runtime.CUDARuntimeError as error:
        if error.status == _OUT_OF_MEMORY:
            free, _ = _runtime.memGetInfo()
            raise DeviceMemoryError(0, free, None, 0, call=what) from None
        raise DeviceError(f"{what}: {error}") from None


def _pages_of(memory: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """Address and bytes of the whole pages in it."""
    if not memory.flags.c_contiguous:
        raise ValueError(f"cannot lock memory of strides {memory.strides} as one run")
    return whole_pages(memory.ctypes.data, memory.nbytes)


def _address(array: Any) -> int:
    return int(array.data.ptr)


def _is_contiguous(array: Any) -> bool:
    return bool(array.flags.c_contiguous)


def _cublas_library() -> ctypes.CDLL:
    """The library that CuPy finds and loads, in NVIDIA's wheels or in a toolkit."""
    try:
        cublas_of_cupy = cupy_backends.cuda.libs.cublas
    except ImportError as error:
        raise DeviceError(
            f"cuBLAS cannot be loaded: pip install 'tiercel[cuda13]' or [cuda12] ({error})"
        ) from None
    for major in (13, 12):
        try:
            return ctypes.CDLL(f"libcublas.so.{major}")
        except OSError:
            continue
    raise DeviceError(f"no libcublas.so of CUDA 12 or 13 was loaded by {cublas_of_cupy.__file__}")


def _rows(matrix: Array) -> tuple[int, int]:
    """For cuBLAS: the address, and the elements from one row to the next."""
    size = matrix.dtype.itemsize
    if matrix.strides[1] != size:
        raise ValueError(f"the rows of a matrix of strides {matrix.strides} are not contiguous")
    return _address(matrix), max(matrix.strides[0] // size, matrix.shape[1])
