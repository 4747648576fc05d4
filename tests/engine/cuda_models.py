"""Models on the CUDA backend, on a GPU or its emulator, and what tests put between the two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from engine.backends.cuda_model import Wanted, kernels_of
from engine.backends.cuda_open import open_cuda
from engine.backends.cuda_plan import DevicePlan, plan_model
from engine.backends.watcher import LoadWatcher
from engine.cancel import CancelToken
from engine.config import LoadOptions
from engine.events import GpuFacts, TierSnapshot
from engine.gguf import open_gguf
from engine.model import Transformer
from engine.model_config import read_model_config
from engine.tiers.blocks import weight_blocks
from engine.weights import ModelWeights
from kernels.cuda import launch_settings
from kernels.cuda.device import Device, Kernel

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


def plan_on(
    device: Device, path: Path, *, max_context: int = 64, **options: Any
) -> tuple[DevicePlan, set[Kernel]]:
    """What `opened_on` plans with the same options, and the kernels that it prepares."""
    gguf = open_gguf(path)
    config = read_model_config(gguf)
    loading = LoadOptions(path, **{"chunk": 16, **options})
    wanted, settings = (
        Wanted(ModelWeights(gguf, config), config, loading, max_context),
        launch_settings.load(device),
    )
    return plan_model(device, wanted, settings, 1 << 40), set(kernels_of(device, wanted, settings))


@contextmanager
def opened_on(
    device: Device | Borrowed,
    path: Path,
    *,
    max_context: int = 64,
    watcher: LoadWatcher | None = None,
    on_tiers: Callable[[TierSnapshot], None] = lambda snapshot: None,
    **options: Any,
) -> Iterator[Transformer]:
    """The model of a file on a device; chunks of 16 unless `options` (of loading) say otherwise."""
    gguf = open_gguf(path)
    config = read_model_config(gguf)
    backend = open_cuda(
        device if isinstance(device, Borrowed) else Borrowed(device),  # type: ignore[arg-type]
        GPU,
        ModelWeights(gguf, config),
        weight_blocks(gguf, config),
        config,
        LoadOptions(path, **{"chunk": 16, **options}),
        max_context,
        watcher or LoadWatcher(lambda stage, progress: None, on_tiers, CancelToken()),
    )
    with closing(backend):
        yield Transformer(config, backend)
