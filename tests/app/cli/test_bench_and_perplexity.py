"""`tiercel bench` and `tiercel perplexity`: the promised keys, and figures that agree with each other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.__main__ import main
from app.locations import rates_file
from engine import KernelError
from engine.tiers import probe
from engine.tiers.rates import Measured, save_rates
from kernels.quant_types import QuantType
from tests.tiny_gguf import write_tiny_model

REFERENCES = [("smollm2_path", "smollm2_135m_q4_1"), ("gemma3_path", "gemma3_270m_q4_k_m")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("bench") / "tiny.gguf"))


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    assert main([*arguments, "--json"]) == 0
    result: dict[str, float] = json.loads(capsys.readouterr().out)
    return result


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


def test_perplexity_of_a_text_does_not_depend_on_the_chunk(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("hello world, the end of the world is in the sea. " * 4)
    arguments = ("perplexity", "-m", tiny, "-f", str(text), "-c", "32")
    results = [run_json(capsys, *arguments, "--chunk", chunk) for chunk in ("512", "7", "1")]
    assert results[0].keys() == {"perplexity", "tokens"}
    for result in results[1:]:
        assert result == pytest.approx(results[0], rel=1e-6)


def test_a_reference_gives_its_distance(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    best = np.array([rng.permutation(320)[:64] for _ in range(20)], np.int32)
    reference = tmp_path / "r.npz"
    np.savez(
        reference,
        token_ids=rng.integers(3, 320, 20).astype(np.int32),
        top1=best[:, 0],
        top_ids=best,
        top_logprobs=np.full((20, 64), np.log(1 / 65), np.float32),
    )
    result = run_json(capsys, "perplexity", "-m", tiny, "--reference", str(reference))
    assert result.keys() == {"perplexity", "tokens", "kl_mean", "kl_p99", "kl_max", "top1"}
    assert result["tokens"] == 20
    assert 0 < result["kl_mean"] <= result["kl_p99"] <= result["kl_max"]


@pytest.mark.model
@pytest.mark.parametrize("precision", ["float", "fast"])
@pytest.mark.parametrize(("fixture", "reference"), REFERENCES)
def test_real_models_meet_the_marks(
    request: pytest.FixtureRequest,
    shared_data: Path,
    capsys: pytest.CaptureFixture[str],
    fixture: str,
    reference: str,
    precision: str,
) -> None:
    result = run_json(
        capsys,
        "perplexity",
        "-m",
        str(request.getfixturevalue(fixture)),
        "--reference",
        str(shared_data / "golden" / f"{reference}.licence_en.npz"),
        "--precision",
        precision,
    )
    assert result["kl_mean"] <= (0.0001 if precision == "float" else 0.0034)
    assert result["top1"] >= 0.955
