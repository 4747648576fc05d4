"""Fetch the starter model in a thread of its own that can be stopped. Knows no widget: it is polled."""

from __future__ import annotations

import threading
from pathlib import Path

from app import locations
from app.models.starter import Progress, find_starter, pull
from engine import EngineError

STARTER = find_starter("smollm2")


class _Stopped(Exception):
    """The person does not want it any more."""


class Fetch:
    """One download; `done` tells when to look at `path` and `error`."""

    def __init__(self) -> None:
        """Start fetching."""
        self.progress: Progress | None = None
        self.path: Path | None = None
        self.error = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tiercel-fetch", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it has ended, however."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Ask it to stop and to remove what it had so far; `done` tells when it has."""
        self._stop.set()

    def wait(self, timeout: float = 5.0) -> None:
        """Wait until it has ended."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            self.path = pull(STARTER, locations.models_dir(), self._look).path
        except _Stopped:
            pass
        except EngineError as error:
            self.error = str(error)

    def _look(self, progress: Progress) -> None:
        if self._stop.is_set():
            raise _Stopped
        self.progress = progress
