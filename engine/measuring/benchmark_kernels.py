"""How fast the matrix products are, one quant type at a time, beside plain reads of memory.

Turns the times of `kernels.bench` and `kernels.cuda.bench` into the figures that people are shown; knows no
model and no output format. Called by `tiercel bench --kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from engine.backends.gpus import open_gpu
from engine.cancel import CancelToken
from engine.errors import CancelledError, KernelError
from engine.machine import physical_cores, processor_name
from engine.measuring.benchmark import Report
from engine.measuring.benchmark_gpu import gpu_failures_told
from kernels.quant_types import QuantType


@dataclass(frozen=True, slots=True)
class KernelCell:
    """One product of a synthetic matrix with some columns; times are those of one call."""

    quant_type: str
    threads: int
    """Of the CPU; 0 on a GPU."""
    columns: int
    """Of activations: tokens computed together."""
    rows: int
    row_length: int
    repetitions: int
    us: float
    """Median, in microseconds."""
    us_min: float
    us_max: float
    weight_gb_s: float
    """Bytes of the matrix per second."""
    gflop_s: float
    """Two operations for each weight and column."""
    read_gb_s: float
    """Plain reads of memory, beside this type: on these threads, or on the GPU."""
    bandwidth_share: float
    """weight_gb_s / read_gb_s."""
    relative_time: float
    """Per row of the matrix of this row length, 1 with one column."""


def measure_kernel(
    quant_type: QuantType, *, threads: int | None, repetitions: int, cancel: CancelToken
) -> Report[KernelCell]:
    """Time one quant type's product with several numbers of columns; `threads` None is the physical cores.

    Raises KernelError when the kernels are missing or differ from their oracle: nothing was timed then;
    CancelledError when told to stop.
    """
    try:
        from kernels import bench, cpu
    except ImportError as error:
        raise KernelError(
            f"the C kernels are not installed ({error}): there is nothing to time; install a C compiler and "
            "then Tiercel again (make setup)"
        ) from None
    threads = threads or physical_cores()
    read_before = bench.read_bandwidth(threads)
    try:
        timed = bench.time_products(
            quant_type, threads=threads, repetitions=repetitions, before_each=lambda: _check(cancel)
        )
    except ArithmeticError as error:
        raise KernelError(
            f"{error} on this processor: nothing was timed; please report it with the output of "
            "`tiercel --version`"
        ) from None
    read = max(read_before, bench.read_bandwidth(threads))
    products = [_Product(*times[:2], bench.ROW_LENGTH, *times[2:]) for times in timed]
    device = f"{processor_name()}, cpu {cpu.instruction_sets()[0]}"
    return Report(device, _cells(quant_type, threads, repetitions, read, products), ())


def measure_gpu_kernel(
    quant_type: QuantType,
    *,
    device: str | None,
    cache_dir: Path | None,
    repetitions: int,
    cancel: CancelToken,
) -> Report[KernelCell]:
    """Time one quant type's product on a GPU ("cuda:1"; None is the first), on the shapes of real models.

    Raises DeviceError where there is none, KernelError when a product differs from its oracle: nothing was
    timed then; CancelledError when told to stop.
    """
    gpu, facts = open_gpu(device, cache_dir)
    with gpu_failures_told(), closing(gpu):
        from kernels.cuda import bench

        read_before = bench.read_bandwidth(gpu)
        timed = bench.time_products(
            gpu,
            quant_type,
            shapes=bench.SHAPES,
            repetitions=repetitions,
            before_each=lambda: _check(cancel),
        )
        read = max(read_before, bench.read_bandwidth(gpu))
    products = [
        _Product(times.columns, times.rows, times.row_length, times.weight_bytes, times.seconds)
        for times in timed
    ]
    cells = _cells(quant_type, 0, repetitions, read, products)
    return Report(f"{facts.name}, cuda sm_{gpu.compute_capability}", cells, ())


class _Product(NamedTuple):
    """A product with some columns, timed a number of times."""

    columns: int
    rows: int
    row_length: int
    weight_bytes: int
    seconds: Sequence[float]


def _check(cancel: CancelToken) -> None:
    if cancel.cancelled:
        raise CancelledError("the measurement was stopped")


def _cells(
    quant_type: QuantType, threads: int, repetitions: int, read: float, products: Sequence[_Product]
) -> tuple[KernelCell, ...]:
    # The CPU's product with many columns has a part of the rows: what counts is the length of a row.
    alone = {(each.rows, each.row_length): each for each in products if each.columns == 1}
    any_rows = {each.row_length: each for each in products if each.columns == 1}
    cells = []
    for columns, rows, row_length, n_bytes, seconds in products:
        middle = median(seconds)
        weight_gb_s = n_bytes / middle / 1e9
        one = alone.get((rows, row_length), any_rows[row_length])
        cells.append(
            KernelCell(
                quant_type=quant_type.name,
                threads=threads,
                columns=columns,
                rows=rows,
                row_length=row_length,
                repetitions=repetitions,
                us=middle * 1e6,
                us_min=min(seconds) * 1e6,
                us_max=max(seconds) * 1e6,
                weight_gb_s=weight_gb_s,
                gflop_s=2 * rows * row_length * columns / middle / 1e9,
                read_gb_s=read / 1e9,
                bandwidth_share=weight_gb_s * 1e9 / read,
                relative_time=middle / rows / (median(one.seconds) / one.rows),
            )
        )
    return tuple(cells)
