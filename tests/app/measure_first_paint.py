"""Measure the first paint: our application against a bare Textual one with the same widget classes.

    python tests/app/measure_first_paint.py [PAIRS]

Both start as fresh processes in a pseudo-terminal, by turns; the time runs from the start of the process to
the first byte of the message box's placeholder. Prints one JSON object with medians in milliseconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
OURS = ["-m", "app"]
BARE = [
    "-c",
    """
from textual.app import App
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Input, Markdown, OptionList, Static, TextArea

class Bare(App):
    def compose(self):
        with Horizontal():
            with Vertical():
                yield Input(placeholder="Search")
                yield OptionList()
                yield Static()
            with Vertical():
                yield Static()
                with VerticalScroll():
                    yield Static()
                yield TextArea(placeholder="Message")
                yield Static()
        yield Static()

Bare().run()
""",
]
_MARK = b"essage"  # the cursor stands on the first letter and is drawn apart
_LIMIT_S = 30.0


def first_paint_s(arguments: list[str], home: str) -> float:
    """Return seconds from the start of `python arguments` to its first frame."""
    started = time.perf_counter()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(REPO)
        environment = {**os.environ, "TIERCEL_HOME": home, "HOME": home, "TERM": "xterm-256color"}
        os.execve(sys.executable, [sys.executable, *arguments], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    seen = b""
    try:
        while _MARK not in seen:
            left = started + _LIMIT_S - time.perf_counter()
            if left <= 0 or not select.select([terminal], [], [], left)[0]:
                raise TimeoutError(f"no first frame from {arguments[0]}: {seen[-2000:]!r}")
            seen += os.read(terminal, 65536)
        return time.perf_counter() - started
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def main() -> None:
    """Measure in turns and print the medians."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    ours: list[float] = []
    bare: list[float] = []
    with tempfile.TemporaryDirectory() as home:
        first_paint_s(OURS, home), first_paint_s(BARE, home)  # byte code is compiled and files are cached
        for _ in range(pairs):
            ours.append(first_paint_s(OURS, home))
            bare.append(first_paint_s(BARE, home))
    differences = [(a - b) * 1e3 for a, b in zip(ours, bare, strict=True)]
    result = {
        "ours_ms": round(statistics.median(ours) * 1e3),
        "bare_ms": round(statistics.median(bare) * 1e3),
        "median_difference_ms": round(statistics.median(differences)),
        "pairs": pairs,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
