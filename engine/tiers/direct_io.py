"""Reads a model's files around the page cache, so that what was read lies in memory once, in our own.

Knows descriptors, alignment and what a file system may refuse; does not know tensors or blocks. Where direct
reads are refused it reads through the page cache and drops the pages again, and `DirectFiles.notice` says so.
Called by the streamer, the store and the probe, from any number of threads.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from engine.errors import StreamError

ALIGNMENT = 4096
"""Of offset, length and address of a direct read; disks ask for 512 or 4,096 (statx(2), STATX_DIOALIGN)."""
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP)
"""What a file system without direct reads answers, some when a file is opened, some at the first read."""


class DirectFiles:
    """The parts of a model, opened for direct reads."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open all parts; StreamError names the first that cannot be opened."""
        self.notice = ""
        """Why reads go through the page cache; empty while they do not. It may come with the first read."""
        self._paths = tuple(paths)
        with ExitStack() as opened:
            try:
                self._plain = [_open(path, 0, opened) for path in paths]
                self._direct = self._open_direct(opened)
            except OSError as error:
                raise StreamError(
                    f"{error.filename}: cannot be opened ({error.strerror}); "
                    "check the file, then load the model again"
                ) from error
            self._opened = opened.pop_all()

    def read(self, part: int, offset: int, into: memoryview, needed: int = 0) -> int:
        """Fill `into` from byte `offset` of a part; return the bytes read, fewer only where the file ends.

        Offset, length and address are multiples of `ALIGNMENT` (else ValueError). Raises StreamError when the
        disk fails or the file ends before `needed` bytes.
        """
        _check_aligned(offset, into)
        reached = 0
        while reached < len(into):
            # A direct read that stopped inside a page goes on from the page's beginning.
            start = reached - reached % ALIGNMENT if self._direct else reached
            end = start + self._read_once(part, offset + start, into[start:])
            if end <= reached:  # nothing new: the file ends here
                break
            reached = end
        if reached < needed:
            raise self._cut_short(part, offset + reached)
        return reached

    def fill(self, part: int, offset: int, into: memoryview) -> None:
        """Fill `into` from anywhere in a part, through the page cache; StreamError as in `read`."""
        reached = 0
        while reached < len(into):
            position = offset + reached
            with self._naming(part, position):
                n_bytes = os.preadv(self._plain[part], [into[reached:]], position)
            if not n_bytes:
                raise self._cut_short(part, position)
            reached += n_bytes

    def cached(self, part: int, offset: int, n_bytes: int) -> bool:
        """Whether the first and the last of these bytes are in the page cache, as far as the system tells."""
        flag = getattr(os, "RWF_NOWAIT", None)
        if flag is None or not n_bytes:
            return False
        try:
            return all(
                os.preadv(self._plain[part], [bytearray(1)], position, flag)
                for position in (offset, offset + n_bytes - 1)
            )
        except OSError:  # EAGAIN where it would have to be read, EOPNOTSUPP where nobody knows
            return False

    def close(self) -> None:
        """Close the files; idempotent. Afterwards nothing can be read."""
        self._plain, self._direct = [], []
        self._opened.close()

    def _open_direct(self, opened: ExitStack) -> list[int]:
        """A second descriptor of each part, for direct reads; none, with a notice, where there are none."""
        if hasattr(os, "O_DIRECT"):
            try:
                return [_open(path, os.O_DIRECT, opened) for path in self._paths]
            except OSError as error:
                if error.errno not in _REFUSALS:
                    raise
                self.notice = _notice(Path(error.filename))
                return []
        if hasattr(fcntl, "F_NOCACHE"):  # macOS
            for descriptor in self._plain:
                fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)
        self.notice = _notice(self._paths[0])
        return []

    def _read_once(self, part: int, position: int, into: memoryview) -> int:
        """Read once, directly where that works; a refusal ends direct reads for good, in every thread."""
        with self._naming(part, position):
            direct = self._direct  # another thread may empty it now
            if direct:
                try:
                    return os.preadv(direct[part], [into], position)
                except OSError as error:
                    if error.errno not in _REFUSALS:
                        raise
                self.notice = _notice(self._paths[part])
                self._direct = []
            n_bytes = os.preadv(self._plain[part], [into], position)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._plain[part], position, n_bytes, os.POSIX_FADV_DONTNEED)
            return n_bytes

    @contextmanager
    def _naming(self, part: int, position: int) -> Iterator[None]:
        """Say which file and position the system's error is about."""
        try:
            yield
        except OSError as error:
            raise StreamError(
                f"{self._paths[part]}: reading at byte {position} failed ({error.strerror}); "
                "check the disk, then ask again or load the model again"
            ) from error

    def _cut_short(self, part: int, missing: int) -> StreamError:
        return StreamError(
            f"{self._paths[part]} was cut short while it was read: byte {missing} is missing; "
            "get the model again, then load it again"
        )


def _open(path: Path, flags: int, opened: ExitStack) -> int:
    descriptor = os.open(path, os.O_RDONLY | flags)
    opened.callback(os.close, descriptor)
    return descriptor


def _notice(path: Path) -> str:
    return f"{path.name} cannot be read directly here: it is read through the page cache, which may be slower"


def _check_aligned(offset: int, into: memoryview) -> None:
    # The kernel would refuse it with the same EINVAL as a file system that knows no direct reads.
    address = np.frombuffer(into, np.uint8).ctypes.data
    if offset % ALIGNMENT or len(into) % ALIGNMENT or address % ALIGNMENT:
        raise ValueError(
            f"reading {len(into)} bytes at byte {offset} to address {address:#x}: "
            f"all three must be multiples of {ALIGNMENT}"
        )
