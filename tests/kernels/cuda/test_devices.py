"""What is said of the GPUs that there are, and of those that there are not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Any

import pytest

from kernels.cuda import devices as module
from kernels.cuda import driver as driver_module
from kernels.cuda.devices import DeviceFacts, NoDevice, devices
from kernels.cuda.driver import COMPUTE_CAPABILITY_MAJOR, MULTIPROCESSOR_COUNT, Driver
from kernels.errors import DeviceError

_REAL_MANAGEMENT = module._Management


class PaperDriver:
    cuda_version = (13, 0)
    names = ("NVIDIA H200", "NVIDIA GeForce GTX 1080")
    capabilities = (90, 61)
    total = 150_000_000_000

    def n_devices(self) -> int:
        return len(self.names)

    def device_text(self, function: str, ordinal: int) -> str:
        return self.names[ordinal] if function == "cuDeviceGetName" else f"0000:0{ordinal}:00.0"

    def total_bytes(self, ordinal: int) -> int:
        return self.total

    def compute_capability(self, ordinal: int) -> int:
        return self.capabilities[ordinal]

    def attribute(self, attribute: int, ordinal: int) -> int:
        return {MULTIPROCESSOR_COUNT: 132, COMPUTE_CAPABILITY_MAJOR: 9}[attribute]


class PaperManagement:
    driver_version = "580.65.06"
    free: int | None = 140_000_000_000

    def free_bytes(self, bus_id: str) -> int | None:
        return self.free


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> type[PaperDriver]:
    """A machine with two GPUs and CuPy for CUDA 13; a test may change it."""
    driver = type("OneDriver", (PaperDriver,), {})
    monkeypatch.setattr(module, "Driver", driver)
    monkeypatch.setattr(module, "_Management", PaperManagement)
    install_cupy(monkeypatch, 13)
    return driver


def install_cupy(monkeypatch: pytest.MonkeyPatch, major: int | None) -> None:
    def version(name: str) -> str:
        if name != f"cupy-cuda{major}x":
            raise importlib.metadata.PackageNotFoundError(name)
        return "14.2.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if major is None else object())


def reason() -> str:
    found = devices()
    assert isinstance(found, NoDevice) and found.has_driver
    return found.reason


def test_a_gpu_that_can_be_used_is_described(paper: type[PaperDriver]) -> None:
    assert devices() == [
        DeviceFacts(0, "NVIDIA H200", 90, 132, 150_000_000_000, 140_000_000_000, "580.65.06")
    ]
    assert str(devices()[0]) == "NVIDIA H200, 140 GiB, compute capability 9.0, driver 580.65.06"


def test_without_the_management_library_all_memory_counts_as_free(
    paper: type[PaperDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PaperManagement, "free", None)
    monkeypatch.setattr(PaperManagement, "driver_version", "")
    found = devices()
    assert isinstance(found, list)
    assert found[0].free_bytes == found[0].total_bytes
    assert found[0].driver == "of CUDA 13.0"


@pytest.mark.parametrize("library", ["libm.so.6", "libnothing.so.1"])
def test_a_management_library_that_is_none_does_not_matter(
    paper: type[PaperDriver], monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setattr(module, "_Management", _REAL_MANAGEMENT)
    monkeypatch.setattr(module, "_MANAGEMENT_LIBRARY", library)
    found = devices()
    assert isinstance(found, list)
    assert found[0].free_bytes == found[0].total_bytes


def test_an_old_gpu_is_refused_with_what_is_needed(paper: type[PaperDriver]) -> None:
    paper.names, paper.capabilities = ("NVIDIA GeForce GTX 1080",), (61,)
    assert "GTX 1080 has compute capability 6.1: 8.0 or newer is needed" in reason()


def test_no_gpu_is_said(paper: type[PaperDriver]) -> None:
    paper.names, paper.capabilities = (), ()
    assert "finds no GPU: see nvidia-smi" in reason()


@pytest.mark.parametrize(("driver", "extra"), [((13, 1), "cuda13"), ((12, 4), "cuda12"), ((14, 0), "cuda13")])
def test_a_missing_cupy_is_said_with_the_extra_that_fits(
    paper: type[PaperDriver], monkeypatch: pytest.MonkeyPatch, driver: tuple[int, int], extra: str
) -> None:
    install_cupy(monkeypatch, None)
    paper.cuda_version = driver
    assert reason() == f"CuPy is not installed: pip install 'tiercel[{extra}]'"


def test_a_driver_too_old_for_cupy_is_said_with_both_remedies(paper: type[PaperDriver]) -> None:
    paper.cuda_version = (12, 4)
    assert reason() == (
        "the NVIDIA driver 580.65.06 (CUDA 12.4) is too old for CuPy's CUDA 13: install 580 or newer, "
        "or pip uninstall cupy-cuda13x and pip install 'tiercel[cuda12]'"
    )


def test_a_driver_too_old_for_anything_is_said(paper: type[PaperDriver]) -> None:
    paper.cuda_version = (11, 8)
    assert reason() == "the NVIDIA driver 580.65.06 (CUDA 11.8) is too old: install 525 or newer"


def test_a_cupy_of_cuda_12_serves_a_newer_driver(
    paper: type[PaperDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    install_cupy(monkeypatch, 12)
    assert isinstance(devices(), list)


def test_a_driver_that_refuses_is_quoted(paper: type[PaperDriver], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise DeviceError("cuInit: CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized")

    monkeypatch.setattr(module, "Driver", refuse)
    assert "system not yet initialized" in reason()


def test_no_driver_is_told_from_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_LIBRARY", "libcuda-that-is-not-there.so.1")
    assert devices() == NoDevice(
        "no NVIDIA driver is installed: libcuda-that-is-not-there.so.1 is missing", has_driver=False
    )


def test_a_library_that_is_no_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_LIBRARY", "libc.so.6")
    with pytest.raises(DeviceError, match="too old: it has no cuInit"):
        Driver()


def test_a_driver_that_does_not_start_is_said_with_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    class Function:
        def __init__(self, status: int) -> None:
            self.status = status

        def __call__(self, *arguments: object) -> int:
            return self.status

    class Library:
        def __init__(self, name: str) -> None:
            pass

        def __getattr__(self, name: str) -> Function:
            return Function(803 if name == "cuInit" else 0)  # as after an update of the driver

    monkeypatch.setattr(driver_module.ctypes, "CDLL", Library)
    monkeypatch.setattr(driver_module.ctypes, "PyDLL", Library)
    with pytest.raises(DeviceError) as caught:
        Driver()
    assert str(caught.value) == (
        "the NVIDIA driver does not start (see nvidia-smi; restart the computer if it was updated): "
        "status 803"
    )


def test_the_command_prints_the_gpus_or_fails(
    paper: type[PaperDriver], capsys: pytest.CaptureFixture[str]
) -> None:
    assert module.main() == 0
    assert capsys.readouterr().out.startswith("cuda:0  NVIDIA H200, 140 GiB")
    paper.names, paper.capabilities = (), ()
    assert module.main() == 1
    assert "no GPU to compute on" in capsys.readouterr().err
