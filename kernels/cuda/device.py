"""What a launcher needs of a device: memory, launches, graphs, lanes beside them.

A GPU has it (cuda_device.py), and so has the emulator of the tests. Knows no kernel and no CuPy. What is
launched or copied goes in order on the device's main stream; only `download`, `synchronize` and `Event.wait`
wait for it. A lane is a stream of its own: nothing orders it and the main stream but events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Shape: TypeAlias = int | tuple[int, ...]
"""Of an array, or of a launch's grid or block (x, y, z)."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel as it is compiled: a source with its macros, and the entry point to launch."""

    source: str
    """File in kernels/cuda: "gemv.cu"."""
    name: str
    """The entry point, declared with KERNEL: "gemv"."""
    defines: tuple[tuple[str, int | str], ...] = ()
    """Macros and their values, sorted by name."""

    @classmethod
    def of(cls, source: str, name: str, /, **defines: int | str) -> Kernel:
        """The instance with these macros: `Kernel.of("gemv.cu", "gemv", FORMAT="Q4_K", COLUMNS=4096)`."""
        return cls(source, name, tuple(sorted(defines.items())))

    def __str__(self) -> str:
        """For messages: `gemv COLUMNS=4096 FORMAT=Q4_K`."""
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.defines)])


class Array(Protocol):
    """An array on a device: a `cupy.ndarray`, in the emulator a `numpy.ndarray`; launchers use this much."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, for each dimension."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements."""

    @property
    def size(self) -> int:
        """The number of its elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""

    def __getitem__(self, key: Any, /) -> Array:
        """A view: by integers and slices."""

    def reshape(self, *shape: Any) -> Array:
        """A view of a contiguous array in another shape."""

    def view(self, dtype: Any, /) -> Array:
        """A view of the same bytes as another type."""


class Event(Protocol):
    """A place in a stream, the main one or a lane."""

    @property
    def done(self) -> bool:
        """Whether everything before it is done; does not wait. Raises DeviceError for what failed."""

    def wait(self) -> None:
        """Sleep until everything before it is done. Raises DeviceError for what failed meanwhile."""

    def since(self, start: Event) -> float:
        """Seconds from `start` to here, both recorded with `timing`; waits."""


class Graph(Protocol):
    """Launches that were recorded once and run again as one."""

    def launch(self) -> None:
        """Put them all on the main stream; returns at once."""


class Launcher(Protocol):
    """Where kernels are launched: a device or a lane of it."""

    def launch(
        self,
        kernel: Kernel,
        grid: Shape,
        block: Shape,
        *args: Array | np.generic,
        shared_bytes: int = 0,
    ) -> None:
        """Run `kernel` after what was launched here before.

        Arrays are passed as the address of their first element, NumPy scalars (int32, uint32, int64, uint64,
        float32) by value, a null pointer as uint64(0). `shared_bytes` is the size of its SHARED_MEMORY.
        Raises CompileError, DeviceError.
        """


class Lane(Launcher, Protocol):
    """A second stream of a device: copies and kernels that run beside those of the main stream.

    All of it goes in order and returns at once. A kernel starts when all that is before it on the lane is
    done. Called by the thread of its device; no graph records what is put on a lane.
    """

    def copy_async(self, to: Array, host: npt.NDArray[Any]) -> None:
        """Copy `host`, any bytes in one run, into contiguous `to`; both must stay as they are until then.

        From page-locked memory (`Device.pinned`, `Device.lock`) it runs by itself, at the full rate of the
        link; from other memory it is slower, and this call takes as long as the copy.
        """

    def wait_for(self, event: Event) -> None:
        """What follows on the lane waits for `event` of another stream; the host does not."""

    def record(self, *, timing: bool = False) -> Event:
        """The place on the lane after all that is on it by now; `timing` if it is for `Event.since`."""


class Device(Launcher, Protocol):
    """Memory, launches and cuBLAS of one device, on its main stream, and lanes."""

    @property
    def name(self) -> str:
        """As its maker calls it: "NVIDIA H200"."""

    @property
    def compute_capability(self) -> int:
        """Ten times the version: 90 for 9.0."""

    @property
    def n_processors(self) -> int:
        """Multiprocessors."""

    def enter(self) -> None:
        """Let the calling thread use it as well, while no other one does. Raises DeviceError."""

    def empty(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        """Device memory whose contents are undefined, 256-byte aligned. Raises DeviceMemoryError."""

    def zeros(self, shape: Shape, dtype: npt.DTypeLike) -> Array:
        """Device memory that is zero before the next launch runs. Raises DeviceMemoryError."""

    def upload(self, host: npt.NDArray[Any]) -> Array:
        """A copy of `host` in device memory; `host` may change afterwards. Raises DeviceMemoryError."""

    def copy_async(self, to: Array, host: npt.NDArray[Any]) -> None:
        """Copy `host`, part of a `pinned` array, into contiguous `to`; `host` must stay until it is done."""

    def pinned(self, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Page-locked host memory: copied at full speed, open to kernels (`host_address`)."""

    def host_address(self, host: npt.NDArray[Any]) -> np.uint64:
        """What to pass to a kernel that reads or writes `host`, part of a `pinned` array."""

    def lock(self, memory: npt.NDArray[np.uint8]) -> bool:
        """Page-lock `memory`, host memory in one run, as far as it is whole pages; it must stay in place.

        False where the system refuses: too little memory, or a limit of locked memory. Raises ValueError for
        memory that is locked already.
        """

    def unlock(self, memory: npt.NDArray[np.uint8]) -> None:
        """Undo `lock` of the same memory, from which no copy may be under way."""

    def download(self, array: Array) -> npt.NDArray[Any]:
        """A copy of a contiguous `array` on the host, after waiting for what writes it."""

    def launch(
        self,
        kernel: Kernel,
        grid: Shape,
        block: Shape,
        *args: Array | np.generic,
        shared_bytes: int = 0,
    ) -> None:
        """As `Launcher`, on the main stream.

        From compute capability 9.0 on the kernel may start while the one before it still runs: it calls
        wait_for_previous() before touching what others write or read, except for weights (`fence`).
        """

    def matmul_half(self, x: Array, weights: Array, out: Array, *, accumulate: bool) -> None:
        """out (+)= x @ weights.T: x [T, K], weights [N, K] f16; out [T, N] f32, its rows any stride apart."""

    def matmul_float(self, x: Array, weights: Array, out: Array, *, accumulate: bool) -> None:
        """The same with x and weights in f32, without TF32."""

    def fence(self) -> None:
        """Let the next launch start only when all before it is done, so that it may read new weights."""

    def capture(self, run: Callable[[], None]) -> Graph:
        """Record what `run` launches, without running it (the emulator does at each launch of the graph)."""

    def lane(self) -> Lane:
        """A new lane."""

    def wait_for(self, event: Event) -> None:
        """What follows on the main stream waits for `event` of a lane; the host does not. Also a `fence`.

        Not while a graph is captured.
        """

    def record(self, *, timing: bool = False) -> Event:
        """The place in the main stream after all that is on it by now; `timing`: for `Event.since`."""

    def synchronize(self) -> None:
        """Wait until all that was put on the main stream is done. Raises DeviceError for what failed."""
