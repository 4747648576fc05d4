"""The fixture `device`: a test of kernels runs on the emulator, and again on a GPU where there is one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kernels.cuda.device import Device
from kernels.cuda.devices import NoDevice, devices
from tests.kernels.cuda import emulated_device


@pytest.fixture(scope="session", params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A device; TIERCEL_EMULATOR_ORDER=forwards has the emulator run the first block and thread first."""
    if request.param == "emulated":
        if reason := emulated_device.compiler_missing():
            pytest.skip(reason)
        order = os.environ.get("TIERCEL_EMULATOR_ORDER", "backwards")
        yield emulated_device.EmulatedDevice(backwards=order != "forwards")
        return
    found = devices()
    if isinstance(found, NoDevice):
        pytest.skip(found.reason)
    cuda_device = pytest.importorskip("kernels.cuda.cuda_device", reason="CuPy is not installed")
    gpu = cuda_device.CudaDevice(0, emulated_device.REPO / ".cache" / "cuda-kernels")
    yield gpu
    gpu.close()
