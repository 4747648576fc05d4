"""`tiercel bench --matrix`: every combination of the settings in a file, measured for speed and quality."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.exit_codes import FAILED, OK
from app.cli.interruptible import run_interruptible
from app.cli.matrix_file import Matrix, read_matrix
from app.cli.matrix_report import MatrixReport
from app.cli.notices import print_notices
from app.cli.progress import ProgressBar
from app.sanitize import sanitize_line

if TYPE_CHECKING:
    from engine import CancelToken


def run_matrix(path: Path, output: Path | None, *, as_json: bool) -> int:
    """Measure and write; print the best cases, or one object."""
    matrix = read_matrix(path)
    stem = Path(path.stem) if output is None else output
    report = MatrixReport(matrix, stem.with_name(f"{stem.name}.csv"), stem.with_name(f"{stem.name}.json"))
    report.check_places()  # not after the first case, which takes minutes
    watcher = _Watcher(len(matrix.cases))
    try:
        run_interruptible(lambda cancel: _measure(matrix, report, watcher, cancel))
    finally:
        watcher.bar.close()
        print_notices(report.failures)
    if as_json:
        print(json.dumps(report.as_json()))
    else:
        print("\n".join(report.lines()))
    return OK if report.has_figures else FAILED


@dataclass(slots=True)
class _Watcher:
    """Tells how far the matrix is, and each notice once."""

    n_cases: int
    n_done: int = 0
    bar: ProgressBar = field(default_factory=ProgressBar)
    _told: set[str] = field(default_factory=set)

    def progress(self, stage: str, share: float) -> None:
        """What is being done for the next case."""
        case = min(self.n_done + 1, self.n_cases)
        self.bar.update(f"case {case} of {self.n_cases}: {sanitize_line(stage)} {share:.0%}", 0, 0)

    def notices(self, notices: tuple[str, ...]) -> None:
        """Of a model that was opened."""
        new = [notice for notice in notices if notice not in self._told]
        self._told.update(new)
        self.bar.close()
        print_notices(new)


def _measure(matrix: Matrix, report: MatrixReport, watcher: _Watcher, cancel: CancelToken) -> None:
    from engine import Scorer, measure_matrix  # numpy

    task = matrix.task
    scorer = Scorer(
        task.window,
        task.window - task.window // 2,
        cancel,
        on_notices=watcher.notices,
        on_progress=watcher.progress,
    )
    named = {each.case: each for each in matrix.cases}
    for case, result in measure_matrix(list(named), task, scorer):
        report.add(named[case], result)
        watcher.n_done += 1
