"""Measures this machine for the planner: memory, products of each quant type, a disk and the link to a GPU.

Knows how to time without being fooled by caches; keeps figures through `rates` and plans nothing. A product
is compared with its oracle before it is timed; what a GPU is asked is in `probe_gpu`. Called by the loader
and by `tiercel probe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.cancel import CancelToken
from engine.errors import CancelledError, DeviceError, KernelError
from engine.events import GpuFacts
from engine.gguf import open_gguf
from engine.machine import available_memory, cache_bytes, cores_beside_gpu, physical_cores, processor_name
from engine.tiers.budget import shown_bytes
from engine.tiers.direct_io import ALIGNMENT, DirectFiles
from engine.tiers.rates import GpuMeasured, Measured, Rates, load_rates, save_rates
from engine.tiers.region import Region
from kernels import errors as kernel_errors
from kernels.quant_types import QuantType, row_bytes

if TYPE_CHECKING:
    from kernels.cuda.device import Device

_LEAST_BYTES, _MOST_BYTES = 96 << 20, 2 << 30
_TIMES_CACHES = 4
"""Size of what is multiplied, between them; a cache keeps a part of what is only twice as large."""
_LEAST_READ = 16 << 20
"""Memory that is read even where next to none is free."""
_TRIALS = 5
_REQUEST_BYTES, _IN_FLIGHT = 4 << 20, 4
"""As the streamer reads."""
_DISK_BYTES, _DISK_S = 2 << 30, 1.0
"""The disk is read until either is reached."""
_LEAST_FILE = 16 << 20
"""A smaller file says more about single requests than about its disk."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class MachineRates:
    """What `measure_machine` found; bytes per second."""

    device: str
    """Processor and instruction set."""
    threads: int
    dram: float
    gemv: Mapping[str, float]
    """By the name of the quant type."""
    disk: float | None
    """None when no model was named, or one too small to tell."""
    notices: tuple[str, ...] = ()
    """What a person should know."""


class GpuToProbe(NamedTuple):
    """A GPU that is to compute weights which are mostly of one type."""

    facts: GpuFacts
    quant_type: QuantType
    device: Device | None
    """Open, in the thread that calls; None where only what is known already counts."""

    @property
    def key(self) -> str:
        """What its rates belong to."""
        return f"{self.facts.name}, driver {self.facts.driver}, {self.quant_type.name}"


def model_rates(
    disk_of: Path | None,
    types: Iterable[QuantType],
    threads: int,
    rates_file: Path,
    *,
    measure: bool,
    cancel: CancelToken,
    before: Callable[[], None] = lambda: None,
    gpu: GpuToProbe | None = None,
) -> tuple[Rates | None, tuple[str, ...]]:
    """Rates for products of these types, for reading the file `disk_of`, and for a GPU, where they are named.

    What `rates_file` lacks is measured, in a few seconds, and kept in it; without
    `measure`, None is the answer then. `before` is called before anything is measured. The second value is
    what a person should know. Needs the C kernels.
    Raises CancelledError, KernelError, StreamError and DeviceError.
    """
    fingerprint = _fingerprint(_device(), threads)
    known = load_rates(rates_file, fingerprint)
    missing = set(types) - set(known.gemv) or known.dram is None
    if disk_of is not None:
        missing = missing or disk_of.stat().st_dev not in known.disks
    link_missing = gpu is not None and gpu.key not in known.gpus
    if (missing or link_missing) and not measure:
        return None, ()
    if missing or link_missing:
        before()
    measured = _complete(known, types, disk_of, threads, cancel) if missing else known
    notices: tuple[str, ...] = ()
    if gpu is not None and link_missing:
        measured, notices = _with_gpu(measured, gpu, threads, cancel)
    if measured is not known:
        notices += _keep(rates_file, fingerprint, measured)
    assert measured.dram is not None
    disk = measured.disks.get(disk_of.stat().st_dev) if disk_of is not None else None
    found = measured.gpus.get(gpu.key) if gpu is not None else None
    cpu_flops, link = (None, None) if found is None else (found.cpu_flops, found.link)
    return Rates(measured.dram, measured.gemv, disk, cpu_flops, link), notices


def keep_disk_rate(path: Path, threads: int, rates_file: Path, rate: float) -> None:
    """Keep what the disk of the file `path` gave while a model was read from it, in place of a probe's rate.

    Raises OSError.
    """
    fingerprint = _fingerprint(_device(), threads)
    known = load_rates(rates_file, fingerprint)
    disks = {**known.disks, path.stat().st_dev: rate}
    save_rates(rates_file, fingerprint, replace(known, disks=disks))


