"""A device on which kernels/cuda runs without a GPU: g++ compiles the kernels, fibers are their threads.

Stricter than a GPU: memory starts as NaNs, every buffer ends at a page that may not be touched, blocks and
threads run in an order of their own, of two streams one is late (emulated_streams.py), and what CUDA leaves
undefined is an `EmulationError`. What runs the threads is in emulator/; this knows files, the compiler, and
how arguments are passed.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import math
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.cuda.compiler import inlined_source
from kernels.cuda.device import Array, Event, Graph, Kernel, Lane, Shape
from kernels.cuda.page_locks import LockedRuns, whole_pages
from kernels.errors import CompileError, DeviceMemoryError
from tests.kernels.cuda.emulated_streams import Stream

REPO = Path(__file__).resolve().parents[3]
EMULATOR = Path(__file__).parent / "emulator"
CACHE = REPO / ".cache" / "cuda-emulator"
COMPILER = "g++"

_FLAGS = [
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-g1",
    "-U_FORTIFY_SOURCE",
    "-ffp-contract=off",
    "-fno-math-errno",
]
_RUNTIME_FLAGS = [*_FLAGS, "-O2", "-pthread"]
_RUNTIME_LIBRARIES = ["-ldl", "-lrt"]
# The sanitizers trap where an index leaves its array, an address is not aligned for its type, a shift is too
# far. A kernel finds the C library where the runtime has brought it: looking through it again would take as
# long as compiling.
_KERNEL_FLAGS = [
    *_FLAGS, "-O1", "-w", "-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-fwrapv", "-nostdlib",
    "-fsanitize=bounds,alignment,shift-exponent", "-fsanitize-undefined-trap-on-error",
]  # fmt: skip

MOST_THREADS = 1024
MOST_STATIC_SHARED, MOST_SHARED = 48 << 10, 227 << 10
MOST_BLOCKS = (2**31 - 1, 65535, 65535)

_TYPES = {"i": np.int32, "u": np.uint32, "l": np.int64, "L": np.uint64, "f": np.float32}
"""Of scalar parameters, by EmulatedCode of emulator.h; "p" is a pointer."""

_one_at_a_time = threading.RLock()
"""Launches, for a block's shared memory is static; and the host's writes, for a launch protects memory."""


class EmulationError(RuntimeError):
    """A kernel did what CUDA leaves undefined, or was launched in a way that a GPU refuses."""


class DeviceArray(np.ndarray[Any, np.dtype[Any]]):
    """An array of the emulated device: sliced and viewed like any other, but only kernels compute with it."""

    __array_ufunc__ = None  # type: ignore[assignment]

    def __getitem__(self, key: Any) -> Any:
        """A view; of one element too, as CuPy has it."""
        part = super().__getitem__(key)
        if isinstance(part, DeviceArray):
            return part
        return super().__getitem__((*key, ...) if isinstance(key, tuple) else (key, ...))


class EmulatedDevice:
    """A `Device` of compute capability 9.0.

    `backwards`: the last block runs first, and in it the last thread (each barrier turns the threads' order
    round). A launch that computes for longer than `seconds` is an error; there are `n_bytes` of memory.
    `late`: whose work is not done before somebody waits for it, that of lanes or that of the main stream; the
    other's is done at once. No more than `lockable_bytes` of host memory can be locked (None: all of it).
    """

    name = "emulator"
    compute_capability = 90
    n_processors = 4

    def __init__(
        self,
        *,
        backwards: bool = True,
        seconds: float = 60.0,
        n_bytes: int = 1 << 30,
        late: Literal["lanes", "main"] = "lanes",
        lockable_bytes: int | None = None,
    ) -> None:
        self.used_bytes = 0
        """Allocated and still referred to."""
        self.locked_bytes = 0
        """By `lock`."""
        self.unlocked_copies = 0
        """Copies of lanes from memory that is not page-locked, or not all of it."""
        self._backwards = backwards
        self._seconds = seconds
        self._n_bytes = n_bytes
        self._fenced = False
        self._recording: list[Callable[[], None]] | None = None
        self._late = late
        self._main = Stream(late=late == "main")
        self._lockable_bytes = lockable_bytes
        self._locked = LockedRuns()
        self._copied_from: list[tuple[int, int]] = []
        """Addresses of host memory, and their ends, from which lanes are still to copy."""
        self._threads = {threading.get_ident()}

    def enter(self) -> None:
        self._threads.add(threading.get_ident())

    def close(self) -> None:
        """Nothing to give back: arrays go with their last reference."""

    # ---- memory

    def memory(self) -> tuple[int, int]:
        """Bytes free and in all."""
        return self._n_bytes - self.used_bytes, self._n_bytes

    def empty(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        array: Array = self._allocate(shape, np.dtype(dtype), pinned=False)
        return array

    def zeros(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        array = self.empty(shape, dtype)
        self._write(array, lambda place: place.fill(0))
        return array

    def upload(self, host: npt.NDArray[Any]) -> Array:
        self._not_recorded("upload")
        array = self.empty(host.shape, host.dtype)
        self._write(array, lambda place: np.copyto(place, host))
        self.synchronize()
        return array

    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        return _on_host(self._allocate(n_bytes, np.dtype(np.uint8), pinned=True))

    def host_address(self, host: npt.NDArray[Any]) -> np.uint64:
        return np.uint64(host.ctypes.data)

    def copy_async(self, to: Array, host: npt.NDArray[Any]) -> None:
        _check_copy(to, host)
        if not self._is_locked(host):
            raise EmulationError("a copy from memory that is not pinned")
        self._write(to, lambda place: ctypes.memmove(place.ctypes.data, host.ctypes.data, host.nbytes))

    def lock(self, memory: npt.NDArray[np.uint8]) -> bool:
        address, n_bytes = _pages_of(memory)
        if self._lockable_bytes is not None and self.locked_bytes + n_bytes > self._lockable_bytes:
            return False
        if n_bytes:
            self._locked.add(address, n_bytes)
        self.locked_bytes += n_bytes
        return True

    def unlock(self, memory: npt.NDArray[np.uint8]) -> None:
        address, n_bytes = _pages_of(memory)
        if not n_bytes:
            return
        if address not in self._locked:
            raise EmulationError("unlocking memory that is not locked")
        if any(first < address + n_bytes and address < end for first, end in self._copied_from):
            raise EmulationError("unlocking memory from which a lane is still to copy")
        self._locked.remove(address)
        self.locked_bytes -= n_bytes

    def _is_locked(self, host: npt.NDArray[Any]) -> bool:
        if _runtime().emulator_owns(host.ctypes.data):
            return True
        return all(part.locked for part in self._locked.cut(host.ctypes.data, host.nbytes))

    def download(self, array: Array) -> npt.NDArray[Any]:
        if not _checked(array).flags.c_contiguous:
            raise EmulationError("a download of an array that is not contiguous")
        self.synchronize()
        return _on_host(array).copy()

    # ---- work

    def prepare(
        self, kernels: Iterable[Kernel], on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Compile; `on_progress(done, total)`. Raises CompileError."""
        wanted = list(dict.fromkeys(kernels))
        for done, kernel in enumerate(wanted, start=1):
            _compiled(kernel)
            if on_progress:
                on_progress(done, len(wanted))

    def launch(
        self, kernel: Kernel, grid: Shape, block: Shape, *args: Array | np.generic, shared_bytes: int = 0
    ) -> None:
        dependent, self._fenced = not self._fenced, False
        self._do(self._ready(kernel, grid, block, args, shared_bytes, dependent=dependent), args)

    def fence(self) -> None:
        self._fenced = True

    def matmul_half(self, x: Array, weights: Array, out: Array, *, accumulate: bool) -> None:
        self._matmul(x, weights, out, np.float16, accumulate)

    def matmul_float(self, x: Array, weights: Array, out: Array, *, accumulate: bool) -> None:
        self._matmul(x, weights, out, np.float32, accumulate)

    def capture(self, run: Callable[[], None]) -> Graph:
        """What `run` puts on the stream, with the arguments of now; nothing runs yet, as on a GPU."""
        self._not_recorded("capture")
        self._recording, fenced = [], self._fenced
        try:
            run()
            return _Graph(self, tuple(self._recording))
        finally:
            self._recording, self._fenced = None, fenced

    def lane(self) -> Lane:
        return _EmulatedLane(self)

    def wait_for(self, event: Event) -> None:
        self._not_recorded("waiting for a lane")
        self._main.put(_own(event).reach)
        self._fenced = True

    def record(self, *, timing: bool = False) -> Event:
        self._not_recorded("record")
        return _Event(self._main, timing=timing)

    def synchronize(self) -> None:
        self._not_recorded("waiting")
        self._main.reach(self._main.n_put)
        _runtime().emulator_settle()

    def _ready(
        self,
        kernel: Kernel,
        grid: Shape,
        block: Shape,
        args: tuple[Array | np.generic, ...],
        shared_bytes: int,
        *,
        dependent: bool,
    ) -> Callable[[], None]:
        """A launch that was checked: what runs it."""
        compiled = _compiled(kernel)
        blocks, threads = _three(grid), _three(block)
        cluster = int(dict(kernel.defines).get("CLUSTER", 1))
        _check_launch(kernel, blocks, threads, compiled.static_shared_bytes, shared_bytes)
        _check_cluster(kernel, blocks, threads, compiled.static_shared_bytes, cluster)
        values = _packed(kernel, compiled.signature, args)
        described = [(x.dtype, x.shape, x.nbytes) if isinstance(x, DeviceArray) else x for x in args]

        def run() -> None:  # does not keep the arrays alive, for a graph does not either
            start = values.ctypes.data
            pointers = (ctypes.c_void_p * len(values))(*range(start, start + values.nbytes, 8))
            message = ctypes.create_string_buffer(4096)
            launch = _Launch(
                kernel=compiled.invoke,
                arguments=ctypes.addressof(pointers),
                shared_begin=compiled.shared_begin,
                shared_end=compiled.shared_end,
                dynamic_bytes=shared_bytes,
                grid=blocks,
                block=threads,
                cluster=cluster,
                backwards=self._backwards,
                dependent=dependent,
                beside=bool(dict(kernel.defines).get("BESIDE", 0)),
                seconds=self._seconds,
                message=ctypes.addressof(message),
                message_bytes=len(message),
            )
            with _one_at_a_time:
                failed = _runtime().emulator_launch(ctypes.byref(launch))
            if failed:
                lines = [
                    f"{kernel}: {_with_lines(message.value.decode(), compiled.place)}",
                    *map(_in_words, range(len(values)), values, described),
                    f"grid {blocks}, block {threads}, {shared_bytes} bytes of dynamic shared memory",
                ]
                raise EmulationError("\n  ".join(lines))

        return run

    def _do(self, action: Callable[[], None], used: object = None) -> None:
        if self._recording is None:
            self._main.put(action, used)
        else:
            self._recording.append(action)

    def _not_recorded(self, what: str) -> None:
        if self._recording is not None:
            raise EmulationError(f"{what} while a graph is captured")

    def _write(self, array: Array, write: Callable[[npt.NDArray[Any]], object]) -> None:
        """Have something that is not a kernel write; it runs alone on the stream."""
        self._do(_writing(array, write))

    def _matmul(self, x: Array, weights: Array, out: Array, dtype: npt.DTypeLike, accumulate: bool) -> None:
        fits = x.shape[1] == weights.shape[1] and out.shape == (x.shape[0], weights.shape[0])
        if not fits or x.dtype != dtype or weights.dtype != dtype or out.dtype != np.float32:
            raise EmulationError(
                f"a product of {x.shape} and {weights.shape} into {out.shape}, or their types"
            )
        a, b = _on_host(x), _on_host(weights)

        def multiply(place: npt.NDArray[Any]) -> None:
            product = a.astype(np.float32) @ b.astype(np.float32).T
            np.copyto(place, place + product if accumulate else product)

        self._write(out, multiply)

    def _allocate(self, shape: Shape, dtype: np.dtype[Any], *, pinned: bool) -> Any:
        """A DeviceArray; mypy does not see that it is an Array."""
        extents = (shape,) if isinstance(shape, int) else shape
        n_bytes = math.prod(extents) * dtype.itemsize
        counted = 0 if pinned else n_bytes
        address = None
        if self.used_bytes + counted <= self._n_bytes:
            address = _runtime().emulator_allocate(n_bytes, pinned)
        if address is None:
            raise DeviceMemoryError(n_bytes, self._n_bytes - self.used_bytes, None, self.used_bytes)
        self.used_bytes += counted
        memory = _Memory(address, extents, dtype, None, writable=False)
        weakref.finalize(memory, self._free, address, counted).atexit = False
        return np.asarray(memory).view(DeviceArray)

    def _entered(self) -> None:
        """Check that this thread opened the device, or has entered it: the driver knows others not at all."""
        if threading.get_ident() not in self._threads:
            raise EmulationError("a thread that has not entered the device uses it")

    def _free(self, address: int, counted: int) -> None:
        self.used_bytes -= counted
        self._main.put_behind(functools.partial(_free, address))  # as a GPU does


