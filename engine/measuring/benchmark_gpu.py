"""What is measured of a GPU: its ceilings, its products, and for a model the best way to launch them.

Knows a device; loads no model and knows no output format. Imports nothing of CUDA where a processor computes.
Called by the other benchmarks and by `tiercel probe`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from engine.backends.base import AnyBackend
from engine.backends.gpus import open_gpu
from engine.cancel import CancelToken
from engine.errors import CancelledError, DeviceError, KernelError
from engine.events import GpuFacts
from engine.gguf import open_gguf
from engine.model_config import read_model_config
from engine.requirements import main_type
from engine.tiers.probe import GpuToProbe, probe_link
from engine.tiers.rates import GpuMeasured
from engine.weights import ModelWeights
from kernels import errors as kernel_errors
from kernels.quant_types import QuantType

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend
    from kernels.cuda.cuda_device import CudaDevice
    from kernels.cuda.device import Device, Kernel
    from kernels.cuda.search import Shape

_REPETITIONS = 5


class Ceilings(NamedTuple):
    """Rates that nothing can exceed, bytes per second; 0 where there is no such thing."""

    read: float = 0.0
    """Of plain reads of the memory that holds the weights."""
    copy: float = 0.0
    """Of copies within a GPU's memory, bytes read and written together."""
    h2d: float = 0.0
    """Of copies to the GPU from page-locked memory."""

    def best(self, other: Ceilings) -> Ceilings:
        """The higher one of each: what disturbs a reading makes it lower."""
        return Ceilings(*map(max, self, other))


@dataclass(frozen=True, slots=True)
class Searched:
    """The best settings that were found for one product of a model."""

    quant_type: str
    rows: int
    row_length: int
    tokens: int
    """Computed together; one kernel serves 2 to 4, another one 5 to 8."""
    us: float
    """Of one product."""
    us_before: float
    """With what was used before."""


@dataclass(frozen=True, slots=True)
class GpuRates:
    """What `measure_gpu` found; bytes per second."""

    gpu: GpuFacts
    ceilings: Ceilings
    gemv: Mapping[str, float]
    """Product with one column, bytes of weights as they lie there, by the name of the quant type."""
    searched: tuple[Searched, ...]
    """For the products of a model, where one was named."""
    quant_type: str
    """Of the weights that `placement` is about: what most of the model is, or Q4_K."""
    placement: GpuMeasured | None
    """What decides where weights go and who computes them; None where it could not be measured."""
    notices: tuple[str, ...] = ()
    """What a person should know."""


def gpu_backend(backend: AnyBackend) -> CudaBackend | None:
    """The backend where it is a GPU's, else None."""
    tiers = backend.tiers
    if tiers is None or tiers.snapshot().gpu is None:
        return None
    from engine.backends.cuda import CudaBackend

    assert isinstance(backend, CudaBackend), "no other backend has a GPU"
    return backend


def gpu_ceilings(device: Device) -> Ceilings:
    """Measure them, in a fraction of a second; nothing where a model leaves no room for it."""
    from kernels.cuda.bench import copy_bandwidth, h2d_bandwidth, read_bandwidth

    try:
        return Ceilings(read_bandwidth(device), copy_bandwidth(device), h2d_bandwidth(device))
    except kernel_errors.DeviceMemoryError:
        return Ceilings()


@contextmanager
def gpu_failures_told() -> Iterator[None]:
    """Turn what a GPU refuses or fails at, and products that are wrong on it, into the engine's errors."""
    try:
        yield
    except kernel_errors.DeviceError as error:
        raise DeviceError(f"the GPU failed: {error}; nothing can be said of its speed") from error
    except ArithmeticError as error:
        if type(error) is not ArithmeticError:  # of ours, such as a division by 0
            raise
        raise KernelError(
            f"{error} on this GPU: nothing was timed; please report it with the output of `tiercel --version`"
        ) from None


