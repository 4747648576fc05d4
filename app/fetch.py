"""Fetch models in threads, which go on while screens come and go. Knows no widget: it is polled."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from app import locations
from app.models.catalog import Starter
from app.models.hub import pull_hub_file
from app.models.hub_file import HubFile
from app.models.pulling import Progress, Stage
from app.models.starter import find_starter, pull
from engine import EngineError

STARTER = find_starter("smollm2")
_RATE_AFTER_S = 2.0


class _Stopped(Exception):
    """The person does not want it any more."""


class Fetch:
    """One download; `done` tells when to look at `path` and `error`. Without either it was stopped."""

    def __init__(self, source: Starter | HubFile) -> None:
        """Start fetching."""
        self.source = source
        self.progress: Progress | None = None
        self.path: Path | None = None
        self.error = ""
        self._stop = threading.Event()
        self._began: tuple[float, int] | None = None
        """When the first bytes came, and how many there were."""
        self._thread = threading.Thread(target=self._run, name="tiercel-fetch", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """What people call it."""
        source = self.source
        return source.name if isinstance(source, Starter) else source.file.rpartition("/")[2]

    @property
    def done(self) -> bool:
        """Whether it has ended, however."""
        return not self._thread.is_alive()

    @property
    def resumes(self) -> bool:
        """Whether stopping keeps what has come so far, and fetching again goes on from there."""
        return isinstance(self.source, HubFile)

    @property
    def rate(self) -> float:
        """Bytes per second so far; 0 until that can be told."""
        if self._began is None or self.progress is None:
            return 0.0
        elapsed = time.monotonic() - self._began[0]
        return (self.progress.done - self._began[1]) / elapsed if elapsed > _RATE_AFTER_S else 0.0

    def stop(self) -> None:
        """Ask it to stop; `done` tells when it has."""
        self._stop.set()

    def wait(self, timeout: float = 5.0) -> None:
        """Wait until it has ended."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            folder = locations.models_dir()
            if isinstance(self.source, Starter):
                self.path = pull(self.source, folder, self._look).path
            else:
                self.path = pull_hub_file(self.source, folder, self._look).path
        except _Stopped:
            pass
        except EngineError as error:
            self.error = str(error)

    def _look(self, progress: Progress) -> None:
        if self._stop.is_set():
            raise _Stopped
        if self._began is None and progress.stage is Stage.DOWNLOAD:
            self._began = (time.monotonic(), progress.done)
        self.progress = progress


class Fetches:
    """The one download that runs at a time, or ran last; the application keeps this."""

    def __init__(self) -> None:
        """Begin with none."""
        self.current: Fetch | None = None

    def start(self, source: Starter | HubFile) -> bool:
        """Fetch `source`; False while another one runs."""
        if self.current is not None and not self.current.done:
            return False
        self.current = Fetch(source)
        return True

    def take_ended(self) -> Fetch | None:
        """Return the download if it has ended; it is forgotten then."""
        ended = self.current if self.current is not None and self.current.done else None
        if ended is not None:
            self.current = None
        return ended

    def close(self) -> None:
        """Stop what runs and wait until it has stopped: the application ends."""
        if self.current is not None:
            self.current.stop()
            self.current.wait()
