"""Lanes and events on a driver of paper: which call goes where, and what a refusal becomes."""

from __future__ import annotations

import ctypes
import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernels.cuda.device import Array, Kernel
from kernels.cuda.driver import Driver
from kernels.cuda.streams import CudaEvent, CudaLane
from kernels.errors import DeviceError

MAIN = 7
KERNEL = Kernel.of("repack.cu", "repack")


class PaperCuda:
    """libcuda that notes the calls for streams and events; every event is reached at the third question."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.status = 0
        self._n_made = 100
        self._n_asked = 0

    def driver(self) -> Driver:
        """One whose functions are noted here."""
        driver = Driver.__new__(Driver)
        names = (
            "cuStreamCreateWithPriority", "cuStreamDestroy_v2", "cuStreamWaitEvent", "cuEventCreate",
            "cuEventRecord", "cuEventSynchronize", "cuEventDestroy_v2", "cuEventElapsedTime", "cuEventQuery",
            "cuMemcpyHtoDAsync_v2",
        )  # fmt: skip
        driver._functions = {name: self._function(name) for name in names}
        driver._functions |= {"cuGetErrorName": lambda *_: 1, "cuGetErrorString": lambda *_: 1}
        return driver

    def _function(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name in ("cuStreamCreateWithPriority", "cuEventCreate"):
                self._n_made += 1
                arguments[0]._obj.value = self._n_made
                self.calls.append((name, *arguments[1:]))
            elif name == "cuEventElapsedTime":
                arguments[0]._obj.value = 1500.0
                self.calls.append((name, *arguments[1:]))
            else:
                self.calls.append((name, *arguments))
            if name == "cuEventQuery" and not self.status:
                self._n_asked += 1
                return 0 if self._n_asked >= 3 else 600
            return self.status

        return call


class Home:
    """The device of a lane."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.copies: list[tuple[Any, ...]] = []

    def loaded(self, kernel: Kernel) -> Any:
        def launch(stream: int, *arguments: Any, dependent: bool) -> None:
            self.launches.append((kernel, stream, *arguments, dependent))

        return SimpleNamespace(launch=launch)

    def copy_to(self, stream: int, to: Array, host: Any) -> None:
        self.copies.append((stream, to, host))


def test_a_lane_has_a_stream_of_its_own() -> None:
    cuda, home = PaperCuda(), Home()
    lane = CudaLane(cuda.driver(), home)
    assert cuda.calls == [("cuStreamCreateWithPriority", 1, -5)]
    lane.launch(KERNEL, 3, 128, np.int32(5), shared_bytes=16)
    host: Any = np.zeros(3)
    lane.copy_async(host, host)
    assert home.launches == [(KERNEL, 101, 3, 128, (np.int32(5),), 16, False)]
    assert home.copies == [(101, host, host)]
    del lane
    gc.collect()
    assert cuda.calls[-1] == ("cuStreamDestroy_v2", 101)


def test_streams_wait_for_each_others_events() -> None:
    cuda = PaperCuda()
    driver = cuda.driver()
    lane, used = CudaLane(driver, Home()), CudaEvent(driver, MAIN, timing=False)
    lane.wait_for(used)
    arrived = lane.record(timing=True)
    arrived.hold_back(MAIN)
    assert cuda.calls == [
        ("cuStreamCreateWithPriority", 1, -5),
        ("cuEventCreate", 3),
        ("cuEventRecord", 102, MAIN),
        ("cuStreamWaitEvent", 101, 102, 0),
        ("cuEventCreate", 1),
        ("cuEventRecord", 103, 101),
        ("cuStreamWaitEvent", MAIN, 103, 0),
    ]


def test_events_are_asked_waited_for_and_timed() -> None:
    cuda = PaperCuda()
    driver = cuda.driver()
    start, end = (CudaEvent(driver, MAIN, timing=True) for _ in range(2))
    assert [end.done for _ in range(3)] == [False, False, True]
    assert end.since(start) == 1.5
    assert cuda.calls[-2:] == [("cuEventSynchronize", 102), ("cuEventElapsedTime", 101, 102)]
    end.wait()
    del start, end
    gc.collect()
    assert ("cuEventDestroy_v2", 101) in cuda.calls and ("cuEventDestroy_v2", 102) in cuda.calls


def test_a_gpu_that_failed_says_so_when_it_is_asked() -> None:
    cuda = PaperCuda()
    event = CudaEvent(cuda.driver(), MAIN, timing=False)
    cuda.status = 700
    for ask in (lambda: event.done, event.wait):
        with pytest.raises(DeviceError, match="the GPU failed: status 700"):
            ask()


def test_a_copy_names_both_ends() -> None:
    cuda = PaperCuda()
    cuda.driver().copy_from_locked(1 << 40, 1 << 41, 99, MAIN)
    assert cuda.calls == [("cuMemcpyHtoDAsync_v2", 1 << 40, 1 << 41, 99, MAIN)]
    assert ctypes.sizeof(ctypes.c_ulonglong) == 8
