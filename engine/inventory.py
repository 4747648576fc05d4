"""What could compute on this machine, in lines for people who ask or report something. Opens nothing."""

from __future__ import annotations

from engine.backends.gpus import find_gpus
from engine.events import GpuFacts
from engine.machine import processor_name


def computing_devices() -> tuple[str, tuple[GpuFacts, ...], str]:
    """Backend and name of the processor, the GPUs that can be used, and why there is none."""
    found = find_gpus()
    return f"{_cpu_backend()}: {processor_name()}", found.devices, found.reason


def _cpu_backend() -> str:
    try:
        from kernels import cpu
    except ImportError as error:
        return f"numpy, as the C kernels are not installed ({error})"
    return f"cpu {cpu.instruction_sets()[0]}"
