"""The figures of `tiercel bench` as lines for people, at most 80 columns wide.

Knows which figures stand side by side; does not measure. Lines come as soon as their report is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.columns import (
    NOT_MEASURED,
    Column,
    gigabytes,
    heading_line,
    milliseconds,
    percent,
    row_line,
    short,
    spread,
)
from app.sanitize import sanitize_line

if TYPE_CHECKING:
    from engine import Cell, KernelCell, OpCell, Report


def model_lines(reports: Iterable[Report[Cell]]) -> Iterator[str]:
    """A table for each model; reports of the same model come one after another."""
    path = None
    columns: list[Column[Cell]] = []
    for report in reports:
        first = report.cells[0]
        if path is None:
            yield report.device
            yield _what_was_measured(first)
        if path != first.path:
            path = first.path
            # What no cell has, such as prompts when none was asked for, takes no room.
            columns = [
                column
                for column in _MODEL_COLUMNS
                if any(column.text(cell) != NOT_MEASURED for cell in report.cells)
            ]
            yield ""
            name = sanitize_line(Path(path).stem)
            yield f"{name}, {first.quantisation}, {first.weight_bytes / 1e6:,.0f} MB of weights a decode step"
            yield from _ceilings(report.cells)
            yield heading_line(columns)
        for cell in report.cells:
            yield row_line(columns, cell)


def _ceilings(cells: Sequence[Cell]) -> Iterator[str]:
    """What a GPU's memory and its link reached beside the model: the best of all cells."""
    read, copy, h2d = (
        max((rate for cell in cells if (rate := getattr(cell, name)) is not None), default=None)
        for name in ("read_gb_s", "copy_gb_s", "h2d_gb_s")
    )
    if read is not None and copy is not None and h2d is not None:
        yield f"GPU memory: reads {read:.0f} GB/s, copies {copy:.0f} GB/s; to the GPU {h2d:.1f} GB/s"


def op_lines(reports: Iterable[Report[OpCell]]) -> Iterator[str]:
    """A table for each model and depth, the operations that take longest first."""
    for number, report in enumerate(reports):
        if not number:
            yield report.device
            yield f"one decode step by operation; {_medians(report.cells[0].repetitions)}"
        for depth in dict.fromkeys(cell.depth for cell in report.cells):
            cells = [cell for cell in report.cells if cell.depth == depth]
            yield ""
            yield f"{sanitize_line(Path(cells[0].path).stem)}, {cells[0].quantisation}, depth {depth}"
            yield heading_line(_OP_COLUMNS)
            for cell in sorted(cells, key=lambda cell: -cell.us):
                yield row_line(_OP_COLUMNS, cell)


def kernel_lines(reports: Iterable[Report[KernelCell]]) -> Iterator[str]:
    """A table for each number of threads; reports of the same number come one after another."""
    threads = None
    columns = _KERNEL_COLUMNS
    for report in reports:
        first = report.cells[0]
        if threads is None:
            yield report.device
            yield f"each product checked, then timed; {_medians(first.repetitions)}"
        if threads != first.threads:
            threads = first.threads
            yield ""
            if threads:
                yield f"{threads} {'thread' if threads == 1 else 'threads'}"
            columns = _KERNEL_COLUMNS if threads else _GPU_KERNEL_COLUMNS
            yield heading_line(columns)
        for cell in report.cells:
            yield row_line(columns, cell)


def _what_was_measured(cell: Cell) -> str:
    parts = [f"prompts of {cell.prompt_tokens} tokens"] * bool(cell.prompt_tokens)
    parts += [f"{cell.decode_tokens} tokens decoded"] * bool(cell.decode_tokens)
    return "; ".join([*parts, _medians(cell.repetitions)])


def _medians(repetitions: int) -> str:
    return f"medians of {repetitions}, lowest..highest"


def _kv_gb_s(cell: Cell) -> float | None:
    return None if cell.decode_tok_s is None else cell.kv_bytes * cell.decode_tok_s / 1e9


_MODEL_COLUMNS: tuple[Column[Cell], ...] = (
    Column("thr", 3, lambda cell: str(cell.threads or NOT_MEASURED)),
    Column("depth", 5, lambda cell: str(cell.depth)),
    Column(
        "prefill tok/s",
        18,
        lambda cell: spread(cell.prefill_tok_s, cell.prefill_tok_s_min, cell.prefill_tok_s_max),
    ),
    Column("ttft ms", 7, lambda cell: milliseconds(cell.ttft_ms)),
    Column(
        "decode tok/s",
        18,
        lambda cell: spread(cell.decode_tok_s, cell.decode_tok_s_min, cell.decode_tok_s_max),
    ),
    Column("GB/s", 5, lambda cell: gigabytes(cell.weight_gb_s)),
    Column("share", 5, lambda cell: percent(cell.bandwidth_share)),
    Column("KV", 4, lambda cell: gigabytes(_kv_gb_s(cell))),
    Column("plan", 5, lambda cell: short(cell.predicted_decode_tok_s)),
    Column("host", 5, lambda cell: percent(cell.host_share, 1)),
)
"""GB/s of weights and their share of plain reads; KV is GB/s of keys and values beside them, plan the tok/s
that were predicted, host the part of a step in which a GPU did not work."""

_KERNEL_COLUMNS: tuple[Column[KernelCell], ...] = (
    Column("type", 5, lambda cell: cell.quant_type),
    Column("columns", 7, lambda cell: str(cell.columns)),
    Column("us", 23, lambda cell: spread(cell.us, cell.us_min, cell.us_max)),
    Column("GB/s", 6, lambda cell: gigabytes(cell.weight_gb_s)),
    Column("read", 6, lambda cell: gigabytes(cell.read_gb_s)),
    Column("share", 5, lambda cell: percent(cell.bandwidth_share)),
    Column("GFLOP/s", 8, lambda cell: f"{cell.gflop_s:.1f}"),
    Column("relative", 8, lambda cell: f"{cell.relative_time:.2f}"),
)

_GPU_KERNEL_COLUMNS: tuple[Column[KernelCell], ...] = (
    Column("type", 5, lambda cell: cell.quant_type),
    Column("shape", 12, lambda cell: f"{cell.rows}x{cell.row_length}"),
    Column("columns", 7, lambda cell: str(cell.columns)),
    Column("us", 21, lambda cell: spread(cell.us, cell.us_min, cell.us_max)),
    Column("GB/s", 6, lambda cell: gigabytes(cell.weight_gb_s)),
    Column("read", 6, lambda cell: gigabytes(cell.read_gb_s)),
    Column("share", 5, lambda cell: percent(cell.bandwidth_share)),
    Column("relative", 8, lambda cell: f"{cell.relative_time:.2f}"),
)

_OP_COLUMNS: tuple[Column[OpCell], ...] = (
    Column("op".ljust(36), 36, lambda cell: cell.op.ljust(36)),
    Column("launches", 8, lambda cell: str(cell.launches)),
    Column("us", 23, lambda cell: spread(cell.us, cell.us_min, cell.us_max)),
    Column("share", 6, lambda cell: percent(cell.share, 1)),
)
