"""Which backend computes, and why: the C kernels over placed weights, or NumPy where they were not built.

Knows what is installed and brings the weights to where that backend wants them; does not compute. A fallback
is never silent: it comes with a notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.backends.base import Backend
from engine.cancel import CancelToken
from engine.config import LoadOptions
from engine.events import TierSnapshot
from engine.model_config import ModelConfig
from engine.tiers.blocks import Block, slot_bytes_for
from engine.tiers.budget import MemoryWatch
from engine.tiers.direct_io import DirectFiles
from engine.tiers.rates import Rates
from engine.tiers.store import TieredWeights
from engine.weights import ModelWeights

_WORTH_MEASURING = 256 << 20
"""Bytes of weights from which on a prediction is worth a second of measuring."""


@dataclass(frozen=True, slots=True)
class LoadWatcher:
    """Who follows a load and may stop it."""

    on_progress: Callable[[str, float], None]
    """Called with what loading is doing, in words, and how far it is, 0 to 1."""
    on_tiers: Callable[[TierSnapshot], None]
    """Called when a weight block was read or moved, also while the model runs."""
    cancel: CancelToken


def open_backend(
    weights: ModelWeights,
    blocks: Sequence[Block],
    config: ModelConfig,
    options: LoadOptions,
    room: int,
    watcher: LoadWatcher,
) -> tuple[Backend, tuple[str, ...]]:
    """Build the fastest backend there is, the `blocks` of its weights within `room` bytes of memory.

    The second value is what a person should know besides `TieredWeights.notices`. Raises the engine's errors,
    and MemoryError.
    """
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
            weights, tiers, config, options.precision, threads=options.threads, max_tokens=options.chunk
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
