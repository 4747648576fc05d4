"""A process of its own for templates that we do not know, because nothing else can stop one that loops.

The parent writes one line of JSON per request and reads one line back. The worker sets itself an alarm
before each request, which ends it even when its parent is gone, and a limit on memory. It leaves when its
input ends. Called by `chat_template`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from engine.template_environment import RenderError, render

_MEMORY_BYTES = 2**30
_GRACE_S = 3.0


class TemplateWorker:
    """The parent's side; starts the process at the first request, and again after it was ended."""

    def __init__(self, limit_s: float) -> None:
        """Allow each request `limit_s` seconds."""
        self._limit_s = limit_s
        self._process: subprocess.Popen[str] | None = None

    def render(self, source: str, variables: Mapping[str, object], now: datetime) -> str:
        """As `template_environment.render`; `variables` must be what JSON can hold. One thread at a time."""
        request = {
            "limit_s": self._limit_s,
            "source": source,
            "variables": variables,
            "now": now.isoformat(),
        }
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer.endswith("\n"):
            raise RenderError(self._post_mortem(process))
        outcome = json.loads(answer)
        if "error" in outcome:
            raise RenderError(outcome["error"])
        return str(outcome["text"])

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            # -P and PYTHONPATH: our own `engine`, whatever lies in the current folder.
            environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "engine.template_worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    encoding="ascii",
                    env=environment,
                )
            except OSError as error:
                raise RenderError(f"the process to run it in cannot be started ({error.strerror})") from error
            weakref.finalize(self, _end, self._process)
        return self._process

    def _post_mortem(self, process: subprocess.Popen[str]) -> str:
        _end(process)
        if process.returncode == -signal.SIGALRM:
            return f"it runs longer than {self._limit_s:g} s"
        return f"the process that ran it ended with status {process.returncode}"


def _end(process: subprocess.Popen[str]) -> None:
    """Close the pipes, upon which the worker leaves; reap it."""
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):  # what it no longer read
            if pipe is not None:
                pipe.close()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve() -> None:
    """Answer requests from standard input until it ends; the worker's side."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl+c is for the parent, which shares the terminal
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with suppress(OSError, ValueError):  # macOS has the constant but refuses the limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["limit_s"])
        try:
            text = render(request["source"], request["variables"], datetime.fromisoformat(request["now"]))
            answer = {"text": text}
        except RenderError as error:
            answer = {"error": str(error)}
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
