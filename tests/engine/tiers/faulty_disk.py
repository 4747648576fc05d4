"""Files of known bytes, blocks that lie in them, and a disk whose reads tests can hold up or spoil."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
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


class Gate:
    """Holds reads up while it is closed, and remembers where they began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[int] = []
        self.is_held: Callable[[int], bool] = lambda position: True
        self._opened = threading.Event()
        real = os.preadv

        def preadv(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
            self.started.append(position)
            if self.is_held(position):
                assert self._opened.wait(10), "the gate was never opened"
            return real(descriptor, buffers, position)

        monkeypatch.setattr(PREADV, preadv)

    def open(self) -> None:
        self._opened.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()
