"""What the measurements of the interface share: results with their marks, medians, homes, starting it.

Knows how the application is started and where it keeps its files; measures nothing itself.
"""

from __future__ import annotations

import math
import os
import sqlite3
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.app.pseudo_terminal import REPO, Terminal

SIZE = (120, 40)
READY = b"ready"
MODELS = Path(os.environ.get("TIERCEL_MODELS", REPO / ".cache" / "models"))
MODEL = MODELS / "smollm2.gguf"
OTHER_MODEL = MODELS / "gemma3-270m.gguf"
"""With a vocabulary of another kind and five times the size."""


@dataclass(frozen=True)
class Result:
    """One measured number with its mark."""

    what: str
    shown: str
    """The number with its range."""
    mark: str
    """What is asked, in words; empty where nothing is."""
    passed: bool = True

    def __str__(self) -> str:
        verdict = ("pass" if self.passed else "FAIL") if self.mark else ""
        return f"{self.what:<38} {self.shown:<58} {self.mark:<26} {verdict}".rstrip()


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def spread(values: Sequence[float], unit: str, digits: int = 1) -> str:
    """Return the median with the lowest and the highest value."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} {unit} ({low:.{digits}f}..{high:.{digits}f}, n={len(values)})"


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return bounds between which the median of what was sampled lies with a probability of 95 %.

    Of fewer than 6 values these are the lowest and the highest, and the probability is smaller.
    """
    n, ordered = len(values), sorted(values)
    below, place = 0.0, 0
    while place < n // 2 and (below := below + math.comb(n, place) / 2**n) <= 0.025:
        place += 1
    place = max(0, place - 1)
    return ordered[place], ordered[n - 1 - place]


@contextmanager
def home(settings: str = "") -> Iterator[Path]:
    """Make a home in which somebody was before, with more `settings` in TOML."""
    with tempfile.TemporaryDirectory(prefix="tiercel-") as name:
        folder = Path(name) / "config"
        folder.mkdir()
        (folder / "settings.toml").write_text(f"welcomed = true\n{settings}")
        yield Path(name)


def environment(folder: Path) -> dict[str, str]:
    """Return what leads a process to the home `folder`."""
    return {"TIERCEL_HOME": str(folder), "HOME": str(folder), "PYTHONPATH": str(REPO)}


def start(folder: Path, *arguments: str) -> Terminal:
    """Start `python ARGUMENTS` in a terminal, at the home `folder`."""
    return Terminal(arguments, size=SIZE, environment=environment(folder))


def newest(folder: Path) -> tuple[str, str, str]:
    """Return status, text and statistics (JSON) of the newest message; empty where there is none."""
    path = folder / "data" / "conversations.db"
    if not path.exists():
        return "", "", ""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as connection:
        row = connection.execute("SELECT status, text, stats_json FROM message ORDER BY id DESC").fetchone()
    return tuple(row) if row else ("", "", "")
