"""The figures of `tiercel bench` as lines for people, at most 80 columns wide.

Knows which figures stand side by side; does not measure. Lines come as soon as their report is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from app.sanitize import sanitize_line

if TYPE_CHECKING:
    from engine import Cell, KernelCell, OpCell, Report

C = TypeVar("C")

_NOT_MEASURED = "-"


class _Column(NamedTuple, Generic[C]):
    """One column, aligned to the right."""

    heading: str
    width: int
    text: Callable[[C], str]


def model_lines(reports: Iterable[Report[Cell]]) -> Iterator[str]:
    """A table for each model; reports of the same model come one after another."""
    path = None
    columns: list[_Column[Cell]] = []
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
                if any(column.text(cell) != _NOT_MEASURED for cell in report.cells)
            ]
            yield ""
            name = sanitize_line(Path(path).stem)
            yield f"{name}, {first.quantisation}, {first.weight_bytes / 1e6:,.0f} MB of weights a decode step"
            yield from _ceilings(report.cells)
            yield _headings(columns)
        for cell in report.cells:
            yield _line(columns, cell)


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
            yield _headings(_OP_COLUMNS)
            for cell in sorted(cells, key=lambda cell: -cell.us):
                yield _line(_OP_COLUMNS, cell)


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
            yield _headings(columns)
        for cell in report.cells:
            yield _line(columns, cell)


def _what_was_measured(cell: Cell) -> str:
    parts = [f"prompts of {cell.prompt_tokens} tokens"] * bool(cell.prompt_tokens)
    parts += [f"{cell.decode_tokens} tokens decoded"] * bool(cell.decode_tokens)
    return "; ".join([*parts, _medians(cell.repetitions)])


def _medians(repetitions: int) -> str:
    return f"medians of {repetitions}, lowest..highest"


def _headings(columns: Sequence[_Column[C]]) -> str:
    return " ".join(column.heading.rjust(column.width) for column in columns)


def _line(columns: Sequence[_Column[C]], cell: C) -> str:
    return " ".join(column.text(cell).rjust(column.width) for column in columns)


def _spread(middle: float | None, low: float | None, high: float | None) -> str:
    return _NOT_MEASURED if middle is None else f"{_short(middle)} {_short(low)}..{_short(high)}"


def _short(value: float | None) -> str:
    """Four digits or more, none after the point that say nothing."""
    if value is None:
        return _NOT_MEASURED
    return f"{value:.{0 if value >= 1000 else 1 if value >= 100 else 2}f}"


def _gigabytes(value: float | None) -> str:
    return _NOT_MEASURED if value is None else f"{value:.{0 if value >= 100 else 1}f}"


def _percent(share: float | None, digits: int = 0) -> str:
    return _NOT_MEASURED if share is None else f"{share:.{digits}%}"


def _milliseconds(value: float | None) -> str:
    return _NOT_MEASURED if value is None else f"{value:.{0 if value >= 100 else 1}f}"


def _kv_gb_s(cell: Cell) -> float | None:
    return None if cell.decode_tok_s is None else cell.kv_bytes * cell.decode_tok_s / 1e9


_MODEL_COLUMNS: tuple[_Column[Cell], ...] = (
    _Column("thr", 3, lambda cell: str(cell.threads or _NOT_MEASURED)),
    _Column("depth", 5, lambda cell: str(cell.depth)),
    _Column(
        "prefill tok/s",
        18,
        lambda cell: _spread(cell.prefill_tok_s, cell.prefill_tok_s_min, cell.prefill_tok_s_max),
    ),
    _Column("ttft ms", 7, lambda cell: _milliseconds(cell.ttft_ms)),
    _Column(
        "decode tok/s",
        18,
        lambda cell: _spread(cell.decode_tok_s, cell.decode_tok_s_min, cell.decode_tok_s_max),
    ),
    _Column("GB/s", 5, lambda cell: _gigabytes(cell.weight_gb_s)),
    _Column("share", 5, lambda cell: _percent(cell.bandwidth_share)),
    _Column("KV", 4, lambda cell: _gigabytes(_kv_gb_s(cell))),
    _Column("plan", 5, lambda cell: _short(cell.predicted_decode_tok_s)),
    _Column("host", 5, lambda cell: _percent(cell.host_share, 1)),
)
"""GB/s of weights and their share of plain reads; KV is GB/s of keys and values beside them, plan the tok/s
that were predicted, host the part of a step in which a GPU did not work."""

_KERNEL_COLUMNS: tuple[_Column[KernelCell], ...] = (
    _Column("type", 5, lambda cell: cell.quant_type),
    _Column("columns", 7, lambda cell: str(cell.columns)),
    _Column("us", 23, lambda cell: _spread(cell.us, cell.us_min, cell.us_max)),
    _Column("GB/s", 6, lambda cell: _gigabytes(cell.weight_gb_s)),
    _Column("read", 6, lambda cell: _gigabytes(cell.read_gb_s)),
    _Column("share", 5, lambda cell: _percent(cell.bandwidth_share)),
    _Column("GFLOP/s", 8, lambda cell: f"{cell.gflop_s:.1f}"),
    _Column("relative", 8, lambda cell: f"{cell.relative_time:.2f}"),
)

_GPU_KERNEL_COLUMNS: tuple[_Column[KernelCell], ...] = (
    _Column("type", 5, lambda cell: cell.quant_type),
    _Column("shape", 12, lambda cell: f"{cell.rows}x{cell.row_length}"),
    _Column("columns", 7, lambda cell: str(cell.columns)),
    _Column("us", 21, lambda cell: _spread(cell.us, cell.us_min, cell.us_max)),
    _Column("GB/s", 6, lambda cell: _gigabytes(cell.weight_gb_s)),
    _Column("read", 6, lambda cell: _gigabytes(cell.read_gb_s)),
    _Column("share", 5, lambda cell: _percent(cell.bandwidth_share)),
    _Column("relative", 8, lambda cell: f"{cell.relative_time:.2f}"),
)

_OP_COLUMNS: tuple[_Column[OpCell], ...] = (
    _Column("op".ljust(36), 36, lambda cell: cell.op.ljust(36)),
    _Column("launches", 8, lambda cell: str(cell.launches)),
    _Column("us", 23, lambda cell: _spread(cell.us, cell.us_min, cell.us_max)),
    _Column("share", 6, lambda cell: _percent(cell.share, 1)),
)
