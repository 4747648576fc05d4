"""How fast the native matrix products are, one quant type at a time, beside plain reads of memory.

Turns the times of `kernels.bench` into the figures that people are shown; knows no model and no output
format. Called by `tiercel bench --kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from engine.benchmark import Report
from engine.cancel import CancelToken
from engine.errors import CancelledError, KernelError
from engine.machine import physical_cores, processor_name
from kernels.quant_types import QuantType


@dataclass(frozen=True, slots=True)
class KernelCell:
    """One product of a synthetic matrix with some columns; times are those of one call."""

    quant_type: str
    threads: int
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
    """Plain reads of memory on these threads, beside this type."""
    bandwidth_share: float
    """weight_gb_s / read_gb_s."""
    relative_time: float
    """Per row of the matrix, 1 with one column."""


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

    def check_cancelled() -> None:
        if cancel.cancelled:
            raise CancelledError("the measurement was stopped")

    read_before = bench.read_bandwidth(threads)
    try:
        timed = bench.time_products(
            quant_type, threads=threads, repetitions=repetitions, before_each=check_cancelled
        )
    except ArithmeticError as error:
        raise KernelError(
            f"{error} on this processor: nothing was timed; please report it with the output of "
            "`tiercel --version`"
        ) from None
    read_gb_s = max(read_before, bench.read_bandwidth(threads)) / 1e9
    one_column = median(timed[0].seconds) / timed[0].rows
    cells = []
    for columns, rows, n_bytes, seconds in timed:
        middle = median(seconds)
        weight_gb_s = n_bytes / middle / 1e9
        cells.append(
            KernelCell(
                quant_type=quant_type.name,
                threads=threads,
                columns=columns,
                rows=rows,
                row_length=bench.ROW_LENGTH,
                repetitions=repetitions,
                us=middle * 1e6,
                us_min=min(seconds) * 1e6,
                us_max=max(seconds) * 1e6,
                weight_gb_s=weight_gb_s,
                gflop_s=2 * rows * bench.ROW_LENGTH * columns / middle / 1e9,
                read_gb_s=read_gb_s,
                bandwidth_share=weight_gb_s / read_gb_s,
                relative_time=middle / rows / one_column,
            )
        )
    return Report(f"{processor_name()}, cpu {cpu.instruction_sets()[0]}", tuple(cells), ())
