"""What the interface costs: share of a core while it streams and while it is idle, and in a long reply."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from tests.app.measuring import MODEL, READY, Result, home, median_interval, percentile, spread, start
from tests.app.paced_engine import SCREEN, TOK_S, WINDOW, WINDOWS

SHARES = {"prose": 10.0, "lists": 20.0, "tables": 20.0, "code": 20.0}
"""Percent of a core, by material."""
IDLE = 1.0
GROWTH = 1.15
"""How much more a look at the last tokens may cost than one at the first: as two runs of the same differ."""
_BEGIN_S = 2.0
"""Left out: the first frames, and imports that come with the first Markdown."""


def share(repeats: int, seconds: float) -> list[Result]:
    """Measure the share of a core while replies stream."""
    whole: dict[str, list[float]] = {material: [] for material in SHARES}
    own: dict[str, list[float]] = {material: [] for material in SHARES}
    for _ in range(repeats):
        for material in SHARES:  # by turns, so that a drift falls on all
            shares = _share_of(material, seconds)
            whole[material].append(shares[0])
            own[material].append(shares[1])
    results = []
    for material, mark in SHARES.items():
        shown = f"{spread(whole[material], '%')}, {statistics.median(own[material]):.1f} of it the engine"
        what = f"share of a core, {material} at {TOK_S} tok/s"
        high = median_interval(whole[material])[1]
        results.append(Result(what, shown, f"under {mark:.0f} %", high < mark))
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
    passed = median_interval(shares)[1] < IDLE
    return [Result("share of a core, idle", spread(shares, "%", 2), f"under {IDLE:.0f} %", passed)]


def growth(material: str, repeats: int, between: int) -> list[Result]:
    """Measure what drawing 100 tokens at the end of a long reply costs beside 100 at its start, each look."""
    runs = [_windows(material, between) for _ in range(repeats)]
    ends = {name: [_costs_of(run, name) for run in runs] for name in ("first", "last")}
    look_ms = {
        name: [
            1e3 * statistics.median(each["cpu_s"] / max(1, each["looks"]) for each in costs)
            for costs in runs_of
        ]
        for name, runs_of in ends.items()
    }
    ratios = [last / first for first, last in zip(look_ms["first"], look_ms["last"], strict=True)]
    low, high = median_interval(ratios)
    first, last = statistics.median(look_ms["first"]), statistics.median(look_ms["last"])
    lags = {
        name: 1e3 * percentile([lag for costs in runs_of for each in costs for lag in each["lags"]], 0.95)
        for name, runs_of in ends.items()
    }
    end_ms = 1e3 * max(max(run["done"]["lags"]) for run in runs)
    return [
        Result(
            f"last {WINDOW} of {between + 2 * WINDOWS * WINDOW:,} tokens, {material}",
            f"{statistics.median(ratios):.2f} times the first ({low:.2f}..{high:.2f}, n={repeats}), "
            f"{first:.1f} and {last:.1f} ms a look",
            f"at most {GROWTH}",
            high <= GROWTH,
        ),
        Result(
            f"  the loop's lag, {material}",
            f"p95 {lags['first']:.1f} ms, then {lags['last']:.1f}; at the reply's end {end_ms:.0f} ms once",
            "",
        ),
    ]


def _costs_of(run: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the costs of the windows at one end, `first` or `last`."""
    return [run[f"{name} {number}"] for number in range(WINDOWS)]


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
