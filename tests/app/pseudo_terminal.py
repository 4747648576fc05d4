"""A Python process in a pseudo-terminal of its own: what is typed to it, what it writes, what it costs.

For tests and measurements of the real driver. Knows processes and terminals, nothing of the application.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

REPO = Path(__file__).resolve().parents[2]
_STEP_S = 0.05


class Terminal:
    """A child process, and everything it has written to its terminal."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        size: tuple[int, int] = (80, 24),
        environment: Mapping[str, str] | None = None,
        errors: Path | None = None,
    ) -> None:
        """Start `python ARGUMENTS` in a terminal of `size` (columns, rows); `errors` takes its errors."""
        self.written = bytearray()
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.before = termios.tcgetattr(self.slave)
        files: list[Any] = [(os.POSIX_SPAWN_DUP2, self.slave, number) for number in (0, 1, 2)]
        if errors is not None:
            files.append((os.POSIX_SPAWN_OPEN, 2, str(errors), os.O_WRONLY | os.O_CREAT, 0o600))
        # Its size is that of the terminal: tests in several processes are told another one.
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        own = {"TERM": "xterm-256color", "PYTHONPATH": str(REPO)}
        self.started = time.perf_counter()
        self.child = os.posix_spawn(
            sys.executable,
            [sys.executable, *arguments],
            {**inherited, **own, **(environment or {})},
            file_actions=files,
            setsid=True,
        )
        self._exit_code: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.close()

    def type(self, keys: str | bytes) -> None:
        """Type `keys`, escape sequences and all."""
        os.write(self.master, keys.encode() if isinstance(keys, str) else keys)

    def read(self, seconds: float) -> bytes:
        """Return what is written next, or nothing after `seconds` without a byte."""
        if self.master < 0:
            time.sleep(seconds)
        elif select.select([self.master], [], [], seconds)[0]:
            new = os.read(self.master, 1 << 16)
            self.written += new
            return new
        return b""

    def read_for(self, seconds: float) -> None:
        """Read whatever comes in `seconds`: a terminal that nobody reads stops who writes to it."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            self.read(left)

    def until(self, condition: Callable[[], object], what: object, seconds: float = 20.0) -> None:
        """Read until `condition` holds; fail naming `what`."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end or (self.exit_code() is not None and not self.read(0)):
                raise AssertionError(f"{what!r} never came; the last was {bytes(self.written[-500:])!r}")
            self.read(_STEP_S)

    def wait_for(self, text: bytes, seconds: float = 20.0) -> None:
        """Read until `text` has been written."""
        self.until(lambda: text in self.written, text, seconds)

    def wait_for_end(self, seconds: float = 20.0) -> int:
        """Read until the process ends, and return its exit code, negative for a signal."""
        end = time.monotonic() + seconds
        while (code := self.exit_code()) is None:
            if time.monotonic() > end:
                raise AssertionError(f"it never ended; the last was {bytes(self.written[-500:])!r}")
            self.read(_STEP_S)
        while self.master >= 0 and self.read(0):
            pass
        return code

    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        if self._exit_code is None:
            ended, status = os.waitpid(self.child, os.WNOHANG)
            if ended:
                self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code

    def kill(self) -> None:
        """End the process, if it still runs, without asking it."""
        if self.exit_code() is None:
            os.kill(self.child, signal.SIGKILL)
            self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])

    def cpu_s(self) -> float:
        """Return the processor seconds of the process so far, all threads together."""
        fields = Path(f"/proc/{self.child}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Take the terminal away."""
        if self.master >= 0:
            os.close(self.master)
            os.close(self.slave)
            self.master = -1
