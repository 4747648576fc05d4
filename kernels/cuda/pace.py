"""A lane whose copies take as long as on a slower link, to see what such a link would give.

The lane itself waits after each copy, by a kernel that looks at the GPU's clock: the host does not. Knows no
weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cuda.device import Array, Device, Event, Kernel, Lane, Shape

_OCCUPY = Kernel.of("pace.cu", "occupy")
_HOLD = Kernel.of("pace.cu", "hold")
_BLOCK = 32


class PacedLane:
    """A `Lane` with a link of its own, of a given rate; copies of other lanes are not seen by it."""

    def __init__(self, device: Device, rate: float) -> None:
        """A new lane of `device`; `rate` in bytes per second, above 0. A link that is slower stays so."""
        self._lane: Lane = device.lane()
        self._rate = rate
        self._busy_until = device.zeros(1, np.uint64)
        self._lane.wait_for(device.record())

    def launch(
        self, kernel: Kernel, grid: Shape, block: Shape, *args: Array | np.generic, shared_bytes: int = 0
    ) -> None:
        """As `Lane`."""
        self._lane.launch(kernel, grid, block, *args, shared_bytes=shared_bytes)

    def copy_async(self, to: Array, host: npt.NDArray[Any]) -> None:
        """As `Lane`; what follows begins when the copy would be done at the rate."""
        n_nanoseconds = np.uint64(round(host.nbytes / self._rate * 1e9))
        self._lane.launch(_OCCUPY, 1, _BLOCK, self._busy_until, n_nanoseconds)
        self._lane.copy_async(to, host)
        self._lane.launch(_HOLD, 1, _BLOCK, self._busy_until)

    def wait_for(self, event: Event) -> None:
        """As `Lane`."""
        self._lane.wait_for(event)

    def record(self, *, timing: bool = False) -> Event:
        """As `Lane`."""
        return self._lane.record(timing=timing)
