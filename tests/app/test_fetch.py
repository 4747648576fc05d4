"""One download at a time, in a thread, which whoever is interested polls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import app.fetch as fetch
from app.fetch import STARTER, Fetches
from app.models.catalog import Starter
from app.models.hub_file import HubFile
from app.models.pip import PullError
from app.models.pulling import OnProgress, Progress, Pulled, Stage
from app.widgets.download import download_line

SOURCE = HubFile("a/b", "c.gguf")


@pytest.fixture
def go_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What a download waits for, while it can be stopped."""
    event = threading.Event()

    def pull(source: Starter | HubFile, folder: Path, on_progress: OnProgress) -> Pulled:
        while not event.wait(0.005):
            on_progress(Progress(Stage.DOWNLOAD, 1_000_000_000, 4_000_000_000))
        return Pulled(folder / "c.gguf", fetched=True)

    monkeypatch.setattr(fetch, "pull", pull)
    monkeypatch.setattr(fetch, "pull_hub_file", pull)
    yield event
    event.set()


def test_one_runs_at_a_time_and_is_taken_once_it_has_ended(go_on: threading.Event, home: Path) -> None:
    fetches = Fetches()
    assert fetches.start(SOURCE)
    assert not fetches.start(STARTER)
    assert fetches.take_ended() is None
    go_on.set()
    assert fetches.current is not None
    fetches.current.wait()
    ended = fetches.take_ended()
    assert ended is not None and ended.path == home / "tiercel" / "data" / "models" / "c.gguf"
    assert fetches.take_ended() is None and fetches.current is None
    assert fetches.start(STARTER)
    fetches.close()


def test_closing_stops_it(go_on: threading.Event) -> None:
    fetches = Fetches()
    fetches.start(SOURCE)
    fetches.close()
    ended = fetches.take_ended()
    assert ended is not None and (ended.path, ended.error) == (None, "")
    assert ended.resumes


def test_a_failure_is_its_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(source: HubFile, folder: Path, on_progress: OnProgress) -> Pulled:
        raise PullError("gated")

    monkeypatch.setattr(fetch, "pull_hub_file", pull)
    fetches = Fetches()
    fetches.start(SOURCE)
    assert fetches.current is not None
    fetches.current.wait()
    ended = fetches.take_ended()
    assert ended is not None and ended.error == "gated"


def test_an_account_without_a_place_for_models_is_a_failure(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> Path:
        raise PullError("this account has no home folder")

    monkeypatch.setattr(fetch.locations, "models_dir", nowhere)
    fetches = Fetches()
    fetches.start(SOURCE)
    assert fetches.current is not None
    fetches.current.wait()
    ended = fetches.take_ended()
    assert ended is not None and "no home folder" in ended.error


def test_the_line_tells_how_far_it_is_how_fast_and_how_long_it_takes(
    go_on: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetches = Fetches()
    fetches.start(SOURCE)
    current = fetches.current
    assert current is not None
    assert "asking for it" in download_line(current, 80).plain
    current.progress = Progress(Stage.DOWNLOAD, 1_000_000_000, 4_000_000_000)
    current._began = (fetch.time.monotonic() - 100.0, 0)
    text = download_line(current, 80).plain
    assert "downloading 1.00 of 4.0 GB" in text
    assert "10.0 MB/s" in text and "5 min left" in text and "^X stops" in text
    current.progress = Progress(Stage.CHECK, 1_000_000, 4_000_000)
    assert "checking 1 of 4 MB" in download_line(current, 40).plain
    fetches.close()
