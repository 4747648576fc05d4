"""Events, and lanes beside the main stream of a GPU, by the driver's own interface.

What Python does between two launches must not give up the GIL (driver.py says why), so CuPy's streams will
not do. Knows no kernel and no memory: its device loads kernels and knows what can be copied how. Called by
cuda_device.py.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kernels.cuda.device import Array, Event, Kernel, Shape
from kernels.cuda.driver import Driver
from kernels.cuda.launch import LoadedKernel
from kernels.errors import DeviceError


class CudaEvent:
    """A place in a stream."""

    def __init__(self, driver: Driver, stream: int, *, timing: bool) -> None:
        """The end of what is on `stream` by now. Raises DeviceError."""
        self._driver = driver
        self._handle = driver.create_event(timing=timing)
        driver.record_event(self._handle, stream)

    @property
    def done(self) -> bool:
        """Whether everything before it is done; does not wait. Raises DeviceError for what failed."""
        return self._driver.event_is_reached(self._handle)

    def wait(self) -> None:
        """Sleep until everything before it is done. Raises DeviceError for what failed meanwhile."""
        self._driver.wait_for_event(self._handle)

    def since(self, start: Event) -> float:
        """Seconds from `start` to here, both recorded with `timing`; waits."""
        self.wait()
        return self._driver.seconds_between(own(start)._handle, self._handle)

    def hold_back(self, stream: int) -> None:
        """What is put on `stream` from now on waits for it, on the GPU."""
        self._driver.stream_waits(stream, self._handle)

    def __del__(self) -> None:
        """Free it; a stream that waits for it still does."""
        if hasattr(self, "_handle"):
            # No context manager: when the interpreter ends, modules are gone before objects.
            try:  # noqa: SIM105
                self._driver.destroy_event(self._handle)
            except DeviceError:  # so may the driver be
                pass


def own(event: Event) -> CudaEvent:
    """An event that must be one of a GPU."""
    assert isinstance(event, CudaEvent), "events of two kinds of device"
    return event


class _Home(Protocol):
    """What a lane asks of its device."""

    def loaded(self, kernel: Kernel) -> LoadedKernel:
        """A kernel, ready to be launched."""

    def copy_to(self, stream: int, to: Array, host: npt.NDArray[Any]) -> None:
        """Put a copy on a stream."""


class CudaLane:
    """A stream beside the main one."""

    def __init__(self, driver: Driver, home: _Home) -> None:
        """A new stream. Raises DeviceError."""
        self._driver, self._home = driver, home
        self._stream = driver.create_stream()

    def launch(
        self, kernel: Kernel, grid: Shape, block: Shape, *args: Array | np.generic, shared_bytes: int = 0
    ) -> None:
        """Run `kernel` when all before it on the lane is done. Raises TypeError for unfit arguments."""
        self._home.loaded(kernel).launch(self._stream, grid, block, args, shared_bytes, dependent=False)

    def copy_async(self, to: Array, host: npt.NDArray[Any]) -> None:
        """Copy `host`, any bytes in one run, into contiguous `to`; both must stay as they are until then."""
        self._home.copy_to(self._stream, to, host)

    def wait_for(self, event: Event) -> None:
        """What follows on the lane waits for `event` of another stream; the host does not."""
        own(event).hold_back(self._stream)

    def record(self, *, timing: bool = False) -> CudaEvent:
        """The place on the lane after all that is on it by now; `timing` if it is for `Event.since`."""
        return CudaEvent(self._driver, self._stream, timing=timing)

    def __del__(self) -> None:
        """Give the stream back; what is on it is still done."""
        if hasattr(self, "_stream"):
            try:  # noqa: SIM105 (see CudaEvent)
                self._driver.destroy_stream(self._stream)
            except DeviceError:
                pass