class _EmulatedLane:
    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device
        self._stream = Stream(late=device._late == "lanes")

    def launch(
        self, kernel: Kernel, grid: Shape, block: Shape, *args: Array | np.generic, shared_bytes: int = 0
    ) -> None:
        self._device._entered()
        run = self._device._ready(kernel, grid, block, args, shared_bytes, dependent=False)

        def action() -> None:
            run()
            _runtime().emulator_settle()

        self._stream.put(action, args)

    def copy_async(self, to: Array, host: npt.NDArray[Any]) -> None:
        _check_copy(to, host)
        device = self._device
        device._entered()
        device.unlocked_copies += not device._is_locked(host)
        copied_from = (host.ctypes.data, host.ctypes.data + host.nbytes)
        device._copied_from.append(copied_from)

        def write(place: npt.NDArray[Any]) -> None:
            ctypes.memmove(place.ctypes.data, host.ctypes.data, host.nbytes)
            device._copied_from.remove(copied_from)

        self._stream.put(_writing(to, write))

    def wait_for(self, event: Event) -> None:
        self._stream.put(_own(event).reach)

    def record(self, *, timing: bool = False) -> Event:
        self._device._entered()
        return _Event(self._stream, timing=timing)


class _Graph:
    def __init__(self, device: EmulatedDevice, actions: tuple[Callable[[], None], ...]) -> None:
        self._device = device
        self._actions = actions

    def launch(self) -> None:
        self._device._not_recorded("launching a graph")
        self._device._main.put(self._run)

    def _run(self) -> None:
        _runtime().emulator_settle()
        for action in self._actions:
            action()
        _runtime().emulator_settle()


