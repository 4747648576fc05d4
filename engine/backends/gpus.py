"""Which GPUs there are, and opening one.

Knows how people name a device; puts the driver's and CuPy's words into the engine's errors. CuPy is imported
when a GPU is opened, and not before. Called by `select`, and by commands that measure a GPU without a model.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import DeviceError
from engine.events import GpuFacts
from kernels import errors as kernel_errors
from kernels.cuda.devices import DeviceFacts, NoDevice, devices

if TYPE_CHECKING:
    from kernels.cuda.cuda_device import CudaDevice

CPU = "cpu"
_NAMED = re.compile(r"cuda(?::([0-9]{1,4}))?")
_WITHOUT_DRIVER = "; install NVIDIA's driver, 525 or newer, or let the CPU compute (--device cpu)"
"""For who insists on a GPU."""


class GpuSearch(NamedTuple):
    """The GPUs that can compute."""

    devices: tuple[GpuFacts, ...]
    reason: str
    """Why there is none, and what to do, in one line; empty where there are some."""
    has_driver: bool
    """False on a machine without NVIDIA's driver: nothing is amiss there."""


def find_gpus() -> GpuSearch:
    """Look for GPUs, without taking memory on them. Raises nothing."""
    found = devices()
    if isinstance(found, NoDevice):
        return GpuSearch((), found.reason, found.has_driver)
    return GpuSearch(tuple(map(gpu_facts, found)), "", True)


def choose_gpu(device: str | None) -> DeviceFacts:
    """The GPU that `device` names; None and "cuda" are the first. Raises DeviceError if it is not there."""
    match = _NAMED.fullmatch(device or "cuda")
    if match is None:
        raise DeviceError(f"{device!r} is no device: give cpu, cuda, or cuda:1 for the second GPU")
    found = devices()
    if isinstance(found, NoDevice):
        remedy = "" if device is None or found.has_driver else _WITHOUT_DRIVER
        raise DeviceError(f"no GPU can be used: {found.reason}{remedy}")
    if match[1] is None:
        return found[0]
    for facts in found:
        if facts.ordinal == int(match[1]):
            return facts
    present = ", ".join(f"cuda:{facts.ordinal} ({facts.name})" for facts in found)
    raise DeviceError(f"there is no {device} that can be used, only {present}: choose another device")


def open_gpu(device: str | None, cache_dir: Path | None) -> tuple[CudaDevice, GpuFacts]:
    """Open the GPU that `device` names, None being the first, in this thread, which alone may use it.

    Compiled kernels are kept in a folder of `cache_dir`. Raises DeviceError.
    """
    facts = choose_gpu(device)
    try:
        from kernels.cuda.cuda_device import CudaDevice
    except Exception as error:  # a broken CuPy raises what it likes, in many lines
        words = " ".join(str(error.__cause__ or error).split())
        raise DeviceError(
            f"{facts.name} cannot be used: CuPy cannot be loaded ({words}); install it again: pip install "
            "--force-reinstall 'tiercel[cuda13]' or [cuda12]"
        ) from error
    try:
        kernels = None if cache_dir is None else cache_dir / "kernels"
        return CudaDevice(facts.ordinal, kernels), gpu_facts(facts)
    except kernel_errors.DeviceError as error:
        raise DeviceError(f"{facts.name} cannot be used: {error}") from error


def gpu_facts(found: DeviceFacts) -> GpuFacts:
    """What people are shown of it."""
    major, minor = divmod(found.compute_capability, 10)
    return GpuFacts(
        number=found.ordinal,
        name=found.name,
        compute_capability=f"{major}.{minor}",
        total_bytes=found.total_bytes,
        free_bytes=found.free_bytes,
        driver=found.driver,
    )
