"""From a GPU to a backend: a plan that fits or is refused with figures, kernels, memory, weights.

Knows the order of the steps; which device it is, and what happens when it will not do, is the business of
`select`. Everything that a reply needs is reserved and compiled here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Protocol

from engine import errors
from engine.backends.cuda import CudaBackend
from engine.backends.cuda_model import DeviceModel, DevicePlan, plan_model
from engine.backends.watcher import LoadWatcher
from engine.config import KVType, LoadOptions, Precision
from engine.errors import BudgetError
from engine.events import GpuFacts
from engine.model_config import ModelConfig
from engine.tiers.blocks import Block
from engine.tiers.budget import Budget, shown_bytes
from engine.tiers.direct_io import DirectFiles
from engine.tiers.vram import VramWeights
from engine.weights import ModelWeights
from kernels.cuda import launch_settings
from kernels.cuda.device import Device, Kernel
from kernels.errors import DeviceError, DeviceMemoryError

DEFAULT = Budget(percent=Fraction(90))
"""Of the GPU's memory that is free: the rest is for the desktop and what else begins on it."""
SETTINGS_FILE = "launch_settings.toml"
"""In `LoadOptions.cache_dir`: what a search measured on this device."""
_COMPILED, _LOADED = 0.25, 0.85
"""Progress after these steps."""


class GpuDevice(Device, Protocol):
    """What is needed of a device beside launching."""

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
    """The model on `device`, all of it. Does not close the device when it fails.

    Raises BudgetError with figures when it does not fit, DeviceError when the GPU will not do, StreamError,
    CancelledError.
    """
    try:
        return _open(device, gpu, weights, blocks, config, options, max_context, watcher)
    except ValueError as error:  # of a launcher, before anything is reserved
        raise errors.DeviceError(f"the GPU kernels do not take this model: {error}") from error
    except DeviceError as error:
        raise errors.DeviceError(f"{gpu.name} cannot be used: {error}") from error


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
    settings = launch_settings.load(device, options.cache_dir and options.cache_dir / SETTINGS_FILE)

    def planned(wanted: LoadOptions) -> DevicePlan:
        return plan_model(device, weights, config, wanted, max_context, settings)

    plan = planned(options)
    free = device.memory()[0]
    granted = min(free, (options.vram_budget or DEFAULT).resolve(free))
    if plan.n_bytes > granted:
        raise _does_not_fit(gpu, plan, planned, options, max_context, granted, free)

    def compiled(done: int, total: int) -> None:
        watcher.check()
        watcher.on_progress("compiling CUDA kernels", _COMPILED * done / total)

    device.prepare(plan.kernels, compiled)
    watcher.check()
    try:
        model = DeviceModel(device, weights, config, options, max_context, settings)
        tiers = VramWeights(
            device,
            blocks,
            model.weights.places,
            gpu=gpu,
            used=plan.n_bytes,
            budget=granted,
            on_change=watcher.on_tiers,
        )
        _read(tiers, weights, watcher)
    except DeviceMemoryError:
        raise _does_not_fit(gpu, plan, planned, options, max_context, granted, device.memory()[0]) from None
    watcher.on_progress("preparing the backend", _LOADED)
    model.step.prepare(1, model.kv)
    reason = (
        f"{gpu.name}, {gpu.total_bytes / 1e9:.0f} GB, driver {gpu.driver}, compute capability "
        f"{gpu.compute_capability}: the model fits its memory"
    )
    return CudaBackend(device, model, tiers, reason)


def _read(tiers: VramWeights, weights: ModelWeights, watcher: LoadWatcher) -> None:
    total = sum(block.n_bytes for block in tiers.blocks)
    files = DirectFiles(weights.gguf.part_paths)
    try:
        for done in tiers.load(files, watcher.cancel):
            share = _COMPILED + (_LOADED - _COMPILED) * done / total
            watcher.on_progress("reading the weights", share)
    finally:
        files.close()


def _does_not_fit(
    gpu: GpuFacts,
    plan: DevicePlan,
    planned: Callable[[LoadOptions], DevicePlan],
    options: LoadOptions,
    max_context: int,
    granted: int,
    free: int,
) -> BudgetError:
    """What the model takes, what there is, and what would make it fit."""
    ways = []
    for_one = plan.kv / max_context
    shorter = int((granted - plan.weights - plan.computing) / for_one)
    if shorter >= 1:
        ways.append(f"a context of {shorter} or less (-c)")
    smaller_kv = options.kv_type is KVType.F16 and options.precision is Precision.FAST
    if smaller_kv and planned(replace(options, kv_type=KVType.Q8_0)).n_bytes <= granted:
        ways.append("a cache of 8 bits (--kv-type q8_0)")
    enough = -(-plan.n_bytes // 10**6)  # rounded up: what is named must do
    if enough * 10**6 <= free:
        ways.append(f"a budget of {enough}M or more (--vram-budget)")
    advice = f"; it would with {', or '.join(ways)}" if ways else ""
    return BudgetError(
        f"the model does not fit the memory of {gpu.name}: {shown_bytes(plan.weights)} of weights, "
        f"{shown_bytes(plan.kv)} for a context of {max_context} tokens and {shown_bytes(plan.computing)} for "
        f"computing, and the budget is {shown_bytes(granted)} of {shown_bytes(free)} that are free{advice}"
    )
