"""Graphs that passes are put on a GPU with: captured when first needed, so many at a time, or none at all.

Each takes memory of the process and of the GPU: those that were not used for longest go when there would be
too many. Knows launches and how many blocks they compute; does not know what is computed. Where another
program leaves no memory for a graph its kernels are launched one by one: slower, and the same to the last
bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from kernels.cuda.device import Device, Graph
from kernels.errors import DeviceMemoryError

_AROUND = 4
"""What a graph takes beside its blocks, counted as blocks: one of a few blocks took 0.1 to 0.2 MB of an
H200's memory, and 0.2 to 0.3 MB of the process's."""
_AGAIN_S = 10.0
"""How long a graph is not tried for again that there was no memory for."""

K = TypeVar("K", bound=Hashable)
"""What a graph is known by."""


class _Kept(NamedTuple):
    graph: Graph
    taken: int
    """In blocks."""


class Graphs(Generic[K]):
    """The graphs of one model. One thread uses it."""

    def __init__(
        self, device: Device, most_blocks: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with none, and keep those that compute `most_blocks` together: fewer where each has few."""
        self._device, self._clock = device, clock
        self.most_blocks = most_blocks
        self._kept: dict[K, _Kept] = {}
        """The first one was not used for longest."""
        self._taken = 0
        self._refused_until = self._emptied_until = clock()
        self._told = False
        self.on_refused: Callable[[], None] = lambda: None
        """Called when graphs are done without from now on; to be set by who tells people."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._kept)

    def launch(self, key: K, n_blocks: int, run: Callable[[], None]) -> None:
        """Put on the device what `run` launches, which computes so many blocks: always the same for a key."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._kept[key] = kept  # the last one used
        graph = self.capture(key, n_blocks, run) if kept is None else kept.graph
        if graph is None:
            run()
            return
        try:
            graph.launch()
        except DeviceMemoryError:  # nothing of it has begun
            self._do_without()
            self.forget(lambda other: other == key)
            run()

    def capture(self, key: K, n_blocks: int, run: Callable[[], None]) -> Graph | None:
        """Have the graph of a key that has none; None where there is no memory for it, now or just before."""
        if self._clock() < self._refused_until:
            return None
        taken = n_blocks + _AROUND
        while self._kept and self._taken + taken > self.most_blocks:
            self._drop(next(iter(self._kept)))
        graph = self._try(run)
        if graph is None and self._kept and self._clock() >= self._emptied_until:
            self._emptied_until = self._clock() + _AGAIN_S  # else each one would drive the one before out
            self.clear()
            graph = self._try(run)
        if graph is None:
            self._do_without()
            return None
        self._told = False
        self._kept[key] = _Kept(graph, taken)
        self._taken += taken
        return graph

    def forget(self, which: Callable[[K], bool]) -> None:
        """Let go of those whose key is such a one."""
        for key in [key for key in self._kept if which(key)]:
            self._drop(key)

    def clear(self) -> None:
        """Let go of all."""
        self._kept.clear()
        self._taken = 0

    def _try(self, run: Callable[[], None]) -> Graph | None:
        try:
            return self._device.capture(run)
        except DeviceMemoryError:
            return None

    def _drop(self, key: K) -> None:
        self._taken -= self._kept.pop(key).taken

    def _do_without(self) -> None:
        self._refused_until = self._clock() + _AGAIN_S
        if not self._told:
            self._told = True
            self.on_refused()
