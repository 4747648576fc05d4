"""A progress bar on standard error, drawn only where a person watches; knows numbers and a width."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

_REDRAW_S = 0.1
_ENOUGH_TO_TELL = 0.03
"""Share of something from which on its end can be told."""
_BAR_CELLS = 24


class ProgressBar:
    """Redraws one line in place; stays silent when the stream is not a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Draw on `stream`, standard error by default."""
        self._stream = stream or sys.stderr
        self._visible = self._stream.isatty()
        self._started = 0.0
        """When the first byte had come."""
        self._drawn = 0.0
        self._label = ""
        self._sharing, self._began = "", 0.0
        """What `share` shows, and since when."""

    def update(self, label: str, done: int, total: int) -> None:
        """Show `done` of `total` bytes; at most ten times a second, and at every new label."""
        now = time.monotonic()
        if not self._visible or (label == self._label and now - self._drawn < _REDRAW_S):
            return
        self._label, self._drawn = label, now
        if done > 0 and not self._started:
            self._started = now
        line = label
        if total > 0:
            filled = _BAR_CELLS * min(done, total) // total
            line += f" [{'#' * filled}{'.' * (_BAR_CELLS - filled)}] {done / 1e6:.1f} of {total / 1e6:.1f} MB"
            if self._started and now - self._started > 1:
                line += f", {done / (now - self._started) / 1e6:.1f} MB/s"
        self._write(line[: shutil.get_terminal_size().columns - 1])

    def share(self, label: str, done: float) -> None:
        """Show which share is done, 0 to 1, and how long the rest will take; for what may take minutes.

        Where nobody watches, one line says what is being done.
        """
        if label != self._sharing:
            self._sharing, self._began = label, time.monotonic()
            if not self._visible:
                self._stream.write(f"tiercel: {label}\n")
                self._stream.flush()
        line = f"{label}: {done:.0%}"
        if done >= _ENOUGH_TO_TELL:
            left = (time.monotonic() - self._began) * (1 - done) / done
            line += f", {max(1.0, left):.0f} s left"
        self.update(line, 0, 0)

    def close(self) -> None:
        """Clear the line if there is one: whoever writes there next must not lose his own."""
        self._sharing = ""
        if self._label:
            self._label = ""
            self._write("")

    def _write(self, line: str) -> None:
        self._stream.write(f"\r\x1b[K{line}")
        self._stream.flush()
