"""Measures what a GPU and the way to it give, with the processor idle and at work: for the planner.

Knows how the two are kept busy at once; keeps nothing (`rates` does) and plans nothing. Called by `probe`, in
the thread that has opened the device.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np

from engine.cancel import CancelToken
from engine.errors import CancelledError
from engine.tiers.rates import GpuMeasured, LinkRates
from kernels import cpu
from kernels.bench import ROW_LENGTH
from kernels.cuda import bench
from kernels.cuda.device import Device
from kernels.quant_types import QuantType, row_bytes
from kernels.reference_quants import Bytes, Floats
from kernels.synthetic import synthetic_matrix

_LEAST_COPIED = 256 << 20
"""Page-locked memory that is copied again and again, at least; as much as is multiplied where that is more.

A GPU reads from the processor's caches, too, and what they hold takes nothing from the rate of memory."""
_ALONE_S, _BESIDE_S = 0.3, 0.6
"""How long copies run without the processor and with it."""
_TRIALS = 5
_FLOPS_COLUMNS, _FLOPS_ROWS = 64, 4096


def gpu_rates(
    device: Device, threads: int, quant_type: QuantType, n_bytes: int, cancel: CancelToken
) -> GpuMeasured:
    """Rates for weights of this type, within some seconds; the processor multiplies on all threads.

    It multiplies `n_bytes` of them, more than its caches hold.

    Raises DeviceMemoryError where the GPU's memory is too full to be measured, DeviceError, CancelledError.
    """
    n_rows = max(_FLOPS_ROWS, n_bytes // row_bytes(quant_type, ROW_LENGTH))
    matrix = synthetic_matrix(quant_type, n_rows, ROW_LENGTH)
    column = _activations(1)

    def product() -> None:
        _check(cancel)
        cpu.matmul(column, matrix, quant_type, threads=threads)

    alone_s = _mean(product)
    copied = max(_LEAST_COPIED, n_bytes)
    h2d = bench.copy_rate(device, copied, _ALONE_S)
    beside = bench.copy_rate_beside(device, copied, _BESIDE_S, product)
    _check(cancel)
    link = LinkRates(
        vram=bench.product_rate(device, quant_type),
        h2d=h2d,
        h2d_beside_cpu=min(h2d, beside.rate),
        cpu_beside_h2d=min(1.0, beside.calls * alone_s / beside.seconds),
        matrix_flops=bench.expand_flops(device),
        crossing_s=bench.crossing_seconds(device),
    )
    return GpuMeasured(link, _cpu_flops(matrix, quant_type, threads, cancel))


def _cpu_flops(matrix: Bytes, quant_type: QuantType, threads: int, cancel: CancelToken) -> float:
    """Multiplications and additions per second of a product of many tokens."""
    part = matrix[: _FLOPS_ROWS * row_bytes(quant_type, ROW_LENGTH)]
    x = _activations(_FLOPS_COLUMNS)

    def product() -> None:
        _check(cancel)
        cpu.matmul(x, part, quant_type, threads=threads)

    return 2 * _FLOPS_COLUMNS * _FLOPS_ROWS * ROW_LENGTH / _best(product)


def _activations(n_columns: int) -> Floats:
    return np.random.default_rng(0).standard_normal((n_columns, ROW_LENGTH), np.float32)


def _mean(call: Callable[[], None]) -> float:
    """Seconds of a call, on average over `_ALONE_S`."""
    call()
    n_calls, started = 0, perf_counter()
    while not n_calls or perf_counter() - started < _ALONE_S:
        call()
        n_calls += 1
    return (perf_counter() - started) / n_calls


def _best(call: Callable[[], None]) -> float:
    """Seconds of the shortest of some calls."""
    seconds = []
    for _ in range(_TRIALS):
        started = perf_counter()
        call()
        seconds.append(perf_counter() - started)
    return min(seconds)


def _check(cancel: CancelToken) -> None:
    if cancel.cancelled:
        raise CancelledError("measuring was stopped")
