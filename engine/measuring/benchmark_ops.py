"""Where the time of one decode step goes on a GPU: each operation by itself, beside the whole step.

All launches of one operation in a step become one graph, which is timed by the GPU's own clock. Such a graph
reads what the operation reads in a step, and nothing else between: what is small, such as the keys and values
of a short context, may stay in the GPU's cache and then costs less than in a whole step. Knows names, graphs
and times; what is launched is the backend's business. Called by `tiercel bench --ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from engine.cancel import CancelToken
from engine.config import LoadOptions
from engine.errors import CancelledError, DeviceError
from engine.generate import prefill
from engine.loading import LoadedModel, load_model
from engine.measuring.benchmark import Report
from engine.measuring.benchmark_gpu import gpu_backend, gpu_failures_told

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend
    from kernels.cuda.device import Device, Graph, Kernel

WHOLE_STEP = "whole step"
"""The operation that stands for all of them."""
EIGHT_TOKENS = "whole step of 8 tokens"
"""The same for a step that computes eight tokens together, as checking a draft does."""
MOST_TOKENS = 8
"""That a step computes together."""
_LEAST_LAUNCHES = 64
"""In a graph that is timed: with fewer, launching the graph would be what is measured."""


@dataclass(frozen=True, slots=True)
class OpCell:
    """One operation of a decode step at one depth; times are those of one step."""

    path: str
    """The model's file."""
    quantisation: str
    """The quant type that holds most bytes."""
    depth: int
    """Tokens in the cache before the step."""
    repetitions: int
    op: str
    """Such as "gemv Q4_K 4096 add" or "rmsnorm"; WHOLE_STEP and EIGHT_TOKENS are all of them in one graph."""
    launches: int
    """Of kernels in a step."""
    us: float
    """All launches of the operation and no other: median, in microseconds."""
    us_min: float
    us_max: float
    share: float
    """us as a part of that of the whole step."""


def measure_ops(
    options: LoadOptions, *, depths: Sequence[int], repetitions: int, cancel: CancelToken
) -> Report[OpCell]:
    """Load a model and time the operations of a step at each depth, in rising order.

    Raises the engine's errors, DeviceError where no GPU computes; CancelledError when told to stop.
    """
    context = max(depths) + MOST_TOKENS
    loaded = load_model(replace(options, context=context), lambda stage, progress: None, cancel)
    with gpu_failures_told(), closing(loaded):
        loaded.settle(cancel)
        gpu = gpu_backend(loaded.backend)
        if gpu is None:
            raise DeviceError(
                f"{loaded.backend.name} computes this model, and only a GPU's operations are timed by "
                "themselves: name a GPU with --device cuda, or leave out --ops"
            )
        if not gpu.tiers.where.whole:
            raise DeviceError(
                "only a model that is in the GPU's memory whole is timed by its operations: choose a smaller "
                "one, give more memory (--vram-budget), or leave out --ops"
            )
        ids = np.random.default_rng(0).integers(0, loaded.info.vocab_size, context).tolist()
        cells: list[OpCell] = []
        for depth in sorted(depths):
            _prefill(loaded, ids[len(loaded.session.ids) : depth], cancel)
            cells += _measure(loaded, gpu, depth, repetitions, cancel)
        return Report(f"{gpu.device.name}, {loaded.backend.name}", tuple(cells), loaded.notices)


def _prefill(loaded: LoadedModel, ids: list[int], cancel: CancelToken) -> None:
    if ids:
        prefill(
            loaded.model,
            loaded.session,
            ids,
            chunk=loaded.chunk,
            cancel=cancel,
            on_progress=lambda n_done: None,
        )


def _measure(
    loaded: LoadedModel, gpu: CudaBackend, depth: int, repetitions: int, cancel: CancelToken
) -> list[OpCell]:
    """The whole steps first, then the operations of one token in the order in which they first come."""
    step = gpu.step_launches(loaded.session.kv, depth)
    by_op: dict[str, list[Callable[[], None]]] = {
        WHOLE_STEP: [run for _, run in step],
        EIGHT_TOKENS: [run for _, run in gpu.step_launches(loaded.session.kv, depth, MOST_TOKENS)],
    }
    for kernel, run in step:
        by_op.setdefault(op_name(kernel), []).append(run)
    seconds = time_launches(gpu.device, by_op, repetitions, cancel)
    whole = median(seconds[WHOLE_STEP])
    return [
        OpCell(
            path=str(loaded.info.path),
            quantisation=loaded.info.quantisation,
            depth=depth,
            repetitions=repetitions,
            op=op,
            launches=len(by_op[op]),
            us=median(times) * 1e6,
            us_min=min(times) * 1e6,
            us_max=max(times) * 1e6,
            share=median(times) / whole,
        )
        for op, times in seconds.items()
    ]


def op_name(kernel: Kernel) -> str:
    """What people tell kernels apart by; of products that is also type, row length and what they do."""
    defines = dict(kernel.defines)
    parts = (defines[name] for name in ("FORMAT", "WIDTH", "EPILOGUE") if name in defines)
    return " ".join([kernel.name, *(str(part) for part in parts)])


def time_launches(
    device: Device, by_op: dict[str, list[Callable[[], None]]], repetitions: int, cancel: CancelToken
) -> dict[str, list[float]]:
    """Seconds of the launches of each operation, `repetitions` times, by turns."""
    graphs = {op: _repeated(device, launches) for op, launches in by_op.items()}
    seconds: dict[str, list[float]] = {op: [] for op in by_op}
    for _ in range(repetitions):
        for op, (graph, times) in graphs.items():
            if cancel.cancelled:
                raise CancelledError("the measurement was stopped")
            graph.launch()  # so that the GPU is still at work when the clock is started
            start = device.record(timing=True)
            graph.launch()
            seconds[op].append(device.record(timing=True).since(start) / times)
    return seconds


def _repeated(device: Device, launches: list[Callable[[], None]]) -> tuple[Graph, int]:
    """A graph that is long enough to be timed, and how often it has all the launches."""
    times = -(-_LEAST_LAUNCHES // len(launches))

    def run() -> None:
        for _ in range(times):
            for launch in launches:
                launch()

    return device.capture(run), times