def measure_gpu(
    path: Path | None,
    device: str | None,
    threads: int | None,
    cache_dir: Path | None,
    rates_file: Path | None,
    *,
    on_progress: Callable[[str, float], None],
    cancel: CancelToken,
) -> GpuRates:
    """Measure a GPU ("cuda:1"; None is the first), and search for launch settings for the model `path`.

    What is found is kept in `cache_dir` and `rates_file`, where loading finds it. `threads` of the
    processor work beside copies, by default one for each physical core. `on_progress` is called with what is
    being done, in words, and how far it is, 0 to 1. Raises DeviceError, KernelError where a product is wrong,
    GGUFError for a file that is no model, CancelledError.
    """
    # What is no model is refused before anything else.
    shapes, quant_type = _products_of(path) if path is not None else ([], QuantType.Q4_K)
    gpu, facts = open_gpu(device, cache_dir)
    with gpu_failures_told(), closing(gpu):
        on_progress("measuring the GPU", 0.0)
        ceilings = gpu_ceilings(gpu)
        gemv = dict(_products(gpu, on_progress, cancel))
        on_progress("measuring the link", 0.0)
        placement, told = probe_link(GpuToProbe(facts, quant_type, gpu), threads, rates_file, cancel)
        searched, notices = _search(gpu, shapes, cache_dir, on_progress, cancel)
    return GpuRates(facts, ceilings, gemv, searched, quant_type.name, placement, told + notices)


def _products(
    gpu: Device, on_progress: Callable[[str, float], None], cancel: CancelToken
) -> Iterable[tuple[str, float]]:
    """The rate of each type's product with one column, of the largest shape that is timed."""
    from kernels.cuda.bench import SHAPES, time_products

    largest = max(SHAPES, key=lambda shape: shape[0] * shape[1])
    for done, quant_type in enumerate(QuantType):
        on_progress("timing products", done / len(QuantType))
        (times,) = time_products(
            gpu,
            quant_type,
            shapes=(largest,),
            columns=(1,),
            repetitions=_REPETITIONS,
            before_each=lambda: _check(cancel),
        )
        yield quant_type.name, times.weight_bytes / median(times.seconds)


def _search(
    gpu: CudaDevice,
    shapes: list[Shape],
    cache_dir: Path | None,
    on_progress: Callable[[str, float], None],
    cancel: CancelToken,
) -> tuple[tuple[Searched, ...], tuple[str, ...]]:
    """The best settings for each shape, kept in their file."""
    if not shapes:
        return (), ()
    if cache_dir is None:
        return (), ("there is no folder to keep launch settings in: set TIERCEL_HOME to search for them",)
    from engine.backends.cuda_plan import SETTINGS_FILE
    from kernels.cuda.search import search

    def prepare(kernels: Iterable[Kernel]) -> None:
        gpu.prepare(tuple(kernels), lambda done, total: None)

    try:
        found = search(
            gpu,
            shapes,
            cache_dir / SETTINGS_FILE,
            prepare=prepare,
            before_each=lambda: _check(cancel),
            on_progress=lambda done, total: on_progress("searching for launch settings", done / total),
        )
    except OSError as error:
        reason = error.strerror or str(error)
        return (), (f"launch settings cannot be kept in {cache_dir} ({reason}): none were searched for",)
    return tuple(
        Searched(
            quant_type=each.shape.quant_type.name,
            rows=each.shape.n_rows,
            row_length=each.shape.n_columns,
            tokens=each.n_tokens,
            us=each.seconds * 1e6,
            us_before=each.seconds_before * 1e6,
        )
        for each in found
    ), ()


def _products_of(path: Path) -> tuple[list[Shape], QuantType]:
    """The products of a model on a GPU, each once, and the type that holds most of its bytes.

    Raises the errors of a file that is no model of ours.
    """
    from engine.backends.cuda_weights import matrix_specs
    from kernels.cuda.search import Shape

    with open_gguf(path) as gguf:
        config = read_model_config(gguf)
        specs = [
            spec
            for spec in matrix_specs(ModelWeights(gguf, config), config)
            if config.tied_head
            or spec.tensors != ("token_embd.weight",)  # which is looked up, not multiplied
        ]
        quant_type = QuantType[main_type(gguf)]
    shapes = [
        Shape(
            spec.quant_type,
            spec.n_rows,
            spec.n_columns,
            # Gate and up of one type are one product, which joins them.
            gated=len(spec.tensors) == 2 and "ffn_gate" in spec.tensors[0],
        )
        for spec in specs
    ]
    return list(dict.fromkeys(shapes)), quant_type


def _check(cancel: CancelToken) -> None:
    if cancel.cancelled:
        raise CancelledError("the measurement was stopped")
