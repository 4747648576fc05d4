"""Nothing is timed that is not right: a loaded model's own matrices through its kernels, beside the oracle.

Knows which matrices to try; the kernels' `verification` says what is right. Called by the benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.backends.numpy_backend import NumpyBackend
from engine.config import Precision
from engine.errors import KernelError
from engine.loading import LoadedModel
from engine.measuring.benchmark_gpu import gpu_backend
from kernels.quant_types import QuantType
from kernels.reference_quants import Bytes

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend

Judge = Callable[[Bytes, QuantType, int], bool]
"""Of rows in ggml's layout, their type and length, whether their product is right."""


def check_products(loaded: LoadedModel) -> None:
    """Compare one matrix of every quant type and width with the oracle; NumPy is the oracle itself.

    Raises KernelError when a product is wrong.
    """
    if loaded.backend.name == NumpyBackend.name:
        return
    is_right = _judge(gpu_backend(loaded.backend), loaded.options.precision)
    seen = set()
    for name, (data, shape, quant_type) in loaded.weights.items():
        kind = quant_type, shape[-1]
        if len(shape) == 1 or kind in seen:
            continue
        seen.add(kind)
        if not is_right(data, *kind):
            raise KernelError(
                f"the product with {name} ({quant_type.name}) differs from its oracle on this machine: "
                "nothing was timed; please report it with the output of `tiercel --version`"
            )


def _judge(gpu: CudaBackend | None, precision: Precision) -> Judge:
    """What says whether the product with a matrix is right: the backend's own kernels against the oracle."""
    is_float = precision is Precision.FLOAT
    if gpu is not None:
        from kernels.cuda import verification as on_gpu

        device = gpu.device
        return lambda *matrix: on_gpu.product_is_right(device, *matrix, float_precision=is_float)
    from kernels import verification  # the C extension

    return lambda *matrix: verification.product_is_right(*matrix, float_precision=is_float)
