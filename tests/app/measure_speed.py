"""The engine's speed below the interface beside `tiercel run`: same prompt, same tokens, by turns."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from tests.app.measuring import MODEL, READY, Result, environment, home, median_interval, newest, start
from tests.app.pseudo_terminal import REPO

PROMPT = "Explain how a sailing boat can move against the wind, step by step, in about 300 words."
FREE_CORE, ALL_CORES = 0.97, 0.88
"""Least share of the speed of `run`: with a core left free for the interface, and with none."""


def speed_with_free_core(pairs: int) -> list[Result]:
    """Measure the ratio with one thread fewer than there are cores; nothing where there is one core."""
    cores = len(os.sched_getaffinity(0))
    return [] if cores < 2 else [_compare(cores - 1, pairs, FREE_CORE)]


def speed_on_all_cores(pairs: int) -> list[Result]:
    """Measure the ratio with as many threads as there are cores."""
    return [_compare(len(os.sched_getaffinity(0)), pairs, ALL_CORES)]


def _compare(threads: int, pairs: int, mark: float) -> Result:
    ratios, speeds = [], []
    with home(f"greedy = true\nthreads = {threads}\n") as folder:
        _in_shell(folder, threads)  # measures the machine's rates, and reads the file once
        for number in range(pairs):
            # Which of the two comes first changes, so that a drift falls on both.
            order = (_in_shell, _in_interface) if number % 2 else (_in_interface, _in_shell)
            outcomes = {how: how(folder, threads) for how in order}
            (text, ours), (told, bare) = outcomes[_in_interface], outcomes[_in_shell]
            if text.strip() != told.strip():
                raise AssertionError(f"not the same tokens: {text[-200:]!r}, {told[-200:]!r}")
            ratios.append(ours / bare)
            speeds.append(bare)
    low, high = median_interval(ratios)
    median = statistics.median(ratios)
    shown = f"{median:.3f} ({low:.3f}..{high:.3f}, n={pairs}) of {statistics.median(speeds):.1f} tok/s"
    cores = f"{threads} thread{'s' if threads > 1 else ''}"
    return Result(f"speed beside `run`, {cores}", shown, f"at least {mark:.2f}", low >= mark)


def _in_shell(folder: Path, threads: int) -> tuple[str, float]:
    """Return the text of `tiercel run` and its tokens per second."""
    command = [sys.executable, "-m", "app", "run", "-m", str(MODEL), "-p", PROMPT, "-t", str(threads)]
    done = subprocess.run(
        [*command, "--temperature", "0", "--json"],
        env={**os.environ, **environment(folder)},
        cwd=REPO,
        capture_output=True,
        check=True,
    )
    outcome = json.loads(done.stdout)
    return outcome["text"], outcome["decode_tok_s"]


def _in_interface(folder: Path, threads: int) -> tuple[str, float]:
    """Return the text of a reply in the application and its tokens per second."""
    before = newest(folder)[2]
    with start(folder, "-m", "app", "-m", str(MODEL)) as terminal:
        terminal.wait_for(READY, 60)
        terminal.read_for(1.0)
        terminal.type(PROMPT)
        terminal.read_for(0.3)
        terminal.type("\r")
        terminal.until(lambda: newest(folder)[0] == "streaming", "a reply")
        terminal.until(lambda: newest(folder)[0] == "done", "its end", 180)
        terminal.type("\x11")
        terminal.wait_for_end()
    status, text, stats = newest(folder)
    assert stats != before, status
    counts = json.loads(stats)
    return text, (counts["completion_tokens"] - 1) / counts["decode_s"]
