"""What the interface costs: share of a core while it streams and while it is idle, and in a long reply."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from tests.app.measuring import MODEL, READY, Result, home, percentile, spread, start
from tests.app.paced_engine import SCREEN, TOK_S, WINDOW

SHARES = {"prose": 10.0, "lists": 20.0, "tables": 20.0, "code": 20.0}
"""Percent of a core, by material."""
IDLE = 1.0
GROWTH = 1.3
"""How much more the last tokens may cost than the first: what two runs of the same differ by."""
_BEGIN_S = 3.0
"""Left out: the first frames, and imports that come with the first Markdown."""


def share(repeats: int, seconds: float) -> list[Result]:
    """Measure the share of a core while replies stream."""
    results = []
    for material, mark in SHARES.items():
        whole, own = [], []
        for _ in range(repeats):
            shares = _share_of(material, seconds)
            whole.append(shares[0])
            own.append(shares[1])
        shown = f"{spread(whole, '%')}, {statistics.median(own):.1f} of it the engine"
        what = f"share of a core, {material} at {TOK_S} tok/s"
        results.append(Result(what, shown, f"under {mark:.0f} %", statistics.median(whole) < mark))
    return results


def _share_of(material: str, seconds: float) -> tuple[float, float]:
    """Return the percent of a core of the whole process, and of the engine's thread in it."""
    with home() as folder:
        report = folder / "report.json"
        with start(folder, "-m", "tests.app.paced_engine", material, str(report)) as terminal:
            terminal.wait_for(READY)
            terminal.type("go on\r")
            terminal.wait_for(b"tok/s")
            terminal.read_for(_BEGIN_S)
            cpu, began = terminal.cpu_s(), time.perf_counter()
            terminal.read_for(seconds)
            used, took = terminal.cpu_s() - cpu, time.perf_counter() - began
            spoken_s = took + _BEGIN_S
            terminal.type("\x11")
            terminal.wait_for_end()
        engine = json.loads(report.read_text())["engine_cpu_s"]
    return 100 * used / took, 100 * engine / spoken_s


def idle(repeats: int, seconds: float) -> list[Result]:
    """Measure the share of a core with the starter model loaded and nothing to do."""
    shares = []
    for _ in range(repeats):
        with home() as folder, start(folder, "-m", "app", "-m", str(MODEL)) as terminal:
            terminal.wait_for(READY, 60)
            terminal.read_for(_BEGIN_S)
            cpu, began = terminal.cpu_s(), time.perf_counter()
            terminal.read_for(seconds)
            shares.append(100 * (terminal.cpu_s() - cpu) / (time.perf_counter() - began))
    passed = statistics.median(shares) < IDLE
    return [Result("share of a core, idle", spread(shares, "%", 2), f"under {IDLE:.0f} %", passed)]


def growth(repeats: int, between: int) -> list[Result]:
    """Measure what the last 100 tokens of a long reply cost beside its first 100."""
    results = []
    for material in ("mixed", "lists", "tables", "code"):
        runs = [_windows(material, between) for _ in range(repeats)]
        ratios = [run["last"]["cpu_s"] / run["first"]["cpu_s"] for run in runs]
        first, last = (
            statistics.median(1e3 * run[name]["cpu_s"] for run in runs) for name in ("first", "last")
        )
        lags = {
            name: 1e3 * percentile([lag for run in runs for lag in run[name]["lags"]], 0.95)
            for name in ("first", "last")
        }
        total = between + 2 * WINDOW
        results.append(
            Result(
                f"last {WINDOW} of {total:,} tokens, {material}",
                f"{spread(ratios, 'times the first', 2)}, {first:.0f} and {last:.0f} ms",
                f"at most {GROWTH}",
                statistics.median(ratios) <= GROWTH,
            )
        )
        results.append(
            Result(
                f"  the loop's lag, {material}",
                f"p95 {lags['first']:.1f} ms, then {lags['last']:.1f}; at the end of the reply "
                f"{1e3 * max(max(run['done']['lags']) for run in runs):.0f} ms once",
                "",
            )
        )
    return results


def _windows(material: str, between: int) -> dict[str, Any]:
    """Return the costs that `paced_engine` reports."""
    with home() as folder:
        report = folder / "report.json"
        arguments = ("-m", "tests.app.paced_engine", material, str(report), str(between))
        with start(folder, *arguments) as terminal:
            terminal.wait_for(READY)
            terminal.type("fill the screen\r")
            terminal.wait_for(f"Line {SCREEN - 1}".encode())
            terminal.read_for(2.0)
            terminal.type("go on\r")
            terminal.wait_for_end(600)
        costs: dict[str, Any] = json.loads(Path(report).read_text())["costs"]
    return costs
