"""What a matrix of settings came to: a CSV and a JSON file, whole after each case, and the best of it.

Knows formats; does not measure. Called by `bench_matrix`.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from app.cli.columns import Column, change, heading_line, percent, row_line, short
from app.cli.matrix_file import Matrix, NamedCase
from app.sanitize import sanitize_line
from engine import CaseResult, pareto_front


class _Row(NamedTuple):
    case: NamedCase
    result: CaseResult


class MatrixReport:
    """The results so far."""

    def __init__(self, matrix: Matrix, csv_path: Path, json_path: Path) -> None:
        """Begin without results."""
        self._matrix = matrix
        self._csv_path, self._json_path = csv_path, json_path
        self._results: list[_Row] = []
        self._code = {"version": version("tiercel"), "commit": _commit()}

    def check_places(self) -> None:
        """Find out whether both files can be written, and leave what is there. Raises OSError."""
        for path in (self._csv_path, self._json_path):
            is_new = not path.exists()
            path.open("a").close()
            if is_new:
                path.unlink()

    def add(self, case: NamedCase, result: CaseResult) -> None:
        """Take a result and write both files. Raises OSError."""
        self._results.append(_Row(case, result))
        self._csv_path.write_text(self._as_csv(), encoding="utf-8", newline="")
        self._json_path.write_text(json.dumps(self.as_json(), indent=1) + "\n", encoding="utf-8")

    @property
    def has_figures(self) -> bool:
        """Whether anything could be measured."""
        return any(result.perplexity is not None for _, result in self._results)

    @property
    def failures(self) -> Iterator[str]:
        """What went wrong, a line for each case."""
        for case, result in self._results:
            if result.error:
                yield f"{self._words(case)}: {result.error}"

    def as_json(self) -> dict[str, object]:
        """Everything."""
        task = asdict(self._matrix.task)
        del task["text"], task["prompt"]
        return {
            **self._code,
            **task,
            "reference": None if task["reference"] is None else str(task["reference"]),
            "cells": [{"settings": dict(case.settings), **_finite(result)} for case, result in self._results],
            "pareto": self._front(),
        }

    def lines(self) -> Iterator[str]:
        """The cases that no other one beats in both speed and KL, for people."""
        rows = [self._results[index] for index in self._front()]
        if not rows:
            yield "nothing was measured"
            return
        yield "no other case is both faster and nearer to the reference than these:"
        columns = (*_COLUMNS, Column[_Row](" settings", 0, lambda row: f" {self._words(row.case)}"))
        yield heading_line(columns)
        yield from (row_line(columns, row) for row in rows)

    def _front(self) -> list[int]:
        return pareto_front([result for _, result in self._results])

    def _words(self, case: NamedCase) -> str:
        """The settings in which cases differ; where there is but one case, its model."""
        varied = [key for key in self._keys() if len({c.settings.get(key) for c in self._matrix.cases}) > 1]
        words = [f"{key}={case.settings[key]}" for key in varied or ["model"] if key in case.settings]
        return sanitize_line(" ".join(words))

    def _keys(self) -> list[str]:
        return list(dict.fromkeys(key for case in self._matrix.cases for key in case.settings))

    def _as_csv(self) -> str:
        text = io.StringIO()
        of_task = ("temperature", "seed", "repetitions", "decode_tokens")
        names = [field.name for field in fields(CaseResult)]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self._keys(), *names, "pareto", *of_task, *self._code])
        front = self._front()
        for number, (case, result) in enumerate(self._results):
            writer.writerow(
                [
                    *(case.settings.get(key, "") for key in self._keys()),
                    *_finite(result).values(),
                    int(number in front),
                    *(getattr(self._matrix.task, name) for name in of_task),
                    *self._code.values(),
                ]
            )
        return text.getvalue()


def _finite(result: CaseResult) -> dict[str, object]:
    """Bounds that there are none of are null: JSON has no infinity."""
    return {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in asdict(result).items()
    }


def _commit() -> str | None:
    """Of the source that runs, where it is a checkout; with -dirty where files differ from it."""
    root = Path(__file__).resolve().parents[2]
    if (root / ".git").exists():
        with suppress(OSError, subprocess.SubprocessError):
            command = [
                "git",
                "-C",
                str(root),
                "describe",
                "--always",
                "--dirty",
                "--abbrev=12",
                "--exclude=*",
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            return done.stdout.strip()
    return None


_COLUMNS: Sequence[Column[_Row]] = (
    Column("tok/s", 7, lambda row: short(row.result.decode_tok_s)),
    Column("KL", 8, lambda row: f"{row.result.kl_mean:.5f}"),
    Column("perplexity", 10, lambda row: change(row.result.perplexity_change)),
    Column(
        "95 % interval",
        16,
        lambda row: f"{change(row.result.perplexity_low)}..{change(row.result.perplexity_high)}",
    ),
    Column("top-1", 6, lambda row: percent(row.result.top1, 1)),
)
