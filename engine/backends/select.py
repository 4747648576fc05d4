"""Which backend computes, and why: a GPU that holds the model, the C kernels over placed weights, or NumPy.

Knows what there is and brings the weights to where that backend wants them; does not compute. A fallback
is never silent: it comes with a notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.backends.base import AnyBackend
from engine.backends.gpus import CPU, find_gpus, open_gpu
from engine.backends.watcher import LoadWatcher
from engine.config import KVType, LoadOptions, Precision
from engine.errors import BudgetError, DeviceError
from engine.model_config import ModelConfig
from engine.requirements import Room
from engine.tiers.blocks import Block, slot_bytes_for
from engine.tiers.budget import MemoryWatch
from engine.tiers.direct_io import DirectFiles
from engine.tiers.rates import Rates
from engine.tiers.store import TieredWeights
from engine.weights import ModelWeights

_WORTH_MEASURING = 256 << 20
"""Bytes of weights from which on a prediction is worth a second of measuring."""


class Opened(NamedTuple):
    """A backend, and what a person should know besides `Placement.notices`."""

    backend: AnyBackend
    notices: tuple[str, ...]
    """For as long as the model is loaded."""
    budget_notices: tuple[str, ...]
    """Of the memory budget."""


def open_backend(
    weights: ModelWeights,
    blocks: Sequence[Block],
    config: ModelConfig,
    options: LoadOptions,
    max_context: int,
    room: Callable[[], Room],
    watcher: LoadWatcher,
) -> Opened:
    """Build the fastest backend that there is for the model and its context.

    A GPU where one is asked for, or holds all of it; else the CPU, within `room()`, which is asked only then.
    Raises the engine's errors, and MemoryError.
    """
    no_gpu = "as asked for"
    notices: tuple[str, ...] = ()
    if options.device != CPU:
        try:
            backend = _on_gpu(weights, blocks, config, options, max_context, watcher)
            return Opened(backend, _of_float_kv(options), ())
        except (BudgetError, DeviceError) as error:
            if options.device is not None:
                raise
            no_gpu = str(error)
            # Where there is no driver nobody expects a GPU.
            notices = (f"the CPU computes: {no_gpu}",) if find_gpus().has_driver else ()
    if options.vram_budget is not None and not notices:
        notices = ("no GPU computes: a budget for its memory changes nothing (--vram-budget)",)
    if options.kv_type is not KVType.F16:
        notices += (f"the CPU keeps its cache as before: {options.kv_type} is for a GPU",)
    granted = room()
    cpu, cpu_notices = _on_cpu(weights, blocks, config, options, granted.weights, no_gpu, watcher)
    return Opened(cpu, notices + cpu_notices, granted.notices)


def _on_gpu(
    weights: ModelWeights,
    blocks: Sequence[Block],
    config: ModelConfig,
    options: LoadOptions,
    max_context: int,
    watcher: LoadWatcher,
) -> AnyBackend:
    """All of the model on the GPU that `options` name. Raises DeviceError, BudgetError, as loading does."""
    device, facts = open_gpu(options.device, options.cache_dir)
    from engine.backends.cuda_open import open_cuda  # the kernels' launchers, of no use without a GPU

    return open_cuda(device, facts, weights, blocks, config, options, max_context, watcher)


def _of_float_kv(options: LoadOptions) -> tuple[str, ...]:
    if options.precision is Precision.FLOAT and options.kv_type is not KVType.F16:
        return (f"the cache is float32 in float precision: {options.kv_type} changes nothing",)
    return ()


def _on_cpu(
    weights: ModelWeights,
    blocks: Sequence[Block],
    config: ModelConfig,
    options: LoadOptions,
    room: int,
    no_gpu: str,
    watcher: LoadWatcher,
) -> tuple[AnyBackend, tuple[str, ...]]:
    """The C kernels, or NumPy where they are missing, the `blocks` within `room` bytes of memory."""
    try:
        from engine.backends.cpu import CpuBackend
    except ImportError as error:
        from engine.backends.numpy_backend import NumpyBackend

        reason = f"the C kernels are not installed ({error})"
        notice = (
            f"{reason}: NumPy computes, many times slower, on weights mapped from the file; install a C "
            "compiler and then Tiercel again (make setup)"
        )
        return NumpyBackend(weights, config, options.precision, reason), (notice,)
    tiers, notices = _place(weights, blocks, options, room, watcher)
    try:
        watcher.on_progress("preparing the backend", 0.85)
        assert options.threads is not None, "the loader has chosen them"
        backend = CpuBackend(
            weights,
            tiers,
            config,
            options.precision,
            threads=options.threads,
            max_tokens=options.chunk,
            no_gpu=no_gpu,
        )
    except BaseException:
        tiers.close()
        raise
    return backend, notices


def _place(
    weights: ModelWeights,
    blocks: Sequence[Block],
    options: LoadOptions,
    room: int,
    watcher: LoadWatcher,
) -> tuple[TieredWeights, tuple[str, ...]]:
    """Plan, and bring to memory what stays."""
    from engine.tiers.probe import model_rates  # needs the C kernels

    streams = sum(map(slot_bytes_for, blocks)) > room
    total = sum(block.n_bytes for block in blocks)
    rates: Rates | None = None
    notices: tuple[str, ...] = ()
    if options.rates_file is not None and options.threads is not None:
        watcher.on_progress("measuring this machine", 0.0)
        rates, notices = model_rates(
            weights.gguf.part_paths[0] if streams else None,
            {piece.quant_type for block in blocks for piece in block.pieces},
            options.threads,
            options.rates_file,
            measure=streams or total >= _WORTH_MEASURING,
            cancel=watcher.cancel,
        )
    files = DirectFiles(weights.gguf.part_paths)
    try:
        tiers = TieredWeights(files, blocks, room, rates, watch=MemoryWatch(), on_change=watcher.on_tiers)
    except BaseException:
        files.close()
        raise
    try:
        for done in tiers.load(watcher.cancel):
            watcher.on_progress("reading the weights", 0.85 * min(1.0, done / total))
    except BaseException:
        tiers.close()
        raise
    return tiers, notices