def probe_link(
    gpu: GpuToProbe, threads: int | None, rates_file: Path | None, cancel: CancelToken
) -> tuple[GpuMeasured | None, tuple[str, ...]]:
    """Measure an open GPU's link again and keep that in `rates_file`, in place of what is there of that GPU.

    None with a notice where it cannot be measured. `threads` is by default `cores_beside_gpu`. Raises
    DeviceError, CancelledError; OSError never.
    """
    try:
        device = _device()
    except ImportError:  # which the measurement of the processor tells
        return None, ()
    threads = threads or cores_beside_gpu()
    fingerprint = _fingerprint(device, threads)
    known = load_rates(rates_file, fingerprint) if rates_file else Measured()
    others = {
        key: rates for key, rates in known.gpus.items() if not key.startswith(f"{gpu.facts.name}, driver ")
    }
    measured, notices = _with_gpu(replace(known, gpus=others), gpu, threads, cancel)
    if rates_file and gpu.key in measured.gpus:
        notices += _keep(rates_file, fingerprint, measured)
    return measured.gpus.get(gpu.key), notices


def _with_gpu(
    known: Measured, gpu: GpuToProbe, threads: int, cancel: CancelToken
) -> tuple[Measured, tuple[str, ...]]:
    """Measure the GPU; without memory for it nothing is added, and a notice says so."""
    from engine.tiers.probe_gpu import gpu_rates  # launchers, of no use without a GPU

    assert gpu.device is not None, "who measures has opened it"
    try:
        found = gpu_rates(gpu.device, threads, gpu.quant_type, _matrix_bytes(), cancel)
    except kernel_errors.DeviceMemoryError as error:
        return known, (
            f"the memory of {gpu.facts.name} is too full to measure its link ({shown_bytes(error.free)} are "
            "free): no speed is predicted; close what takes it, then load the model again",
        )
    except kernel_errors.DeviceError as error:
        raise DeviceError(f"{gpu.facts.name} failed while it was measured: {error}") from error
    return replace(known, gpus={**known.gpus, gpu.key: found}), ()


def measure_machine(
    path: Path | None, threads: int | None, rates_file: Path | None, cancel: CancelToken
) -> MachineRates:
    """Measure every type again, the disk only of a model `path`, and keep it all in `rates_file`.

    `threads` is by default the physical cores. Raises KernelError without the C kernels or where one is
    wrong, GGUFError for a file that is no model, CancelledError and StreamError.
    """
    try:
        device = _device()
    except ImportError as error:
        raise KernelError(
            f"there is nothing to measure: the C kernels are not installed ({error}); install a C compiler "
            "and then Tiercel again (make setup)"
        ) from None
    if path:
        open_gguf(path).close()  # what is no model is refused before anything is measured
    threads = threads or physical_cores()
    measured = _complete(Measured(), QuantType, path, threads, cancel)
    notices: tuple[str, ...] = ()
    if rates_file:
        fingerprint = _fingerprint(device, threads)
        known = load_rates(rates_file, fingerprint)
        disks = {**known.disks, **measured.disks}
        notices = _keep(rates_file, fingerprint, replace(measured, disks=disks, gpus=known.gpus))
    assert measured.dram is not None
    return MachineRates(
        device=device,
        threads=threads,
        dram=measured.dram,
        gemv={quant_type.name: rate for quant_type, rate in measured.gemv.items()},
        disk=measured.disks.get(path.stat().st_dev) if path else None,
        notices=notices,
    )


def _keep(rates_file: Path, fingerprint: str, measured: Measured) -> tuple[str, ...]:
    """Save, and say when that fails: what was measured holds all the same."""
    try:
        save_rates(rates_file, fingerprint, measured)
    except OSError as error:
        return (
            f"the speed of this machine cannot be kept in {rates_file} ({error.strerror}): every load "
            "measures it again",
        )
    return ()


def _device() -> str:
    """What the rates belong to; ImportError without the C kernels."""
    from kernels import cpu

    return f"{processor_name()}, cpu {cpu.instruction_sets()[0]}"


def _fingerprint(device: str, threads: int) -> str:
    """What rates belong to: the machine and the way that it was measured."""
    return f"{device}, {threads} threads, {_TIMES_CACHES} times the caches"


