"""Models on the CUDA backend, on a GPU or its emulator, and what tests put between the two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from engine.backends.cuda_model import Wanted, kernels_of, whole_layout
from engine.backends.cuda_open import open_cuda
from engine.backends.cuda_plan import DevicePlan, plan_model
from engine.backends.to_open import ToOpen
from engine.backends.watcher import LoadWatcher
from engine.cancel import CancelToken
from engine.config import DEFAULT_CHUNK, LoadOptions
from engine.events import GpuFacts, TierSnapshot
from engine.gguf import open_gguf
from engine.model import Transformer
from engine.model_config import read_model_config
from engine.tiers.blocks import weight_blocks
from engine.tiers.rates import Rates
from engine.weights import ModelWeights
from kernels.cuda import launch_settings
from kernels.cuda.device import Array, Device, Kernel
from kernels.cuda.sketch import allocated_bytes
from kernels.errors import DeviceMemoryError

GPU = GpuFacts(0, "Testcard 9000", "9.0", 1 << 30, 1 << 30, "580.1")


class Borrowed:
    """A device that stays open for other tests, and compiles a kernel when it is launched."""

    def __init__(self, device: Device, free: int | None = None, name: str = "") -> None:
        """`free`: bytes that it says are free; `name`: what it says it is called."""
        self._device, self._free = device, free
        self.name = name or device.name
        self.launches: list[str] = []
        """Names of kernels and "graph", as they were put on the device."""
        self.kernels: set[Kernel] = set()
        """All that were launched, by graphs too."""
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def memory(self) -> tuple[int, int]:
        free, total = self._device.memory()  # type: ignore[attr-defined]
        return (free if self._free is None else self._free), total

    def prepare(self, kernels: object, on_progress: Callable[[int, int], None]) -> None:
        on_progress(1, 1)

    def launch(self, kernel: Kernel, *args: Any, **options: Any) -> None:
        self.launches.append(kernel.name)
        self.kernels.add(kernel)
        self._device.launch(kernel, *args, **options)

    def capture(self, run: Callable[[], None]) -> Any:
        graph, launches = self._device.capture(run), self.launches

        class Graph:
            def launch(self) -> None:
                launches.append("graph")
                graph.launch()

        return Graph()

    def close(self) -> None:
        self.closed = True


class Granting(Borrowed):
    """Counts allocations, and refuses one, as when another program has taken the memory."""

    def __init__(self, device: Device, n_granted: int = -1) -> None:
        super().__init__(device)
        self.n_granted = n_granted
        self.granted: list[int] = []
        """Bytes that each takes."""

    def _grant(self, n_bytes: int) -> None:
        if len(self.granted) == self.n_granted:
            raise DeviceMemoryError(3 << 20, 1 << 20, None, 0)
        self.granted.append(allocated_bytes(n_bytes))

    def empty(self, shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        self._grant(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return self._device.empty(shape, dtype)

    def zeros(self, shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        self._grant(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return self._device.zeros(shape, dtype)

    def upload(self, host: np.ndarray) -> Array:
        self._grant(host.nbytes)
        return self._device.upload(host)


def plan_on(
    device: Device, path: Path, *, max_context: int = 64, **options: Any
) -> tuple[DevicePlan, set[Kernel]]:
    """What the whole model takes with the options of `opened_on`, and the kernels that it prepares."""
    gguf = open_gguf(path)
    config = read_model_config(gguf)
    loading = LoadOptions(path, **{"chunk": 16, **options})
    chunk = min(loading.chunk or DEFAULT_CHUNK, max_context)
    wanted = Wanted(ModelWeights(gguf, config), config, loading, max_context, chunk)
    settings, layout = launch_settings.load(device), whole_layout(config, chunk)
    plan = plan_model(device, wanted, settings, 1 << 40, layout)
    return plan, set(kernels_of(device, wanted, settings))


@contextmanager
def opened_on(
    device: Device | Borrowed,
    path: Path,
    *,
    max_context: int = 64,
    watcher: LoadWatcher | None = None,
    on_tiers: Callable[[TierSnapshot], None] = lambda snapshot: None,
    settled: bool = True,
    rates: Rates | None = None,
    **options: Any,
) -> Iterator[Transformer]:
    """The model of a file on a device; chunks of 16 unless `options` (of loading) say otherwise.

    It is planned by `rates` where there are some. All weights are there unless it need not be `settled`.
    """
    gguf = open_gguf(path)
    config = read_model_config(gguf)
    backend, _ = open_cuda(
        device if isinstance(device, Borrowed) else Borrowed(device),  # type: ignore[arg-type]
        GPU,
        ToOpen(
            ModelWeights(gguf, config),
            weight_blocks(gguf, config),
            config,
            LoadOptions(path, **{"chunk": 16, "threads": 2, **options}),
            max_context,
        ),
        rates,
        watcher or LoadWatcher(lambda stage, progress: None, on_tiers, CancelToken()),
    )
    with closing(backend):
        while settled and backend.tiers.pump(0.05):
            pass
        yield Transformer(config, backend)
