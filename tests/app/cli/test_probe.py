"""`tiercel probe`: the promised keys, the table, and the file that loading reads."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from app.__main__ import main
from app.locations import rates_file
from engine import CancelToken, DeviceError, GpuRates, GpuSearch
from engine.measuring.benchmark_gpu import Ceilings, Searched
from engine.tiers import probe
from engine.tiers.rates import GpuMeasured, LinkRates
from kernels.quant_types import QuantType
from tests.app.tiers.models import GPU
from tests.tiny_gguf import write_tiny_model

pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")


@pytest.fixture
def tiny(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model in a home of its own, on a machine with little to read."""
    monkeypatch.setattr(probe, "_LEAST_BYTES", 2 << 20)
    monkeypatch.setattr(probe, "cache_bytes", lambda: 0)
    return str(write_tiny_model(home / "tiny.gguf"))


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on every machine."""
    monkeypatch.setattr("engine.find_gpus", lambda: GpuSearch((), "no driver", False))


@pytest.fixture(autouse=True)
def any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is measured with small files too."""
    monkeypatch.setattr(probe, "_LEAST_FILE", 0)


def test_the_object_has_the_promised_keys_and_its_figures_serve_loading(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["probe", "-m", tiny, "-t", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.keys() == {"device", "threads", "dram_gb_s", "gemv_gb_s", "disk_gb_s", "gpu"}
    assert shown["gpu"] is None
    assert shown["threads"] == 1
    assert shown["gemv_gb_s"].keys() == {quant_type.name for quant_type in QuantType}
    assert min(shown["dram_gb_s"], shown["disk_gb_s"], *shown["gemv_gb_s"].values()) > 0
    for name in ("probe_memory", "probe_disk"):
        monkeypatch.delattr(probe, name)  # nothing is measured again
    kept = rates_file()
    assert kept is not None
    rates, notices = probe.model_rates(
        Path(tiny), [QuantType.F32], 1, kept, measure=False, cancel=CancelToken()
    )
    assert notices == ()
    assert rates is not None
    assert rates.dram / 1e9 == shown["dram_gb_s"]
    assert rates.disk / 1e9 == shown["disk_gb_s"]
    assert rates.gemv[QuantType.F32] / 1e9 == shown["gemv_gb_s"]["F32"]


def test_the_table_has_each_type_and_a_disk_only_with_a_model(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", "-t", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("1 threads")
    assert [line.split()[0] for line in lines[1:]] == ["memory", *(t.name for t in sorted(QuantType))]
    assert all("GB/s" in line for line in lines[1:])
    assert all("% of memory" in line for line in lines[2:])
    assert main(["probe", "-t", "1", "-m", tiny]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("disk ")


def test_what_is_no_model_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("probe_memory", "probe_disk"):
        monkeypatch.delattr(probe, name)
    for content in (b"", b"hi\n"):
        (tmp_path / "note.gguf").write_bytes(content)
        assert main(["probe", "-m", str(tmp_path / "note.gguf")]) == 3
        assert "note.gguf" in capsys.readouterr().err
    assert main(["probe", "-m", ""]) == 3


def test_figures_that_cannot_be_kept_are_shown_with_a_notice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(probe, "save_rates", fail)
    assert main(["probe", "-t", "1"]) == 0
    shown = capsys.readouterr()
    assert "GB/s" in shown.out
    assert "cannot be kept" in shown.err


# -- with a GPU

RATES = GpuRates(
    gpu=GPU,
    ceilings=Ceilings(read=900e9, copy=850e9, h2d=25e9),
    gemv={"Q4_K": 810e9, "Q8_0": 891e9},
    searched=(
        Searched("Q4_K", 4096, 14336, 1, 30.0, 33.0),
        Searched("Q4_K", 4096, 14336, 8, 36.0, 36.0),
    ),
    quant_type="Q4_K",
    placement=GpuMeasured(LinkRates(800e9, 25e9, 20e9, 0.93, 70e12, 45e-6), 0.4e12),
    notices=("a notice",),
)


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What was asked to be measured of a GPU; the processor is not to be measured."""
    asked: list[tuple[object, ...]] = []

    def measure_gpu(  # type: ignore[no-untyped-def]
        path, device, threads, cache_dir, rates_file, *, on_progress, cancel
    ):
        asked.append((path, device, threads, cache_dir, rates_file))
        on_progress("measuring the GPU", 0.5)
        return RATES

    monkeypatch.setattr("engine.measure_gpu", measure_gpu)
    monkeypatch.setattr("engine.find_gpus", lambda: GpuSearch((GPU,), "", True))
    monkeypatch.setattr("engine.measure_machine", lambda *_: pytest.fail("the processor was measured"))
    return asked


def test_a_gpu_that_is_named_is_measured_alone(
    tiny: str, home: Path, capsys: pytest.CaptureFixture[str], a_gpu: list[tuple[object, ...]]
) -> None:
    assert main(["probe", "--device", "cuda:1", "-m", tiny, "-t", "3"]) == 0
    cache = home / "tiercel" / "cache"
    assert a_gpu == [(Path(tiny), "cuda:1", 3, cache, cache / "rates.json")]
    shown = capsys.readouterr()
    assert shown.err == "tiercel: a notice\n"
    assert shown.out.splitlines() == [
        "NVIDIA RTX 0000, compute capability 8.6, 24.0 GB, driver 580.65.06",
        "memory   900.00 GB/s   (plain reads)",
        "copies   850.00 GB/s   (read and written)",
        "link      25.00 GB/s   (to the GPU, from page-locked memory)",
        "Q4_K     810.00 GB/s   (90% of memory)",
        "Q8_0     891.00 GB/s   (99% of memory)",
        "to place weights of Q4_K:",
        "decode   800.00 GB/s   (products in the GPU's memory)",
        "copies    25.00 GB/s   (to the GPU, as blocks are copied)",
        "beside    20.00 GB/s   (while the processor multiplies as well,",
        "                        which keeps 93% of its own speed)",
        "prompt    70.00 TFLOP/s (of the GPU; the processor 0.40)",
        "cross     45.00 us     (from the GPU to the processor and back)",
        "Q4_K     4096x14336 1 token     30.00 us   (was 33.00)",
        "Q4_K     4096x14336 8 tokens    36.00 us   (kept)",
    ]


def test_the_object_of_a_gpu_alone_leaves_the_processor_empty(
    capsys: pytest.CaptureFixture[str], a_gpu: list[tuple[object, ...]]
) -> None:
    assert main(["probe", "--device", "cuda", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.keys() == {"device", "threads", "dram_gb_s", "gemv_gb_s", "disk_gb_s", "gpu"}
    assert [name for name, value in shown.items() if value is not None] == ["gpu"]
    gpu = shown["gpu"]
    assert (gpu["name"], gpu["compute_capability"]) == ("NVIDIA RTX 0000", "8.6")
    assert (gpu["read_gb_s"], gpu["copy_gb_s"], gpu["h2d_gb_s"]) == (900, 850, 25)
    assert gpu["gemv_gb_s"] == {"Q4_K": 810, "Q8_0": 891}
    assert gpu["placement"] == {
        "quant_type": "Q4_K",
        "decode_gb_s": 800,
        "h2d_gb_s": 25,
        "h2d_beside_cpu_gb_s": 20,
        "cpu_beside_h2d": 0.93,
        "prefill_tflop_s": 70,
        "cpu_prefill_tflop_s": 0.4,
        "crossing_us": pytest.approx(45),
    }
    assert gpu["searched"][0] == {
        "quant_type": "Q4_K",
        "rows": 4096,
        "row_length": 14336,
        "tokens": 1,
        "us": 30,
        "us_before": 33,
    }


def test_where_there_is_a_gpu_both_are_measured_and_cpu_leaves_it_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, a_gpu: list[tuple[object, ...]]
) -> None:
    monkeypatch.setattr("engine.measure_machine", probe.measure_machine)
    for name in ("_LEAST_BYTES", "_MOST_BYTES"):
        monkeypatch.setattr(probe, name, 2 << 20)
    assert main(["probe", "-t", "1", "--device", "cpu"]) == 0
    assert "NVIDIA" not in capsys.readouterr().out
    assert a_gpu == []
    assert main(["probe", "-t", "1"]) == 0
    assert "1 threads" in (out := capsys.readouterr().out)
    assert "NVIDIA RTX 0000" in out


def test_a_gpu_that_is_not_there_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure_gpu(*_: object, **__: object) -> None:
        raise DeviceError("no GPU can be used: no NVIDIA driver is installed")

    monkeypatch.setattr("engine.measure_gpu", measure_gpu)
    assert main(["probe", "--device", "cuda"]) == 1
    assert capsys.readouterr().err == "tiercel: no GPU can be used: no NVIDIA driver is installed\n"
