"""Which backend computes, and why: a GPU, the C kernels over placed weights, or NumPy.

Knows what there is and brings the weights to where that backend wants them; does not compute. A fallback
is never silent: it comes with a notice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from engine.backends.base import AnyBackend
from engine.backends.gpus import CPU, find_gpus, open_gpu
from engine.backends.to_open import ToOpen
from engine.backends.watcher import LoadWatcher
from engine.config import DEFAULT_CHUNK, KVType, LoadOptions, Precision
from engine.errors import BudgetError, DeviceError
from engine.events import GpuFacts
from engine.machine import cores_beside_gpu, physical_cores
from engine.requirements import Room, main_weight_type
from engine.tiers.blocks import slot_bytes_for
from engine.tiers.budget import MemoryWatch
from engine.tiers.direct_io import DirectFiles
from engine.tiers.rates import Rates
from engine.tiers.store import TieredWeights
from kernels import errors as kernel_errors

if TYPE_CHECKING:
    from kernels.cuda.cuda_device import CudaDevice

_WORTH_MEASURING = 256 << 20
"""Bytes of weights from which on a prediction is worth a second of measuring."""


class Opened(NamedTuple):
    """A backend, and what a person should know besides `Placement.notices`."""

    backend: AnyBackend
    notices: tuple[str, ...]
    """For as long as the model is loaded."""
    budget_notices: tuple[str, ...]
    """Of the memory budget."""


def open_backend(model: ToOpen, room: Callable[[], Room], watcher: LoadWatcher) -> Opened:
    """Build the fastest backend that there is for the model and its context.

    A GPU where one is asked for or can be used, with the CPU for what it does not hold; else the CPU alone,
    within `room()`, which is asked only then. Raises the engine's errors, and MemoryError.
    """
    options = model.options
    no_gpu = "as asked for"
    notices: tuple[str, ...] = ()
    if options.device != CPU:
        try:
            opened = _on_gpu(model.with_threads(cores_beside_gpu()), watcher)
            return opened._replace(notices=_of_float_kv(options) + opened.notices)
        except (BudgetError, DeviceError) as error:
            if options.device is not None:
                raise
            no_gpu = str(error)
            # Where there is no driver nobody expects a GPU.
            notices = (f"the CPU computes: {no_gpu}",) if find_gpus().has_driver else ()
    if options.wishes_for_gpu:
        notices += (f"no GPU computes, so this has no effect: {', '.join(options.wishes_for_gpu)}",)
    granted = room()
    model = model.with_threads(physical_cores())
    cpu, cpu_notices = _on_cpu(model, granted.weights, no_gpu, watcher)
    return Opened(cpu, notices + cpu_notices, granted.notices)


def _on_gpu(model: ToOpen, watcher: LoadWatcher) -> Opened:
    """As much of the model as fits on the GPU that its options name. Raises DeviceError, BudgetError."""
    options = model.options
    device, facts = open_gpu(options.device, options.cache_dir)
    from engine.backends.cuda_open import open_cuda  # the kernels' launchers, of no use without a GPU

    try:
        rates, notices = _gpu_rates(device, facts, model, watcher)
    except BaseException:
        with suppress(kernel_errors.DeviceError):
            device.close()
        raise
    backend, room = open_cuda(device, facts, model, rates, watcher)
    return Opened(backend, notices, room.notices)


def _gpu_rates(
    device: CudaDevice, facts: GpuFacts, model: ToOpen, watcher: LoadWatcher
) -> tuple[Rates | None, tuple[str, ...]]:
    """What the planner goes by; measured where it is not known and the model is worth it."""
    options = model.options
    if options.rates_file is None or options.threads is None:
        return None, ()
    try:
        from engine.tiers.probe import GpuToProbe, model_rates
    except ImportError:  # without the C kernels only what fits the GPU whole can be loaded
        return None, ()
    watcher.on_progress("measuring this machine", 0.0)
    try:
        return model_rates(
            model.weights.gguf.part_paths[0],
            model.quant_types,
            options.threads,
            options.rates_file,
            measure=model.n_bytes >= _WORTH_MEASURING,
            cancel=watcher.cancel,
            before=watcher.on_measure,
            gpu=GpuToProbe(facts, main_weight_type(model.blocks), device),
        )
    except ImportError:
        return None, ()


def _of_float_kv(options: LoadOptions) -> tuple[str, ...]:
    if options.precision is Precision.FLOAT and options.kv_type is not KVType.F16:
        return (f"the cache is float32 in float precision: {options.kv_type} changes nothing",)
    return ()


def _on_cpu(
    model: ToOpen, room: int, no_gpu: str, watcher: LoadWatcher
) -> tuple[AnyBackend, tuple[str, ...]]:
    """The C kernels, or NumPy where they are missing, the blocks within `room` bytes of memory."""
    weights, _, config, options, max_context = model
    chunk = min(options.chunk or DEFAULT_CHUNK, max_context)
    try:
        from engine.backends.cpu import CpuBackend
    except ImportError as error:
        from engine.backends.numpy_backend import NumpyBackend

        reason = f"the C kernels are not installed ({error})"
        notice = (
            f"{reason}: NumPy computes, many times slower, on weights mapped from the file; install a C "
            "compiler and then Tiercel again (make setup)"
        )
        return NumpyBackend(weights, config, options.precision, reason, chunk), (notice,)
    tiers, notices = _place(model, room, watcher)
    try:
        watcher.on_progress("preparing the backend", 0.85)
        assert options.threads is not None, "the loader has chosen them"
        backend = CpuBackend(
            weights,
            tiers,
            config,
            options.precision,
            threads=options.threads,
            max_tokens=chunk,
            no_gpu=no_gpu,
        )
    except BaseException:
        tiers.close()
        raise
    return backend, notices


def _place(model: ToOpen, room: int, watcher: LoadWatcher) -> tuple[TieredWeights, tuple[str, ...]]:
    """Plan, and bring to memory what stays."""
    from engine.tiers.probe import model_rates  # needs the C kernels

    options, blocks, total = model.options, model.blocks, model.n_bytes
    streams = sum(map(slot_bytes_for, blocks)) > room
    paths = model.weights.gguf.part_paths
    rates: Rates | None = None
    notices: tuple[str, ...] = ()
    if options.rates_file is not None and options.threads is not None:
        watcher.on_progress("measuring this machine", 0.0)
        rates, notices = model_rates(
            paths[0] if streams else None,
            model.quant_types,
            options.threads,
            options.rates_file,
            measure=streams or total >= _WORTH_MEASURING,
            cancel=watcher.cancel,
            before=watcher.on_measure,
        )
    files = DirectFiles(paths)
    try:
        tiers = TieredWeights(files, blocks, room, rates, watch=MemoryWatch(), on_change=watcher.on_tiers)
    except BaseException:
        files.close()
        raise
    watcher.on_plan(tiers.plan.resident)
    taken = 0
    try:
        for done in tiers.load(watcher.cancel):
            watcher.on_taken(done - taken)
            taken = done
            watcher.on_progress("reading the weights", 0.85 * min(1.0, done / total))
    except BaseException:
        tiers.close()
        raise
    return tiers, notices
