"""The figures of `tiercel bench` as lines for people, at most 80 columns wide.

Knows which figures stand side by side; does not measure. Lines come as soon as their report is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from app.sanitize import sanitize_line

if TYPE_CHECKING:
    from engine import Cell, KernelCell, Report

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
            yield _headings(columns)
        for cell in report.cells:
            yield _line(columns, cell)


def kernel_lines(reports: Iterable[Report[KernelCell]]) -> Iterator[str]:
    """A table for each number of threads; reports of the same number come one after another."""
    threads = None
    for report in reports:
        first = report.cells[0]
        if threads is None:
            yield report.device
            yield f"each product checked, then timed; {_medians(first.repetitions)}"
        if threads != first.threads:
            threads = first.threads
            yield ""
            yield f"{threads} {'thread' if threads == 1 else 'threads'}"
            yield _headings(_KERNEL_COLUMNS)
        for cell in report.cells:
            yield _line(_KERNEL_COLUMNS, cell)


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
    return _NOT_MEASURED if value is None else f"{value:.1f}"


def _percent(share: float | None) -> str:
    return _NOT_MEASURED if share is None else f"{share:.0%}"


def _kv_gb_s(cell: Cell) -> float | None:
    return None if cell.decode_tok_s is None else cell.kv_bytes * cell.decode_tok_s / 1e9


_MODEL_COLUMNS: tuple[_Column[Cell], ...] = (
    _Column("thr", 3, lambda cell: str(cell.threads)),
    _Column("depth", 5, lambda cell: str(cell.depth)),
    _Column(
        "prefill tok/s",
        18,
        lambda cell: _spread(cell.prefill_tok_s, cell.prefill_tok_s_min, cell.prefill_tok_s_max),
    ),
    _Column("ttft ms", 7, lambda cell: _NOT_MEASURED if cell.ttft_ms is None else f"{cell.ttft_ms:.0f}"),
    _Column(
        "decode tok/s",
        18,
        lambda cell: _spread(cell.decode_tok_s, cell.decode_tok_s_min, cell.decode_tok_s_max),
    ),
    _Column("GB/s", 5, lambda cell: _gigabytes(cell.weight_gb_s)),
    _Column("share", 5, lambda cell: _percent(cell.bandwidth_share)),
    _Column("KV", 4, lambda cell: _gigabytes(_kv_gb_s(cell))),
    _Column("plan", 5, lambda cell: _short(cell.predicted_decode_tok_s)),
)
"""GB/s of weights and their share of plain reads; KV is GB/s of keys and values beside them, plan the tok/s
that were predicted."""

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
