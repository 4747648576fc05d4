"""Which GPUs there are and whether we can compute on them, without loading CuPy or taking memory on them.

Knows the driver and NVIDIA's management library; called by the engine before it opens a device.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import sys
from ctypes import byref, c_char_p, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import NamedTuple

from kernels.cuda.driver import MULTIPROCESSOR_COUNT, NO_GPU, Driver, NoDriverError
from kernels.errors import DeviceError

OLDEST_CAPABILITY = 80
"""The kernels use cp.async and the tensor cores of the RTX 30 series (8.0 and 8.6)."""
_OLDEST_CUDA = 12
_MANAGEMENT_LIBRARY = "libnvidia-ml.so.1"
_DRIVER_OF_CUDA = {12: 525, 13: 580}
"""The first driver that serves this version of CUDA."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A GPU that can be used."""

    ordinal: int
    """Its number in this process (CUDA_VISIBLE_DEVICES counts)."""
    name: str
    """"NVIDIA H200"."""
    compute_capability: int
    """90 for 9.0."""
    n_processors: int
    """Multiprocessors."""
    total_bytes: int
    """Its memory."""
    free_bytes: int
    """What nobody uses of it now; all of it where the driver cannot say."""
    driver: str
    """"580.65.06", or the driver's version of CUDA where that is all we know."""

    def __str__(self) -> str:
        """One line for people."""
        major, minor = divmod(self.compute_capability, 10)
        memory = f"{self.total_bytes / 2**30:.0f} GiB"
        return f"{self.name}, {memory}, compute capability {major}.{minor}, driver {self.driver}"


class NoDevice(NamedTuple):
    """Why no GPU can be used."""

    reason: str
    """One line with the cause, and the remedy if there is one."""
    has_driver: bool = True
    """Without a driver there most likely is no such GPU, and nothing to mend."""


def devices() -> list[DeviceFacts] | NoDevice:
    """The GPUs that can be used, one or more, or why there is none. Never raises."""
    try:
        driver = Driver()
        management = _Management()
        missing = _what_is_missing(driver, management)
        if missing:
            return NoDevice(missing)
        found = [_facts(driver, management, ordinal) for ordinal in range(driver.n_devices())]
    except NoDriverError as error:
        return NoDevice(str(error), has_driver=False)
    except DeviceError as error:
        return NoDevice(str(error))
    usable = [facts for facts in found if facts.compute_capability >= OLDEST_CAPABILITY]
    if found and not usable:
        major, minor = divmod(found[0].compute_capability, 10)
        return NoDevice(
            f"{found[0].name} has compute capability {major}.{minor}: 8.0 or newer is needed, "
            "an RTX 30 or a data-centre card from A100 on"
        )
    return usable or NoDevice(NO_GPU)


def _what_is_missing(driver: Driver, management: _Management) -> str:
    """Why the driver and CuPy cannot work together, with the remedy; empty when they can."""
    major, minor = driver.cuda_version
    this_driver = f"the NVIDIA driver {management.driver_version or ''} (CUDA {major}.{minor})".replace(
        "  ", " "
    )
    if major < _OLDEST_CUDA:
        return f"{this_driver} is too old: install {_DRIVER_OF_CUDA[_OLDEST_CUDA]} or newer"
    extra = f"pip install 'tiercel[cuda{13 if major >= 13 else 12}]'"
    if importlib.util.find_spec("cupy") is None:
        return f"CuPy is not installed: {extra}"
    needed = _cuda_of_cupy()
    if needed > major:
        return (
            f"{this_driver} is too old for CuPy's CUDA {needed}: install {_DRIVER_OF_CUDA[needed]} or newer, "
            f"or pip uninstall cupy-cuda{needed}x and {extra}"
        )
    return ""


def _cuda_of_cupy() -> int:
    """CUDA's major version in the name of CuPy's package; 0 where another package (conda's) brings it."""
    for major in _DRIVER_OF_CUDA:
        try:
            importlib.metadata.version(f"cupy-cuda{major}x")
        except importlib.metadata.PackageNotFoundError:
            continue
        return major
    return 0


def _facts(driver: Driver, management: _Management, ordinal: int) -> DeviceFacts:
    total = driver.total_bytes(ordinal)
    free = management.free_bytes(driver.device_text("cuDeviceGetPCIBusId", ordinal))
    return DeviceFacts(
        ordinal=ordinal,
        name=driver.device_text("cuDeviceGetName", ordinal),
        compute_capability=driver.compute_capability(ordinal),
        n_processors=driver.attribute(MULTIPROCESSOR_COUNT, ordinal),
        total_bytes=total,
        free_bytes=total if free is None else min(free, total),
        driver=management.driver_version or "of CUDA {}.{}".format(*driver.cuda_version),
    )


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _Management:
    """NVIDIA's management library, if it is there: the driver's version, free memory without a context."""

    def __init__(self) -> None:
        self.driver_version = ""
        """"580.65.06"; empty when it is not known."""
        self._library: ctypes.CDLL | None = None
        try:
            library = ctypes.CDLL(_MANAGEMENT_LIBRARY)
            if library.nvmlInit_v2():
                return
        except (OSError, AttributeError):  # it is not there, or is another library
            return
        self._library = library
        version = ctypes.create_string_buffer(96)
        if not self._library.nvmlSystemGetDriverVersion(version, c_uint(len(version))):
            self.driver_version = version.value.decode("ascii", "replace")

    def free_bytes(self, bus_id: str) -> int | None:
        """Memory of the GPU at a PCI address that nobody uses; None when it is not known."""
        handle, memory = c_void_p(), _Memory()
        if (
            self._library is None
            or self._library.nvmlDeviceGetHandleByPciBusId_v2(c_char_p(bus_id.encode()), byref(handle))
            or self._library.nvmlDeviceGetMemoryInfo(handle, byref(memory))
        ):
            return None
        return int(memory.free)


def main() -> int:
    """Print the GPUs, or why there is none; 1 then."""
    found = devices()
    if isinstance(found, NoDevice):
        print(f"no GPU to compute on: {found.reason}", file=sys.stderr)
        return 1
    for facts in found:
        print(f"cuda:{facts.ordinal}  {facts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
