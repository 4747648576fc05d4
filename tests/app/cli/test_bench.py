"""`tiercel bench`: the promised keys, and figures that agree with each other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.__main__ import main
from app.locations import rates_file
from engine import Cell, GpuSearch, KernelCell, KernelError, LoadOptions, OpCell, Report
from engine.tiers import probe
from engine.tiers.rates import Measured, save_rates
from kernels.quant_types import QuantType
from tests.app.tiers.models import GPU
from tests.tiny_gguf import write_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("bench") / "tiny.gguf"))


def run_bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["bench", *arguments, "-r", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result.keys() == {"device", "cells"}
    cells: list[dict[str, Any]] = result["cells"]
    return cells


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading of memory that takes no time, and small matrices."""
    bench = pytest.importorskip("kernels.bench", reason="the C kernels were not built: no compiler?")
    monkeypatch.setattr(bench, "read_bandwidth", lambda threads: 1e10)
    monkeypatch.setattr(bench, "_MATRIX_BYTES", 200_000)
    monkeypatch.setattr(bench, "_COMPUTE_ROWS", 32)
    monkeypatch.setattr(bench, "ROW_LENGTH", 256)


def documented(capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Every word of the help that may be the name of a field."""
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    return set(re.findall(r"[a-z0-9_]+", capsys.readouterr().out))


@pytest.mark.usefixtures("quick")
def test_bench_sweeps_models_threads_and_depths(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(write_tiny_model(tmp_path / "other.gguf", quant_type=QuantType.Q8_0))
    sweep = ["-m", tiny, "-m", other, "-d", "30,0", "-t", "2,1"]
    cells = run_bench(capsys, *sweep, "-p", "20", "-n", "4")
    assert [(cell["path"], cell["threads"], cell["depth"]) for cell in cells] == [
        (path, threads, depth) for path in (tiny, other) for threads in (2, 1) for depth in (0, 30)
    ]
    assert [cell["quantisation"] for cell in cells] == ["F32"] * 4 + ["Q8_0"] * 4
    assert [cell["prefill_tok_s"] is None for cell in cells] == [False, True] * 4
    assert all(cell["decode_tok_s"] > 0 for cell in cells)


@pytest.mark.usefixtures("quick")
def test_every_field_of_a_cell_is_in_the_help(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    (cell,) = run_bench(capsys, "-m", tiny, "-p", "20", "-n", "4")
    assert cell.keys() <= documented(capsys)
    kernel_cells = run_bench(capsys, "--kernels", "-t", "1,2")
    assert kernel_cells[0].keys() <= documented(capsys)
    kinds = [(cell["threads"], cell["quant_type"], cell["columns"]) for cell in kernel_cells]
    assert kinds == [
        (threads, quant_type.name, columns)
        for threads in (1, 2)
        for quant_type in QuantType
        for columns in (1, 2, 4, 8, 16, 512)
    ]


@pytest.mark.usefixtures("quick")
def test_bench_for_people_leaves_out_what_was_not_measured(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "-m", tiny, "-p", "0", "-n", "4", "-r", "1"]) == 0
    shown = capsys.readouterr().out
    assert "decode tok/s" in shown
    assert "prefill" not in shown
    assert "ttft" not in shown


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("what", [["-m", "{tiny}", "-d", "0,9", "-t", "1,2", "-n", "3"], ["--kernels"]])
def test_the_table_has_80_columns(tiny: str, capsys: pytest.CaptureFixture[str], what: list[str]) -> None:
    assert main(["bench", *(part.format(tiny=tiny) for part in what), "-r", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:])) <= 80  # the first names the processor
    (heading,) = (line for line in lines if "GB/s" in line)
    rows = lines[lines.index(heading) + 1 :]
    assert len(rows) == (4 if "-m" in what else 13 * 6)
    assert {len(row) for row in rows} == {len(heading)}
    assert all(".." in row for row in rows)


@pytest.mark.usefixtures("quick")
def test_rates_that_are_known_for_some_threads_only_leave_the_table_whole(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rates_file()
    assert file is not None
    save_rates(file, probe._fingerprint(probe._device(), 2), Measured(1e10, {QuantType.F32: 1e10}))
    assert main(["bench", "-m", tiny, "-d", "0", "-t", "1,2", "-n", "3", "-p", "9", "-r", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {len(line) for line in lines[-2:]} == {len(lines[-3])}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-p", "9"], "give -m/--model, or --kernels"),
        (["-m", "{tiny}", "-m", "{tiny}"], "name each once"),
        (["-m", "{tiny}", "-m", "{tmp}/link.gguf"], "name each once"),
        (["-m", "{tiny}", "-t", "0"], "'0' is not a whole number of at least 1"),
        (["-m", "{tiny}", "-t", ""], "'' is not a whole number"),
        (["-m", "{tiny}", "-d", "1,,2"], "'' is not a whole number"),
        (["-m", "{tiny}", "-d", "7,7"], "'7,7' has a number twice"),
        (["-m", "{tiny}", "-d", "449"], "-d 449 with -n 64 goes beyond the context of tiny.gguf, 512 tokens"),
        (["-m", "{tiny}", "-p", "513"], "-p 513 goes beyond the context of tiny.gguf, 512 tokens"),
        (["-m", "{tiny}", "-d", "0,9", "-n", "0"], "nothing to measure"),
        (["-m", "{tiny}", "-d", "9", "-p", "9"], "add 0 to -d, or leave out -p 9"),
        (["-m", "{tiny}", "-r", "0"], "'0' is not a whole number of at least 1"),
        (["--kernels", "-m", "{tiny}", "-d", "0"], "leave out -m, -d"),
        (["--kernels", "--vram-budget", "8G", "--ops"], "leave out --vram-budget, --ops"),
        (["--kernels", "--streaming"], "leave out --executor or --streaming"),
        (["--kernels", "--device", "cuda", "-t", "2"], "threads are those of the processor: leave out -t"),
        (["--ops"], "give -m/--model"),
        (["--ops", "-m", "{tiny}", "-n", "4", "-t", "1"], "leave out -n, -t"),
        (["--ops", "-m", "{tiny}", "-d", "512"], "-d 512 with -n 1 goes beyond the context"),
        (["-m", "{tiny}", "--device", "gpu"], "'gpu' is no device"),
        (["--matrix", "m.toml", "-m", "{tiny}"], "--matrix takes its settings from the file"),
        (["--matrix", "m.toml", "-p", "0"], "--matrix takes its settings from the file"),
        (["-m", "{tiny}", "-o", "x"], "-o names the files of --matrix"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_loaded(
    tiny: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    (tmp_path / "link.gguf").symlink_to(tiny)
    monkeypatch.setattr("engine.measure_speed", lambda *_, **__: pytest.fail("it was loaded"))
    assert main(["bench", *(part.format(tiny=tiny, tmp=tmp_path) for part in arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.count("\n") == 1


# -- on a GPU

GPU_CELL = Cell(
    path="/m/llama-8b.gguf",
    quantisation="Q4_K",
    threads=0,
    depth=0,
    repetitions=5,
    prompt_tokens=512,
    decode_tokens=200,
    prefill_tok_s=17002.0,
    prefill_tok_s_min=16800.0,
    prefill_tok_s_max=17100.0,
    ttft_ms=30.11,
    decode_tok_s=1558.0,
    decode_tok_s_min=1550.0,
    decode_tok_s_max=1560.0,
    weight_bytes=4_600_000_000,
    kv_bytes=600_000_000,
    weight_gb_s=2566.8,
    read_gb_s=4394.0,
    copy_gb_s=4256.0,
    h2d_gb_s=55.1,
    bandwidth_share=0.584,
    predicted_decode_tok_s=None,
    predicted_prefill_tok_s=None,
    nvme_read_bytes=0,
    h2d_bytes=0,
    stall_ms=0.0,
    disk_gb_s=None,
    host_share=0.0312,
)
KERNEL_CELL = KernelCell(
    quant_type="Q4_K",
    threads=0,
    columns=8,
    rows=128_256,
    row_length=14336,
    repetitions=5,
    us=1169.4,
    us_min=1168.9,
    us_max=1171.2,
    weight_gb_s=4210.0,
    gflop_s=100_000.0,
    read_gb_s=4394.0,
    bandwidth_share=0.958,
    relative_time=1.09,
)
OP_CELLS = tuple(
    OpCell("/m/llama-8b.gguf", "Q4_K", depth, 5, op, launches, us, us - 1, us + 1, us / 1600)
    for depth in (0, 4096)
    for op, launches, us in (
        ("whole step", 420, 1600.0),
        ("rmsnorm", 65, 110.25),
        ("gemv_columns Q4_K 14336 GATED_SILU", 32, 700.5),
    )
)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What was asked of the engine, whose answers are these."""
    asked: list[dict[str, object]] = []

    def answering(*cells: object) -> Callable[..., Report[Any]]:
        def measure(first: object, **options: object) -> Report[Any]:
            asked.append({"first": first, **options})
            return Report("NVIDIA H200, cuda sm_90", cells, ())

        return measure

    monkeypatch.setattr("engine.measure_speed", answering(GPU_CELL, replace(GPU_CELL, depth=4096)))
    monkeypatch.setattr("engine.measure_gpu_kernel", answering(KERNEL_CELL))
    monkeypatch.setattr("engine.measure_ops", answering(*OP_CELLS))
    monkeypatch.setattr("engine.find_gpus", lambda: GpuSearch((GPU,), "", True))
    return asked


def test_the_table_of_a_gpu_has_its_ceilings_and_80_columns(
    tiny: str, capsys: pytest.CaptureFixture[str], measured: list[dict[str, object]]
) -> None:
    assert main(["bench", "-m", tiny, "--device", "cuda:0", "--kv-type", "q8_0", "--vram-budget", "9G"]) == 0
    options = measured[0]["first"]
    assert isinstance(options, LoadOptions)
    assert (options.device, options.kv_type, str(options.vram_budget)) == ("cuda:0", "q8_0", "9000000000")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "NVIDIA H200, cuda sm_90"
    assert "GPU memory: reads 4394 GB/s, copies 4256 GB/s; to the GPU 55.1 GB/s" in lines
    heading, *rows = lines[-3:]
    assert heading.split() == (
        ["depth", "prefill", "tok/s", "ttft", "ms", "decode", "tok/s", "GB/s", "share", "KV", "host"]
    )
    assert {len(line) for line in (heading, *rows)} == {len(heading)}
    assert len(heading) <= 80
    for words in ("17002 16800..17100", "30.1", "1558 1550..1560", "2567", "58%", "3.1%"):
        assert words in rows[0]


def test_the_products_of_a_gpu_are_timed_where_there_is_one(
    capsys: pytest.CaptureFixture[str], measured: list[dict[str, object]]
) -> None:
    assert main(["bench", "--kernels"]) == 0
    assert [each["first"] for each in measured] == list(QuantType)
    lines = capsys.readouterr().out.splitlines()
    assert not any("thread" in line for line in lines)
    heading = next(line for line in lines if "shape" in line)
    assert {len(line) for line in lines[lines.index(heading) :]} == {len(heading)}
    assert len(heading) <= 80
    assert "128256x14336" in lines[-1]
    assert "1169 1169..1171" in lines[-1]
    measured.clear()
    cells = run_bench(capsys, "--kernels", "--device", "cuda:1")
    assert {each["device"] for each in measured} == {"cuda:1"}
    assert cells[0].keys() <= documented(capsys)


@pytest.mark.usefixtures("quick")
def test_the_products_of_the_processor_are_timed_where_that_is_asked_for(
    capsys: pytest.CaptureFixture[str], measured: list[dict[str, object]]
) -> None:
    for arguments in (["--device", "cpu"], ["-t", "1"]):
        assert {cell["threads"] > 0 for cell in run_bench(capsys, "--kernels", *arguments)} == {True}
    assert measured == []


def test_the_operations_of_a_step_are_a_table_for_each_depth_the_longest_first(
    tiny: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    measured: list[dict[str, object]],
) -> None:
    assert main(["bench", "--ops", "-m", tiny, "-d", "0,9", "-r", "7"]) == 0
    assert (measured[0]["depths"], measured[0]["repetitions"]) == ([0, 9], 7)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "NVIDIA H200, cuda sm_90",
        "one decode step by operation; medians of 5, lowest..highest",
    ]
    assert lines[3] == "llama-8b, Q4_K, depth 0"
    assert [line.split()[0] for line in lines[4:8]] == ["op", "whole", "gemv_columns", "rmsnorm"]
    assert lines[6].startswith("gemv_columns Q4_K 14336 GATED_SILU ")
    assert lines[6].endswith(" 43.8%")
    assert {len(line) for line in lines[4:8]} == {len(lines[4])}
    assert len(lines[4]) <= 80
    measured.clear()
    monkeypatch.setattr("engine.training_context", lambda path: 4096)
    cells = run_bench(capsys, "--ops", "-m", tiny)
    assert measured[0]["depths"] == [512]
    assert cells[0].keys() <= documented(capsys)


def test_a_depth_that_just_fits_is_measured(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def measured(options: object, **lengths: object) -> None:
        asked.update(lengths)
        raise KernelError("far enough")

    monkeypatch.setattr("engine.measure_speed", measured)
    assert main(["bench", "-m", tiny, "-d", "448"]) == 1
    assert (asked["depths"], asked["n_prompt"], asked["n_decode"]) == ([448], 0, 64)
