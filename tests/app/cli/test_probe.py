"""`tiercel probe`: the promised keys, the table, and the file that loading reads."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from app.__main__ import main
from app.locations import rates_file
from engine import CancelToken
from engine.tiers import probe
from kernels.quant_types import QuantType
from tests.tiny_gguf import write_tiny_model

pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")


@pytest.fixture
def tiny(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model in a home of its own, on a machine with little to read."""
    monkeypatch.setattr(probe, "_LEAST_BYTES", 2 << 20)
    monkeypatch.setattr(probe, "cache_bytes", lambda: 0)
    return str(write_tiny_model(home / "tiny.gguf"))


@pytest.fixture(autouse=True)
def any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is measured with small files too."""
    monkeypatch.setattr(probe, "_LEAST_FILE", 0)


def test_the_object_has_the_promised_keys_and_its_figures_serve_loading(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["probe", "-m", tiny, "-t", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.keys() == {"device", "threads", "dram_gb_s", "gemv_gb_s", "disk_gb_s"}
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
