"""Graphs that are captured, dropped and done without: what is launched is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.backends.cuda_graphs import Graphs
from engine.cancel import CancelToken
from engine.config import ExecutorChoice
from engine.events import TierEventKind
from engine.tiers.wishes import parse_place
from kernels.cuda.device import Device
from kernels.errors import DeviceMemoryError
from kernels.quant_types import QuantType
from tests.engine.cuda_models import Borrowed, opened_on
from tests.tiny_gguf import write_tiny_model

GO_ON = CancelToken()
NO_MEMORY = DeviceMemoryError(0, 1 << 20, None, 0, call="cuGraphInstantiateWithFlags")


class Paper:
    """A device with memory for so many graphs at a time, and what was launched."""

    def __init__(self, room: int) -> None:
        self.room, self.alive, self.launched = room, 0, list[str]()
        self.captures = 0
        self.launches_fail = False
        self.now = 0.0

    def capture(self, run: Callable[[], None]) -> Any:
        self.captures += 1
        if self.alive >= self.room:
            raise NO_MEMORY
        device, device.alive = self, self.alive + 1

        class Graph:
            def launch(self) -> None:
                if device.launches_fail:
                    raise NO_MEMORY
                device.launched.append("graph")
                run()

            def __del__(self) -> None:
                device.alive -= 1

        return Graph()


def graphs_of(
    paper: Paper, most_blocks: int = 1000
) -> tuple[Graphs[str], Callable[..., list[str]], list[str]]:
    """Graphs on it, a function that launches some and says how, and what people were told."""
    graphs: Graphs[str] = Graphs(paper, most_blocks, clock=lambda: paper.now)  # type: ignore[arg-type]
    told: list[str] = []
    graphs.on_refused = lambda: told.append("refused")

    def launch(*keys: str) -> list[str]:
        paper.launched.clear()
        for key in keys:
            graphs.launch(key, 10, lambda key=key: paper.launched.append(key))  # type: ignore[misc]
        return paper.launched

    return graphs, launch, told


def test_a_graph_is_captured_once() -> None:
    paper = Paper(room=100)
    graphs, launch, told = graphs_of(paper)
    assert launch("a", "b", "a") == ["graph", "a", "graph", "b", "graph", "a"]
    assert (paper.captures, len(graphs), told) == (2, 2, [])
    graphs.forget(lambda key: key == "a")
    assert (len(graphs), paper.alive) == (1, 1)


def test_those_that_were_not_used_for_longest_go_when_there_are_too_many() -> None:
    paper = Paper(room=100)
    graphs, launch, _ = graphs_of(paper, most_blocks=30)
    launch("a", "b", "a", "c", "a")
    assert (paper.captures, len(graphs), paper.alive) == (3, 2, 2)
    launch("c", "a")
    assert paper.captures == 3
    launch("b")
    assert (paper.captures, len(graphs), paper.alive) == (4, 2, 2)
    launch("a")
    assert paper.captures == 4


def test_without_memory_other_graphs_go_once_and_then_it_is_done_without_a_while() -> None:
    paper = Paper(room=2)
    graphs, launch, told = graphs_of(paper)
    assert launch("a", "b", "c") == ["graph", "a", "graph", "b", "graph", "c"]
    assert (len(graphs), told) == (1, [])
    # The others come again as far as there is room; none drives the others out again.
    assert launch("a", "b", "c") == ["graph", "a", "b", "graph", "c"]
    assert (len(graphs), told) == (2, ["refused"])
    captures = paper.captures
    assert launch("b", "d") == ["b", "d"]
    assert paper.captures == captures
    paper.now += 11
    paper.room = 4
    assert launch("b", "d") == ["graph", "b", "graph", "d"]
    assert told == ["refused"]
    assert launch("e", "f", "e") == ["graph", "e", "graph", "f", "graph", "e"]
    paper.room = 0
    paper.now += 11
    assert launch("g", "a") == ["g", "a"]
    assert told == ["refused", "refused"]


def test_a_graph_that_cannot_be_launched_for_want_of_memory_is_done_without() -> None:
    paper = Paper(room=9)
    graphs, launch, told = graphs_of(paper)
    launch("a")
    paper.launches_fail = True
    assert launch("a") == ["a"]
    assert (len(graphs), told) == (0, ["refused"])


@pytest.mark.parametrize("place", ["", "blk.0-1.ffn=ram"])
def test_a_model_without_memory_for_graphs_computes_the_same_and_says_so_once(
    device: Device, tmp_path: Path, place: str
) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", quant_type=QuantType.Q4_K)
    options: dict[str, Any] = {"place": parse_place(place)} if place else {}

    class Full(Borrowed):
        def capture(self, run: Callable[[], None]) -> Any:
            raise NO_MEMORY

    logits = []
    for kind in (Borrowed, Full):
        with opened_on(kind(device), path, executor=ExecutorChoice.STREAM, **options) as model:
            kv = model.backend.new_kv(64)
            passes = [(0, 12), (12, 13), (13, 14), (14, 18)]
            ids = list(range(20, 40))
            for first, last in passes:
                logits.append(model.logits(model.hidden(ids[first:last], first, kv, GO_ON), GO_ON))
            assert model.backend.tiers is not None
            warned = [e for e in model.backend.tiers.snapshot().events if e.kind is TierEventKind.WARNING]
        assert len(warned) == (kind is Full)
        assert all("kernels are launched one by one" in event.text for event in warned)
    for ours, expected in zip(logits[4:], logits[:4], strict=True):
        np.testing.assert_array_equal(ours, expected)
