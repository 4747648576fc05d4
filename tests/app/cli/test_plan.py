"""`tiercel plan`: the promised keys, the words, and that nothing is loaded for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from app.__main__ import main
from engine import (
    BlockPlace,
    BudgetError,
    CancelToken,
    Executor,
    ExecutorChoice,
    LoadOptions,
    PlanReport,
    Tier,
    parse_budget,
)
from tests.tiny_gguf import write_tiny_model

REPORT = PlanReport(
    blocks=(
        BlockPlace("blk.0 attention", "attention", 0, 100, "Q4_K", Tier.VRAM, Executor.GPU),
        BlockPlace("blk.0 feed_forward", "feed_forward", 0, 300, "Q4_K", Tier.RAM, Executor.STREAM),
        BlockPlace("head", "head", None, 50, "Q6_K", Tier.NVME, Executor.CPU),
    ),
    predicted_decode_tok_s=6.5,
    predicted_prefill_tok_s=1100.0,
    limited_by="the link to the GPU",
    lines=("attention lies in VRAM", "one \x1b[31mred\nline"),
    advice=("4.00 GB more VRAM: 8.0 tokens per second",),
    timeline=("GPU  ####", "link ####"),
    vram_bytes=23_400_000_000,
    vram_budget_bytes=24_000_000_000,
    ram_bytes=19_000_000_000,
    ram_budget_bytes=80_000_000_000,
    context=8192,
    chunk=1024,
    slots=3,
    notices=("a notice",),
)


@pytest.fixture
def model(home: Path) -> str:
    (home / "m.gguf").touch()
    return str(home / "m.gguf")


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Callable[[PlanReport], list[LoadOptions]]:
    """Let the engine report this -> the options that it was asked with."""

    def will_be(report: PlanReport) -> list[LoadOptions]:
        asked: list[LoadOptions] = []

        def plan_report(options: LoadOptions, cancel: CancelToken) -> PlanReport:
            asked.append(options)
            return report

        monkeypatch.setattr("engine.plan_report", plan_report)
        return asked

    return will_be


Reported = Callable[[PlanReport], list[LoadOptions]]


def test_the_object_has_every_field_and_blocks_as_promised(
    model: str, capsys: pytest.CaptureFixture[str], reported: Reported
) -> None:
    (asked,) = [reported(REPORT)]
    arguments = ["--vram-budget", "24G", "--ram-budget", "80G", "--executor", "stream", "-c", "4096"]
    assert main(["plan", "-m", model, "--json", *arguments]) == 0
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    assert result.keys() == {field.name for field in fields(PlanReport)} - {"notices"}
    assert result["blocks"][1] == {
        "name": "blk.0 feed_forward",
        "bytes": 300,
        "tier": "ram",
        "executor": "stream",
    }
    for name in ("predicted_decode_tok_s", "predicted_prefill_tok_s", "limited_by", "slots", "chunk"):
        assert result[name] == getattr(REPORT, name)
    assert shown.err == "tiercel: a notice\n"
    (options,) = asked
    assert (options.vram_budget, options.ram_budget) == (parse_budget("24G"), parse_budget("80G"))
    assert (options.executor, options.context, options.chunk) == (ExecutorChoice.STREAM, 4096, None)


def test_the_words_are_cleaned_and_the_chart_comes_when_asked_for(
    model: str, capsys: pytest.CaptureFixture[str], reported: Reported
) -> None:
    reported(REPORT)
    assert main(["plan", "-m", model]) == 0
    without = capsys.readouterr().out.splitlines()
    assert "attention lies in VRAM" in without
    assert all("\x1b" not in line for line in without)
    assert "video memory: 23.40 of 24.00 GB" in without
    assert "memory: 19.00 of 80.00 GB" in without
    assert "context: 8192 tokens, prompts in parts of 1024" in without
    assert "prompt of 512 tokens: 1100 tok/s" in without
    assert "  4.00 GB more VRAM: 8.0 tokens per second" in without
    assert main(["plan", "-m", model, "--timeline"]) == 0
    assert capsys.readouterr().out.splitlines() == [*without, "one decode step:", *REPORT.timeline]


def test_what_is_not_known_is_left_out(
    model: str, capsys: pytest.CaptureFixture[str], reported: Reported
) -> None:
    unknown = replace(
        REPORT,
        predicted_prefill_tok_s=None,
        predicted_decode_tok_s=None,
        advice=(),
        timeline=(),
        vram_bytes=0,
        vram_budget_bytes=0,
        notices=(),
    )
    reported(unknown)
    assert main(["plan", "-m", model, "--timeline"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "video" not in shown.out
    assert "tok/s" not in shown.out
    assert "what one change" not in shown.out
    assert shown.out.splitlines()[-1] == "no step can be drawn: no GPU computes"


def test_a_step_that_is_not_drawn_beside_a_gpu_has_another_reason(
    model: str, capsys: pytest.CaptureFixture[str], reported: Reported
) -> None:
    reported(replace(REPORT, timeline=()))
    assert main(["plan", "-m", model, "--timeline"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "no step can be drawn: the link to the GPU has not been measured"


def test_what_cannot_be_is_one_line_and_does_not_fit(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(options: LoadOptions, cancel: CancelToken) -> PlanReport:
        raise BudgetError("12 layers take 9 GB, and the budget is 6 GB")

    monkeypatch.setattr("engine.plan_report", refuse)
    assert main(["plan", "-m", model, "--gpu-layers", "12"]) == 4
    assert capsys.readouterr().err == "tiercel: 12 layers take 9 GB, and the budget is 6 GB\n"


def test_a_real_file_is_planned_without_a_gpu(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tiny_model(home / "tiny.gguf")
    assert main(["plan", "-m", str(path), "--device", "cpu", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {block["tier"] for block in result["blocks"]} == {"ram"}
    assert (result["vram_bytes"], result["timeline"]) == (0, [])
