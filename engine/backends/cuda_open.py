"""From a GPU to a backend: a plan that fits or is refused with figures, kernels, memory, weights.

Knows the order of the steps; which device it is, and what happens when it will not do, is the business of
`select`. Everything that a reply needs is reserved and compiled here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import Protocol

from engine import errors
from engine.backends.cuda import CudaBackend, OwnedDevice
from engine.backends.cuda_model import DeviceModel, Wanted, kernels_of
from engine.backends.cuda_plan import plan_model, ran_out, settings_for
from engine.backends.watcher import LoadWatcher
from engine.config import LoadOptions
from engine.events import GpuFacts
from engine.model_config import ModelConfig
from engine.tiers.blocks import Block
from engine.tiers.direct_io import DirectFiles
from engine.tiers.vram import VramWeights
from engine.weights import ModelWeights
from kernels.cuda.device import Kernel
from kernels.errors import DeviceError, DeviceMemoryError

_COMPILED, _LOADED = 0.25, 0.85
"""Progress after these steps."""


class GpuDevice(OwnedDevice, Protocol):
    """What opening needs of a device beside launching."""

    def memory(self) -> tuple[int, int]:
        """Bytes that are free and that there are."""
        ...

    def prepare(
        self, kernels: Iterable[Kernel], on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Compile and load."""
        ...


def open_cuda(
    device: GpuDevice,
    gpu: GpuFacts,
    weights: ModelWeights,
    blocks: Sequence[Block],
    config: ModelConfig,
    options: LoadOptions,
    max_context: int,
    watcher: LoadWatcher,
) -> CudaBackend:
    """The model on `device`, all of it; the device is closed with the backend, or when this fails.

    Raises BudgetError with figures when the model does not fit, DeviceError when the GPU will not do,
    StreamError, CancelledError.
    """
    try:
        return _open(device, gpu, weights, blocks, config, options, max_context, watcher)
    except BaseException as error:
        with suppress(DeviceError):
            device.close()
        if isinstance(error, ValueError):  # of a launcher, before anything is reserved
            raise errors.DeviceError(f"the GPU kernels do not take this model: {error}") from error
        if isinstance(error, DeviceError):
            raise errors.DeviceError(f"{gpu.name} cannot be used: {error}") from error
        raise


def _open(
    device: GpuDevice,
    gpu: GpuFacts,
    weights: ModelWeights,
    blocks: Sequence[Block],
    config: ModelConfig,
    options: LoadOptions,
    max_context: int,
    watcher: LoadWatcher,
) -> CudaBackend:
    watcher.on_progress("looking at the GPU", 0.0)
    settings = settings_for(device, options)
    wanted = Wanted(weights, config, options, max_context)
    plan = plan_model(device, wanted, settings, device.memory()[0])

    def compiled(done: int, total: int) -> None:
        watcher.check()
        watcher.on_progress("compiling CUDA kernels", _COMPILED * done / total)

    device.prepare(kernels_of(device, wanted, settings), compiled)
    watcher.check()
    try:
        model = DeviceModel(device, wanted, settings)
        model.kv.fill(device)
        tiers = VramWeights(
            device,
            blocks,
            model.weights.places,
            gpu=gpu,
            used=plan.n_bytes,
            budget=plan.budget,
            on_change=watcher.on_tiers,
        )
        _read(tiers, weights, watcher)
    except DeviceMemoryError as error:
        raise ran_out(device, plan, error) from None
    watcher.on_progress("preparing the backend", _LOADED)
    model.step.prepare(1, model.kv)
    if model.prompt is not None:
        model.prompt.warm_up()
    device.synchronize()
    reason = (
        f"{gpu.name}, {gpu.total_bytes / 1e9:.0f} GB, driver {gpu.driver}, compute capability "
        f"{gpu.compute_capability}: the model fits its memory"
    )
    return CudaBackend(device, model, tiers, reason)


def _read(tiers: VramWeights, weights: ModelWeights, watcher: LoadWatcher) -> None:
    total = sum(block.n_bytes for block in tiers.blocks)
    with (
        closing(DirectFiles(weights.gguf.part_paths)) as files,
        closing(tiers.load(files, watcher.cancel)) as loading,
    ):
        for done in loading:
            share = _COMPILED + (_LOADED - _COMPILED) * done / total
            watcher.on_progress("reading the weights", share)
