"""How a launch's arguments and geometry reach the driver, on a driver of paper."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernels.cuda.driver import MAX_DYNAMIC_SHARED_SIZE_BYTES, LaunchConfig
from kernels.cuda.graph import CudaGraph
from kernels.cuda.launch import LoadedKernel
from kernels.errors import DeviceError

STREAM = 0x7FFF12345670
LANE = 0xBEEF


class PaperDriver:
    """Takes note of calls; a kernel of it takes an array, int32, float32 and uint64."""

    sizes: tuple[int, ...] | None = (8, 4, 4, 8)
    status = 0

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []
        self.calls: list[tuple[Any, ...]] = []

    def load_module(self, code: bytes) -> ctypes.c_void_p:
        return ctypes.c_void_p(1)

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(2)

    def function_attribute(self, attribute: int, function: ctypes.c_void_p) -> int:
        return 1024  # bytes of static shared memory

    def set_function_attribute(self, attribute: int, function: ctypes.c_void_p, value: int) -> None:
        self.calls.append((attribute, value))

    def parameter_sizes(self, function: ctypes.c_void_p) -> tuple[int, ...] | None:
        return self.sizes

    def launch_kernel(self, config_address: int, function: Any, parameters: Any, extra: None) -> int:
        config = LaunchConfig.from_address(config_address)
        types = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_float, ctypes.c_uint64)
        self.launches.append(
            {
                "grid": (config.grid_x, config.grid_y, config.grid_z),
                "block": (config.block_x, config.block_y, config.block_z),
                "shared": config.shared_bytes,
                "stream": config.stream,
                "dependent": [(each.id, each.value[0]) for each in config.attributes[: config.n_attributes]],
                "arguments": [
                    kind.from_address(at).value for kind, at in zip(types, parameters, strict=True)
                ],
            }
        )
        return self.status

    def fail(self, what: str, status: int) -> None:
        raise DeviceError(f"{what}: status {status}")

    def begin_capture(self, stream: int) -> None:
        self.calls.append(("begin", stream))

    def end_capture(self, stream: int) -> int:
        self.calls.append(("end", stream))
        return 3

    def instantiate(self, graph: int, stream: int) -> int:
        self.calls.append(("instantiate", graph, stream))
        return 4

    def launch_graph(self, graph: int, stream: int) -> int:
        self.calls.append(("launch", graph, stream))
        return self.status

    def destroy_recording(self, graph: int) -> None:
        self.calls.append(("destroy recording", graph))

    def destroy_graph(self, graph: int) -> None:
        self.calls.append(("destroy", graph))


class GpuArray:
    data = SimpleNamespace(ptr=0x7F0000001234)


def loaded(driver: PaperDriver, *, may_depend: bool = True) -> LoadedKernel:
    return LoadedKernel(driver, b"code", "gemv", may_depend=may_depend)  # type: ignore[arg-type]


def test_arguments_reach_the_kernel_bit_by_bit() -> None:
    driver = PaperDriver()
    kernel = loaded(driver)
    kernel.launch(
        STREAM, (3, 2), 128, (GpuArray(), np.int32(-5), np.float32(1.5), np.uint64(0)), 0, dependent=True
    )
    kernel.launch(
        LANE, 7, (32, 4, 2), (np.uint64(0), np.uint32(5), np.float32(-0.1), np.int64(-1)), 0, dependent=False
    )
    first, second = driver.launches
    assert first == {
        "grid": (3, 2, 1),
        "block": (128, 1, 1),
        "shared": 0,
        "stream": STREAM,
        "dependent": [(6, 1)],
        "arguments": [0x7F0000001234, -5, 1.5, 0],
    }
    assert second["grid"] == (7, 1, 1) and second["block"] == (32, 4, 2) and second["dependent"] == []
    assert second["stream"] == LANE
    assert second["arguments"] == [0, 5, np.float32(-0.1), 2**64 - 1]


@pytest.mark.parametrize(
    "arguments",
    [
        (GpuArray(), np.int32(1), np.float32(1)),
        (GpuArray(), np.int64(1), np.float32(1), GpuArray()),
        (GpuArray(), 1, np.float32(1), GpuArray()),
        (GpuArray(), np.int32(1), np.float64(1), GpuArray()),
        (np.zeros(3), np.int32(1), np.float32(1), GpuArray()),
    ],
)
def test_arguments_that_are_not_the_kernels_are_refused(arguments: tuple[Any, ...]) -> None:
    kernel = loaded(PaperDriver())
    kernel.launch(STREAM, 1, 1, (GpuArray(), np.int32(1), np.float32(1), GpuArray()), 0, dependent=True)
    with pytest.raises(TypeError, match="gemv takes"):
        kernel.launch(STREAM, 1, 1, arguments, 0, dependent=True)


def test_a_driver_that_knows_no_sizes_is_trusted() -> None:
    driver = PaperDriver()
    driver.sizes = None
    loaded(driver).launch(
        STREAM, 1, 1, (GpuArray(), np.int32(1), np.float32(1), GpuArray()), 0, dependent=True
    )
    assert driver.launches[0]["arguments"][1] == 1


def test_more_shared_memory_is_asked_for_once() -> None:
    driver = PaperDriver()
    kernel = loaded(driver)
    arguments = (GpuArray(), np.int32(1), np.float32(1), GpuArray())
    for shared_bytes in (47 * 1024, 48 * 1024, 48 * 1024, 100_000, 0):
        kernel.launch(STREAM, 1, 1, arguments, shared_bytes, dependent=True)
    assert driver.calls == [
        (MAX_DYNAMIC_SHARED_SIZE_BYTES, 48 * 1024),
        (MAX_DYNAMIC_SHARED_SIZE_BYTES, 100_000),
    ]
    assert [launch["shared"] for launch in driver.launches] == [48128, 49152, 49152, 100_000, 0]


def test_no_dependent_launch_where_the_device_has_none() -> None:
    driver = PaperDriver()
    arguments = (GpuArray(), np.int32(1), np.float32(1), GpuArray())
    loaded(driver, may_depend=False).launch(STREAM, 1, 1, arguments, 0, dependent=True)
    assert driver.launches[0]["dependent"] == []


def test_a_refused_launch_says_which() -> None:
    driver = PaperDriver()
    driver.status = 1
    with pytest.raises(DeviceError, match=r"launching gemv on a grid of 0, blocks of \(2000, 1\): status 1"):
        arguments = (GpuArray(), np.int32(1), np.float32(1), GpuArray())
        loaded(driver).launch(STREAM, 0, (2000, 1), arguments, 0, dependent=True)


def test_a_graph_is_recorded_launched_and_freed() -> None:
    driver = PaperDriver()
    graph = CudaGraph(driver, STREAM, lambda: driver.calls.append(("run",)))  # type: ignore[arg-type]
    graph.launch()
    del graph
    names = [call[0] for call in driver.calls]
    assert names == ["begin", "run", "end", "instantiate", "launch", "destroy"]


def test_a_recording_that_fails_is_ended() -> None:
    driver = PaperDriver()
    with pytest.raises(ZeroDivisionError):
        CudaGraph(driver, STREAM, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    assert [call[0] for call in driver.calls] == ["begin", "end", "destroy recording"]
