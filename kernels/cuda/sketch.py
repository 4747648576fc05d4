"""A GPU on paper: it takes note of the memory and the launches that a model would need, and does nothing.

What is built on it is built by the same code as on the GPU, so that a plan cannot forget anything. Its arrays
are views of memory that is not there: they have shapes and can be cut, and must never be read or written.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kernels.cuda.device import Array, Event, Graph, Kernel, Lane, Launcher, Shape

_SMALL, _ROUNDED_TO, _SMALL_ROUNDED_TO = 1 << 20, 2 << 20, 512
"""The driver hands memory out in pages of 2 MiB, and small allocations share one."""


class Launch(NamedTuple):
    """What `Launcher.launch` was called with."""

    kernel: Kernel
    grid: Shape
    block: Shape
    args: tuple[Array | np.generic, ...]
    shared_bytes: int

    def on(self, device: Launcher) -> None:
        """Launch it, now on a device whose arrays it was called with."""
        device.launch(self.kernel, self.grid, self.block, *self.args, shared_bytes=self.shared_bytes)


class DeviceKind(Protocol):
    """What the choice of kernels depends on."""

    @property
    def name(self) -> str:
        """As `Device`."""

    @property
    def compute_capability(self) -> int:
        """As `Device`."""

    @property
    def n_processors(self) -> int:
        """As `Device`."""


class Sketch:
    """A `Device` of a kind."""

    def __init__(self, like: DeviceKind) -> None:
        """Begin with no memory used and no kernel launched."""
        self.name = like.name
        self.compute_capability = like.compute_capability
        self.n_processors = like.n_processors
        self.n_bytes = 0
        """Of device memory so far."""
        self.launches: list[Launch] = []
        """In order, those of lanes too."""

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Each kernel that was launched."""
        return tuple(dict.fromkeys(launch.kernel for launch in self.launches))

    def enter(self) -> None:
        """Nothing."""

    def empty(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        """Count memory."""
        extents = (shape,) if isinstance(shape, int) else shape
        kind = np.dtype(dtype)
        self.n_bytes += allocated_bytes(prod(extents) * kind.itemsize)
        strides = tuple(kind.itemsize * prod(extents[i + 1 :]) for i in range(len(extents)))
        array: Any = np.lib.stride_tricks.as_strided(np.empty(1, kind), extents, strides)
        own: Array = array
        return own

    def zeros(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        """Count memory."""
        return self.empty(shape, dtype)

    def upload(self, host: npt.NDArray[Any]) -> Array:
        """Count memory."""
        return self.empty(host.shape, host.dtype)

    def copy_async(self, to: Array, host: npt.NDArray[Any]) -> None:
        """Nothing."""

    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Memory of the host, which is not counted."""
        return np.zeros(n_bytes, np.uint8)

    def host_address(self, host: npt.NDArray[Any]) -> np.uint64:
        """An address that no kernel will see."""
        return np.uint64(0)

    def lock(self, memory: npt.NDArray[np.uint8]) -> bool:
        """Nothing, and nothing refuses."""
        return True

    def unlock(self, memory: npt.NDArray[np.uint8]) -> None:
        """Nothing."""

    def launch(
        self, kernel: Kernel, grid: Shape, block: Shape, *args: Array | np.generic, shared_bytes: int = 0
    ) -> None:
        """Note the launch."""
        self.launches.append(Launch(kernel, grid, block, args, shared_bytes))

    def matmul_half(self, x: Array, weights: Array, out: Array, *, accumulate: bool) -> None:
        """Nothing."""

    def matmul_float(self, x: Array, weights: Array, out: Array, *, accumulate: bool) -> None:
        """Nothing."""

    def capture(self, run: Callable[[], None]) -> Graph:
        """Note the kernels of a graph."""
        run()
        return _Nothing()

    def fence(self) -> None:
        """Nothing."""

    def lane(self) -> Lane:
        """One whose launches are noted here."""
        return _Lane(self)

    def wait_for(self, event: Event) -> None:
        """Nothing."""

    def record(self, *, timing: bool = False) -> _Nothing:
        """A place that is reached at once."""
        return _Nothing()

    def synchronize(self) -> None:
        """Nothing."""

    def download(self, array: Array) -> npt.NDArray[Any]:
        """Refused: there is nothing to read."""
        raise RuntimeError("a sketch has no contents")


class _Lane:
    """A lane of a sketch."""

    def __init__(self, sketch: Sketch) -> None:
        self._sketch = sketch

    def launch(
        self, kernel: Kernel, grid: Shape, block: Shape, *args: Array | np.generic, shared_bytes: int = 0
    ) -> None:
        """Note the launch."""
        self._sketch.launch(kernel, grid, block, *args, shared_bytes=shared_bytes)

    def copy_async(self, to: Array, host: npt.NDArray[Any]) -> None:
        """Nothing."""

    def wait_for(self, event: Event) -> None:
        """Nothing."""

    def record(self, *, timing: bool = False) -> _Nothing:
        """A place that is reached at once."""
        return _Nothing()


class _Nothing:
    """An event and a graph of a sketch."""

    done = True

    def launch(self) -> None:
        """Nothing."""

    def wait(self) -> None:
        """Nothing."""

    def since(self, start: object) -> float:
        """No time."""
        return 0.0


def allocated_bytes(n_bytes: int) -> int:
    """What an allocation of so many bytes takes."""
    unit = _SMALL_ROUNDED_TO if n_bytes < _SMALL else _ROUNDED_TO
    return -(-n_bytes // unit) * unit