def _complete(
    known: Measured, types: Iterable[QuantType], path: Path | None, threads: int, cancel: CancelToken
) -> Measured:
    """Measure what is not known yet of memory, of these types and of the disk of `path`."""
    missing = sorted(set(types) - set(known.gemv))
    dram, gemv, disks = known.dram, known.gemv, known.disks
    if dram is None or missing:
        dram, new = probe_memory(threads, missing, cancel)
        gemv = {**gemv, **new}
    if path and path.stat().st_size >= _LEAST_FILE and path.stat().st_dev not in disks:
        disks = {**disks, path.stat().st_dev: probe_disk(path, cancel)}
    return replace(known, dram=dram, gemv=gemv, disks=disks)


def probe_memory(
    threads: int, types: Iterable[QuantType], cancel: CancelToken
) -> tuple[float, dict[QuantType, float]]:
    """Bytes per second of plain reads and of each type's product with one column, on all threads.

    Raises KernelError for a product that differs from its oracle; CancelledError.
    """
    from kernels import cpu
    from kernels.bench import ROW_LENGTH, read_bandwidth
    from kernels.synthetic import synthetic_matrix
    from kernels.verification import product_is_right

    x = np.random.default_rng(0).standard_normal((1, ROW_LENGTH)).astype(np.float32)

    def product_rate(quant_type: QuantType) -> float:
        _check(cancel)
        one_row = row_bytes(quant_type, ROW_LENGTH)
        matrix = synthetic_matrix(quant_type, max(2, _matrix_bytes() // one_row), ROW_LENGTH)
        if not product_is_right(matrix, quant_type, ROW_LENGTH):
            raise KernelError(
                f"the product with {quant_type.name} differs from its oracle on this processor: nothing was "
                "timed; please report it with the output of `tiercel --version`"
            )
        return _rate(
            lambda part: cpu.matmul(x, part, quant_type, threads=threads), matrix, matrix[:one_row], cancel
        )

    dram = read_bandwidth(threads, lambda: _check(cancel), n_bytes=max(_matrix_bytes(), _LEAST_READ) // 8 * 8)
    return dram, {quant_type: product_rate(quant_type) for quant_type in types}


def _matrix_bytes() -> int:
    """Larger than the caches, and small beside the memory that is free."""
    return min(max(_LEAST_BYTES, _TIMES_CACHES * cache_bytes()), _MOST_BYTES, available_memory() // 4)


def _rate(call: Callable[[Bytes], object], data: Bytes, small: Bytes, cancel: CancelToken) -> float:
    """Bytes per second, the median of some trials: the best one is not what a model's passes find.

    A call starts its threads anew, which a model does only once: a call with little data is taken off.
    """
    start_s = median(_seconds(call, small, cancel) for _ in range(_TRIALS))
    whole_s = median(_seconds(call, data, cancel) for _ in range(_TRIALS))
    return (data.size - small.size) / max(whole_s - start_s, whole_s / 2)


def _seconds(call: Callable[[Bytes], object], data: Bytes, cancel: CancelToken) -> float:
    _check(cancel)
    started = perf_counter()
    call(data)
    return perf_counter() - started


def probe_disk(path: Path, cancel: CancelToken) -> float:
    """Bytes per second of direct reads, several in flight, spread over the file.

    Raises StreamError; CancelledError as soon as the reads in flight have ended.
    """
    size = path.stat().st_size
    request = min(_REQUEST_BYTES, -(-size // ALIGNMENT) * ALIGNMENT)
    n_requests = max(1, min(size, _DISK_BYTES) // request)
    offsets = [size * i // n_requests // ALIGNMENT * ALIGNMENT for i in range(n_requests)]
    files = DirectFiles([path])
    started = perf_counter()

    def read(offsets: Sequence[int]) -> int:
        buffer = Region(request).place(request).data
        done = 0
        for offset in offsets:
            if cancel.cancelled or (done and perf_counter() - started > _DISK_S):
                break
            done += files.read(0, offset, buffer)
        return done

    try:
        with ThreadPoolExecutor(_IN_FLIGHT, "probe") as pool:
            n_bytes = sum(pool.map(read, [offsets[i::_IN_FLIGHT] for i in range(_IN_FLIGHT)]))
        elapsed = perf_counter() - started
    finally:
        files.close()
    _check(cancel)
    return n_bytes / elapsed


def _check(cancel: CancelToken) -> None:
    if cancel.cancelled:
        raise CancelledError("measuring was stopped")
