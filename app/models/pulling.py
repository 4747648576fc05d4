"""What all ways to fetch a model share: progress, one at a time, room on the disk, and errors in one line.

Knows folders and locks; does not know where models come from.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from app.models.pip import PullError


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
"""Called about ten times a second or more; what it raises ends the pull."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """The result of a pull."""

    path: Path
    fetched: bool
    """False when the model was there already."""


@contextmanager
def alone(lock_path: Path, what: str) -> Iterator[None]:
    """Hold a lock that one process has at a time; PullError says that `what` is at work already."""
    with lock_path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = os.fstat(lock.fileno()).st_nlink > 0  # else it was removed while we waited to open it
        except BlockingIOError:
            free = False
        if not free:
            raise PullError(f"another {what} is at work: wait for it to end")
        try:
            yield
        finally:
            lock_path.unlink(missing_ok=True)


def check_space(folder: Path, name: str, needed: int) -> None:
    """Raise PullError unless the disk of `folder` has room for `needed` bytes more."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise PullError(
            f"{folder} has {free / 1e6:,.0f} MB free and {name} needs {needed / 1e6:,.0f} MB: "
            "free some space, or set TIERCEL_MODELS to a folder elsewhere"
        )


def explain_os_error(error: OSError, folder: Path) -> str:
    """Return one line about a disk that is full or a folder that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full at {folder}: free some space, or set TIERCEL_MODELS to a folder elsewhere"
    return (
        f"cannot write to {folder}: {error.strerror or error}; "
        "allow writing there, or set TIERCEL_MODELS to another folder"
    )


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
