"""What a driver refuses, on a CuPy of paper: to free memory, to lock it, and to have any for a graph."""

from __future__ import annotations

import gc
import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest

from kernels.cuda.device import Kernel
from kernels.cuda.page_locks import PAGE, LockedRuns
from kernels.errors import DeviceMemoryError


class CUDARuntimeError(RuntimeError):
    status = 700


@pytest.fixture
def cuda_device(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of the module, over a runtime that gives memory and takes none back."""

    def refuse(address: int) -> None:
        raise CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        malloc=lambda n_bytes: 4096,
        free=refuse,
        freeHost=refuse,
        hostUnregister=refuse,
    )
    fake = {
        "cupy": SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)),
        "cupy_backends": SimpleNamespace(cuda=SimpleNamespace(libs=None)),
        "cupy_backends.cuda": SimpleNamespace(libs=None),
        "cupy_backends.cuda.libs": SimpleNamespace(),
    }
    for name, module in fake.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    spec = importlib.util.find_spec("kernels.cuda.cuda_device")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_memory_that_the_driver_does_not_take_back_is_no_traceback(
    cuda_device: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    books = cuda_device._Books(None)
    address, owner = books.allocate(100)
    assert (address, books.used) == (4096, 100)
    del owner
    gc.collect()
    assert books.used == 0
    cuda_device._free(sys.modules["cupy"].cuda.runtime.freeHost, address)
    assert capsys.readouterr().err == ""


def test_memory_that_the_system_does_not_lock_stays_as_it_is(cuda_device: ModuleType) -> None:
    runtime = sys.modules["cupy"].cuda.runtime
    registered: list[tuple[int, int, int]] = []

    def register(address: int, n_bytes: int, flags: int) -> None:
        if registered:
            raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        registered.append((address, n_bytes, flags))

    runtime.hostRegister = register
    device = cuda_device.CudaDevice.__new__(cuda_device.CudaDevice)
    device._locked, device._registered = LockedRuns(), LockedRuns()
    memory = np.zeros(5 * PAGE, np.uint8)
    first = -memory.ctypes.data % PAGE
    one, two = memory[: first + PAGE], memory[first + PAGE :]
    assert device.lock(one)
    assert registered == [(memory.ctypes.data + first, PAGE, 3)]
    assert not device.lock(two)
    assert [part.locked for part in device._locked.cut(memory.ctypes.data + first, 2 * PAGE)] == [True, False]
    device.unlock(one)
    assert not device._registered.clear() and not device._locked.clear()


def test_a_graph_that_is_refused_leaves_the_fence_to_the_next_launch(cuda_device: ModuleType) -> None:
    """Else the first of its kernels might read weights that a lane is still to bring."""
    kernel = Kernel.of("repack.cu", "repack")
    early: list[bool] = []

    def instantiate(recording: int, stream: int) -> NoReturn:
        raise DeviceMemoryError(0, 0, None, 0)

    device = cuda_device.CudaDevice.__new__(cuda_device.CudaDevice)
    device._stream, device._may_depend, device._fenced = SimpleNamespace(ptr=7), True, False
    device._kernels = {kernel: SimpleNamespace(launch=lambda *args, dependent: early.append(dependent))}
    device._driver = SimpleNamespace(
        begin_capture=lambda stream: None, end_capture=lambda stream: 3, instantiate=instantiate
    )
    device.fence()
    with pytest.raises(DeviceMemoryError):
        device.capture(lambda: device.launch(kernel, 1, 1))
    early.clear()
    for _ in range(2):
        device.launch(kernel, 1, 1)
    assert early == [False, True]
