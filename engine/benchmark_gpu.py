"""What a benchmark asks of a GPU: its ceilings, and how much of a step's time it did not work.

Knows a device and what the CUDA backend lets be measured; loads nothing and knows no output format. Imports
nothing of CUDA where a processor computes. Used by `benchmark`, `benchmark_ops` and `benchmark_kernels`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from engine.backends.base import AnyBackend

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend
    from kernels.cuda.device import Device


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


def gpu_backend(backend: AnyBackend) -> CudaBackend | None:
    """The backend where it is a GPU's, else None."""
    tiers = backend.tiers
    if tiers is None or tiers.snapshot().gpu is None:
        return None
    from engine.backends.cuda import CudaBackend

    assert isinstance(backend, CudaBackend), "no other backend has a GPU"
    return backend


def gpu_ceilings(device: Device) -> Ceilings:
    """Measure them, in a fraction of a second."""
    from kernels.cuda.bench import copy_bandwidth, h2d_bandwidth, read_bandwidth

    return Ceilings(read_bandwidth(device), copy_bandwidth(device), h2d_bandwidth(device))
