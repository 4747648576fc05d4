"""`tiercel plan`: where the weights of a model would go on this machine and why. Loads nothing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.cli.arguments import add_model_arguments, load_options, positive_int
from app.cli.exit_codes import OK
from app.cli.interruptible import run_interruptible
from app.cli.notices import print_notices
from app.sanitize import sanitize_line

if TYPE_CHECKING:  # numpy
    from engine import PlanReport

NAME = "plan"
HELP = "show where the weights of a model would go, and how fast that would be"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, its memory and the output format."""
    add_model_arguments(parser)
    parser.add_argument(
        "-c", "--context", type=positive_int, metavar="N", help="context in tokens (default: 8192 at most)"
    )
    parser.add_argument(
        "--timeline", action="store_true", help="draw one decode step: who works when, and who waits"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one object: blocks (name, bytes, tier, executor), predicted_decode_tok_s, "
        "predicted_prefill_tok_s (of 512 tokens), limited_by, vram_bytes, vram_budget_bytes, ram_bytes, "
        "ram_budget_bytes, context, chunk, slots, and in words: lines, advice, timeline",
    )
    parser.epilog = "example: tiercel plan -m smollm2 --vram-budget 8G"


def run(args: argparse.Namespace) -> int:
    """Print the plan; what has not been measured on this machine yet is measured first."""
    from engine import plan_report  # numpy

    options = load_options(args, context=args.context)
    report = run_interruptible(lambda cancel: plan_report(options, cancel))
    print_notices(report.notices)
    if args.json:
        print(json.dumps(_as_json(report)))
    else:
        print("\n".join(_lines(report, timeline=args.timeline)))
    return OK


def _as_json(report: PlanReport) -> dict[str, object]:
    return {
        "blocks": [
            {"name": block.name, "bytes": block.n_bytes, "tier": block.tier, "executor": block.executor}
            for block in report.blocks
        ],
        "predicted_decode_tok_s": report.predicted_decode_tok_s,
        "predicted_prefill_tok_s": report.predicted_prefill_tok_s,
        "limited_by": report.limited_by,
        "vram_bytes": report.vram_bytes,
        "vram_budget_bytes": report.vram_budget_bytes,
        "ram_bytes": report.ram_bytes,
        "ram_budget_bytes": report.ram_budget_bytes,
        "context": report.context,
        "chunk": report.chunk,
        "slots": report.slots,
        "lines": report.lines,
        "advice": report.advice,
        "timeline": report.timeline,
    }


def _lines(report: PlanReport, *, timeline: bool) -> Iterator[str]:
    yield from map(sanitize_line, report.lines)
    if report.vram_budget_bytes:
        yield f"video memory: {_gigabytes(report.vram_bytes)} of {_gigabytes(report.vram_budget_bytes)} GB"
    yield f"memory: {_gigabytes(report.ram_bytes)} of {_gigabytes(report.ram_budget_bytes)} GB"
    yield f"context: {report.context} tokens, prompts in parts of {report.chunk}"
    if report.predicted_prefill_tok_s is not None:
        yield f"prompt of 512 tokens: {report.predicted_prefill_tok_s:.0f} tok/s"
    if report.advice:
        yield "what one change would bring:"
        yield from (f"  {sanitize_line(line)}" for line in report.advice)
    if timeline:
        yield from ("one decode step:", *report.timeline) if report.timeline else (_no_step(report),)


def _no_step(report: PlanReport) -> str:
    why = "the link to the GPU has not been measured" if report.vram_budget_bytes else "no GPU computes"
    return f"no step can be drawn: {why}"


def _gigabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f}"
