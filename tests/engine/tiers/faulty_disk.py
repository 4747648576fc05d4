"""Files of known bytes, blocks that lie in them, and a disk whose reads tests can hold up or spoil."""

from __future__ import annotations

import errno
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from engine.tiers.blocks import Block, BlockKind, Piece
from engine.tiers.direct_io import ALIGNMENT
from kernels.quant_types import QuantType

PREADV = "engine.tiers.direct_io.os.preadv"
"""What tests put their own disk in the place of."""


def write_noise(path: Path, n_bytes: int, seed: int = 0) -> bytes:
    """A file of bytes that differ from page to page; returns them."""
    content = np.random.default_rng(seed).bytes(n_bytes)
    path.write_bytes(content)
    return content


def piece(offset: int, n_bytes: int, part: int = 0) -> Piece:
    return Piece("t", part, offset, n_bytes, QuantType.F32, 0, 1, n_bytes // 4)


def block(index: int, *pieces: Piece) -> Block:
    return Block(index, BlockKind.FEED_FORWARD, index, pieces)


def page_buffer(n_pages: int) -> memoryview:
    """Aligned memory that holds no zeros."""
    memory = np.full((n_pages + 1) * ALIGNMENT, 0xEE, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + n_pages * ALIGNMENT].data


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do; fails after ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.002)


def refuse_direct_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system without O_DIRECT."""
    real = os.open

    def refuse(path: Path, flags: int, *arguments: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        return real(path, flags, *arguments)

    monkeypatch.setattr("engine.tiers.direct_io.os.open", refuse)


def spoil(monkeypatch: pytest.MonkeyPatch, fault: str, after: int = 0) -> None:
    """Let all reads but the first `after` fail: "EIO", or the file is "cut" there."""
    left = after
    real, lock = os.preadv, threading.Lock()

    def preadv(descriptor: int, buffers: Sequence[memoryview], position: int, flags: int = 0) -> int:
        nonlocal left
        with lock:
            left -= 1
            good = left >= 0
        if good:
            return real(descriptor, buffers, position, flags)
        if fault == "EIO":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return 0

    monkeypatch.setattr(PREADV, preadv)


@contextmanager
def nothing_leaks() -> Iterator[None]:
    """Fails when threads or open files are left that were not there before.

    An error that was caught holds the frames, and they the file: look at it outside.
    """

    def present() -> tuple[set[threading.Thread], int]:
        gc.collect()
        folder = Path("/proc/self/fd")
        n_files = len(os.listdir(folder)) if folder.is_dir() else 0
        return set(threading.enumerate()), n_files

    threads, n_files = present()
    yield

    def nothing_new() -> bool:  # the tokenizer's thread ends by itself
        now = present()
        return now[0] <= threads and now[1] <= n_files

    wait_until(nothing_new)


class Gate:
    """Holds reads up while it is closed, and remembers where they began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[int] = []
        self.is_held: Callable[[int], bool] = lambda position: True
        self._opened = threading.Event()
        real = os.preadv

        def preadv(descriptor: int, buffers: Sequence[memoryview], position: int, flags: int = 0) -> int:
            self.started.append(position)
            if self.is_held(position):
                assert self._opened.wait(10), "the gate was never opened"
            return real(descriptor, buffers, position, flags)

        monkeypatch.setattr(PREADV, preadv)

    def open(self) -> None:
        self._opened.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()