class _Event:
    def __init__(self, stream: Stream, *, timing: bool) -> None:
        self._stream = stream
        self._timing = timing
        self._time = 0.0
        stream.put(self._pass)
        self._n = stream.n_put

    def _pass(self) -> None:
        self._time = time.perf_counter()

    def reach(self) -> None:
        """Have everything before it done."""
        self._stream.reach(self._n)

    @property
    def done(self) -> bool:
        """Whether it is reached. The stream goes on a little, for whoever asks until it is."""
        if self._stream.n_done < self._n:
            self._stream.go_on()
        return self._stream.n_done >= self._n

    def wait(self) -> None:
        self.reach()

    def since(self, start: Event) -> float:
        earlier = _own(start)
        if not self._timing or not earlier._timing:
            raise EmulationError("an event that was recorded without timing")
        self.wait()
        return self._time - earlier._time


class _Memory:
    """Lends an address to NumPy; `owner` stays as long as the array does."""

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        strides: tuple[int, ...] | None,
        *,
        writable: bool,
        owner: object = None,
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "strides": strides,
            "data": (address, not writable),
        }


def _own(event: Event) -> _Event:
    assert isinstance(event, _Event), "events of two kinds of device"
    return event


def _checked(array: object) -> DeviceArray:
    if not isinstance(array, DeviceArray):
        raise EmulationError(f"{type(array).__name__} where a device array is wanted")
    return array


