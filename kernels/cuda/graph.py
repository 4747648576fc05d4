"""Launches recorded once as a CUDA graph and run again as one.

Knows the driver; does not know what is launched. Called by cuda_device.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from kernels.cuda.driver import Driver
from kernels.errors import DeviceError


class CudaGraph:
    """An executable graph of one stream. It refers to the arrays it was recorded with: keep them."""

    def __init__(self, driver: Driver, stream: int, run: Callable[[], None]) -> None:
        """Record what `run` puts on `stream`. Raises DeviceError, and whatever `run` raises."""
        self._driver = driver
        self._stream = stream
        driver.begin_capture(stream)
        try:
            run()
        except BaseException:
            _abandon(driver, stream)
            raise
        self._executable = driver.instantiate(driver.end_capture(stream), stream)

    def launch(self) -> None:
        """Run it after what is on the stream; returns at once. Raises DeviceError."""
        status = self._driver.launch_graph(self._executable, self._stream)
        if status:
            self._driver.fail("launching a graph", status)

    def __del__(self) -> None:
        """Free it, once it has run."""
        if hasattr(self, "_executable"):
            # No context manager: when the interpreter ends, modules are gone before objects.
            try:  # noqa: SIM105
                self._driver.destroy_graph(self._executable)
            except DeviceError:  # so may the driver be
                pass


def _abandon(driver: Driver, stream: int) -> None:
    """Leave capture mode after a failure; the capture is lost, and the driver may say so."""
    with contextlib.suppress(DeviceError):
        driver.destroy_recording(driver.end_capture(stream))
