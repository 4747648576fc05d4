"""Which backend computes, and why: the C kernels, or NumPy where they were not built.

Knows what is installed; does not compute. A fallback is never silent: it comes with a notice.
"""

from __future__ import annotations

from engine.backends.base import Backend
from engine.config import LoadOptions
from engine.machine import physical_cores
from engine.model_config import ModelConfig
from engine.weights import ModelWeights


def select_backend(
    weights: ModelWeights, config: ModelConfig, options: LoadOptions
) -> tuple[Backend, tuple[str, ...]]:
    """Build the fastest backend there is; the second value is what a person should know about the choice."""
    try:
        from engine.backends.cpu import CpuBackend
    except ImportError as error:
        from engine.backends.numpy_backend import NumpyBackend

        reason = f"the C kernels are not installed ({error})"
        notice = (
            f"{reason}: NumPy computes, many times slower; install a C compiler and then Tiercel again "
            "(make setup)"
        )
        return NumpyBackend(weights, config, options.precision, reason), (notice,)
    threads = options.threads or physical_cores()
    return CpuBackend(weights, config, options.precision, threads=threads, max_tokens=options.chunk), ()