def _on_host(array: Array) -> npt.NDArray[Any]:
    """The same memory as an ordinary array."""
    own = _checked(array)
    return np.asarray(_Memory(own.ctypes.data, own.shape, own.dtype, own.strides, writable=True, owner=own))


def _pages_of(memory: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """Address and bytes of the whole pages in it."""
    if not memory.flags.c_contiguous:
        raise EmulationError("memory to be locked that is not one run")
    return whole_pages(memory.ctypes.data, memory.nbytes)


def _check_copy(to: Array, host: npt.NDArray[Any]) -> None:
    if to.nbytes != host.nbytes or not _checked(to).flags.c_contiguous or not host.flags.c_contiguous:
        raise EmulationError(f"a copy of {host.dtype} {host.shape} to {to.dtype} {to.shape} is not one run")


def _writing(array: Array, write: Callable[[npt.NDArray[Any]], object]) -> Callable[[], None]:
    """What has something that is not a kernel write to the array."""
    place = _on_host(array)

    def action() -> None:
        with _one_at_a_time:
            _runtime().emulator_open(place.ctypes.data)
            write(place)
            _runtime().emulator_settle()

    return action


def _free(address: int) -> None:
    with _one_at_a_time:
        _runtime().emulator_free(address)


# ---- launching


class _Launch(ctypes.Structure):
    """The same in emulator/threads.cpp."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("shared_begin", ctypes.c_void_p),
        ("shared_end", ctypes.c_void_p),
        ("dynamic_bytes", ctypes.c_size_t),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("cluster", ctypes.c_uint),
        ("backwards", ctypes.c_int),
        ("dependent", ctypes.c_int),
        ("beside", ctypes.c_int),
        ("seconds", ctypes.c_double),
        ("message", ctypes.c_void_p),
        ("message_bytes", ctypes.c_size_t),
    )


def _three(shape: Shape) -> tuple[int, int, int]:
    x, y, z = (*((shape,) if isinstance(shape, int) else shape), 1, 1)[:3]
    return x, y, z


def _check_launch(
    kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], static_bytes: int, shared_bytes: int
) -> None:
    too_many = any(n > most for n, most in zip(grid, MOST_BLOCKS, strict=True)) or block[2] > 64
    if min(*grid, *block) < 1 or math.prod(block) > MOST_THREADS or too_many:
        raise EmulationError(f"{kernel}: grid {grid}, block {block}")
    if static_bytes > MOST_STATIC_SHARED or static_bytes + shared_bytes > MOST_SHARED:
        raise EmulationError(
            f"{kernel}: {static_bytes} bytes of static shared memory, {shared_bytes} of dynamic"
        )


def _check_cluster(
    kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], static_bytes: int, cluster: int
) -> None:
    if grid[0] % cluster:
        raise EmulationError(f"{kernel}: a grid of {grid} is not clusters of {cluster}")
    if cluster > 1 and (static_bytes or math.prod(block) % 32):
        raise EmulationError(f"{kernel}: clusters are emulated with whole warps and dynamic shared memory")


def _packed(kernel: Kernel, signature: str, args: tuple[Array | np.generic, ...]) -> npt.NDArray[np.uint64]:
    """Every argument in 8 bytes of its own; checks what cuLaunchKernel takes on trust."""
    if len(args) != len(signature):
        raise EmulationError(f"{kernel} takes {len(signature)} arguments ({signature}), not {len(args)}")
    values = np.zeros(len(args), np.uint64)
    for i, (code, value) in enumerate(zip(signature, args, strict=True)):
        if code != "p":
            if type(value) is not _TYPES[code]:
                wanted = _TYPES[code].__name__
                raise EmulationError(f"{kernel}: argument {i} is {type(value).__name__}, wanted is {wanted}")
            values[i : i + 1].view(_TYPES[code])[0] = value
            continue
        address = int(value) if isinstance(value, np.uint64) else _checked(value).ctypes.data
        if address and not _runtime().emulator_owns(address):
            raise EmulationError(f"{kernel}: argument {i} points to no memory of the device")
        values[i] = address
    return values


def _in_words(i: int, value: np.uint64, described: Any) -> str:
    """An argument; `described` is type, shape and bytes of an array, or a scalar."""
    if not isinstance(described, tuple):
        return f"argument {i}: {described!r}"
    dtype, shape, n_bytes = described
    return f"argument {i}: {dtype} {shape} at {int(value):#x}, {n_bytes} bytes"


def _with_lines(text: str, library: Path) -> str:
    """The runtime's message with lines of the kernel's source in place of addresses of its code."""

    def line(match: re.Match[str]) -> str:
        command = ["addr2line", "-i", "-e", str(library), match[1]]
        try:
            found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return match[0]
        places = [place.partition(" ")[0].rpartition("/")[2] for place in found.splitlines()]
        return "at " + " < ".join(place for place in places if not place.startswith("emulator.h"))

    return re.sub(r"at code (0x[0-9a-f]+)", line, text)


# ---- compiling


class _Compiled(NamedTuple):
    place: Path
    invoke: int | None
    signature: str
    shared_begin: int | None
    shared_end: int | None

    @property
    def static_shared_bytes(self) -> int:
        return (self.shared_end or 0) - (self.shared_begin or 0)


def compiler_missing() -> str:
    """Why nothing can be emulated here, or ""."""
    return "" if shutil.which(COMPILER) else f"no {COMPILER}: apt-get install g++"


def emulated_source(kernel: Kernel) -> str:
    """What g++ compiles: the kernel's source with the emulator's ptx.cuh in place of the PTX.

    All of it in an unnamed namespace, so that the shared memory of templates too lies in the section for it.
    """
    # inlined_source says where a file begins. ptx.cuh includes none, so it ends where the next begins.
    ptx = f'#line 1 "emulator/ptx.cuh"\n{(EMULATOR / "ptx.cuh").read_text()}'.replace("#pragma once", "")
    pattern = re.compile(r'^#line 1 "ptx\.cuh"\n.*?(?=^#line |\Z)', re.DOTALL | re.MULTILINE)
    source = pattern.sub(lambda _: ptx, inlined_source(kernel.source))
    defines = "".join(f"#define {name} {value}\n" for name, value in kernel.defines)
    end = f'#line 1 "emulator.h"\nEMULATED_KERNEL({kernel.name})\n'
    return f'#include "emulator.h"\n{defines}namespace {{\n{source}\n}}\n{end}'


@functools.cache
def _compiled(kernel: Kernel) -> _Compiled:
    """The kernel's shared object, compiled now or found in the cache. Raises CompileError."""
    arguments = [*_KERNEL_FLAGS, f"-I{EMULATOR}", "-x", "c++", "-"]
    place = _built(kernel.name, arguments, ("emulator.h", "runtime.h"), emulated_source(kernel))
    _runtime()
    library = ctypes.CDLL(str(place))
    for name in ("emulated_shared_begin", "emulated_shared_end"):
        getattr(library, name).restype = ctypes.c_void_p
    library.emulated_signature.restype = ctypes.c_char_p
    return _Compiled(
        place,
        ctypes.cast(library.emulated_invoke, ctypes.c_void_p).value,
        library.emulated_signature().decode(),
        library.emulated_shared_begin(),
        library.emulated_shared_end(),
    )


@functools.cache
def _runtime() -> ctypes.CDLL:
    sources = [str(EMULATOR / name) for name in ("threads.cpp", "memory.cpp", "operations.cpp")]
    files = tuple(sorted(path.name for path in EMULATOR.iterdir() if path.name != "emulator.h"))
    place = _built("runtime", [*_RUNTIME_FLAGS, *sources, *_RUNTIME_LIBRARIES], files)
    library = ctypes.CDLL(str(place), ctypes.RTLD_GLOBAL)  # the kernels' shared objects call it
    library.emulator_allocate.restype = ctypes.c_void_p
    library.emulator_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int]
    for name in ("free", "owns", "open"):
        getattr(library, f"emulator_{name}").argtypes = [ctypes.c_void_p]
    return library


def _built(name: str, arguments: list[str], files: tuple[str, ...], source: str = "") -> Path:
    """A shared object from the cache, or compiled from `source` on standard input: by one process at a time.

    `files` are those of emulator/ that it depends on. Raises CompileError.
    """
    content = [_compiler_version(), *arguments, *((EMULATOR / file).read_text() for file in files), source]
    key = hashlib.sha256("\0".join(content).encode()).hexdigest()[:24]
    place = CACHE / f"{name}-{key}.so"
    if place.exists():
        return place
    with _locked(CACHE / f"{name}-{key}.lock"), tempfile.TemporaryDirectory(dir=CACHE) as folder:
        if not place.exists():
            draft = Path(folder) / place.name
            command = [COMPILER, *arguments, "-o", str(draft)]
            done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
            if done.returncode:
                raise CompileError(f"{COMPILER} does not compile {name}:\n{done.stderr}")
            os.replace(draft, place)
    return place


@functools.cache
def _compiler_version() -> str:
    return subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True).stdout


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
