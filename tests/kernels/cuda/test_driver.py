"""What the driver answers becomes an error in words; no GPU is needed to be refused."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from kernels.cuda.driver import Driver
from kernels.cuda.graph import CudaGraph
from kernels.errors import DeviceError, DeviceMemoryError


class Refusing(Driver):
    """A driver of which one function fails."""

    def __init__(self, function: str, status: int) -> None:
        self.called: list[str] = []
        self._functions = _Functions(self, function, status)
        self.launch_graph = self._functions["cuGraphLaunch"]


class _Functions(dict[str, Any]):
    def __init__(self, driver: Refusing, function: str, status: int) -> None:
        self._driver, self._function, self._status = driver, function, status

    def __getitem__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self._driver.called.append(name)
            if name == "cuMemGetInfo_v2":
                ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_size_t))[0] = 5 << 20
            return self._status if name == self._function else 0

        return call


@pytest.mark.parametrize("function", ["cuGraphInstantiateWithFlags", "cuGraphUpload"])
def test_a_graph_for_which_there_is_no_memory_is_refused_with_what_is_free(function: str) -> None:
    driver = Refusing(function, 2)
    with pytest.raises(
        DeviceMemoryError, match=f"no room on the GPU for {function}: 5242880 bytes"
    ) as caught:
        CudaGraph(driver, 0, lambda: None)
    assert (caught.value.asked, caught.value.free) == (0, 5 << 20)
    # Nothing of it is left on the device.
    assert ("cuGraphDestroy" in driver.called) and (
        function != "cuGraphUpload" or "cuGraphExecDestroy" in driver.called
    )


def test_a_graph_that_cannot_be_launched_for_want_of_memory_says_so() -> None:
    graph = CudaGraph(Refusing("cuGraphLaunch", 2), 0, lambda: None)
    with pytest.raises(DeviceMemoryError, match="launching a graph"):
        graph.launch()


def test_any_other_refusal_is_no_want_of_memory() -> None:
    with pytest.raises(DeviceError, match="cuGraphInstantiateWithFlags: status 700") as caught:
        CudaGraph(Refusing("cuGraphInstantiateWithFlags", 700), 0, lambda: None)
    assert not isinstance(caught.value, DeviceMemoryError)
