"""Models on the C kernels with their weights where a test wants them, and logits of all kinds of passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from engine.backends.cpu import CpuBackend
from engine.cancel import CancelToken
from engine.config import Precision
from engine.events import TierSnapshot
from engine.gguf import open_gguf
from engine.model import Transformer
from engine.model_config import read_model_config
from engine.tiers.blocks import weight_blocks
from engine.tiers.budget import MemoryWatch
from engine.tiers.direct_io import DirectFiles
from engine.tiers.rates import Rates
from engine.tiers.store import TieredWeights
from engine.weights import ModelWeights
from tests.engine.budgets import room_for

IDS = [int(i) for i in np.random.default_rng(3).integers(3, 320, 24)]
GO_ON = CancelToken()


class Shortage(MemoryWatch):
    """Memory is short when a test says so."""

    def __init__(self) -> None:
        super().__init__(read=lambda: 1 << 60, total=1 << 40)
        self.next = 0

    def deficit(self) -> int:
        now, self.next = self.next, 0
        return now


@contextmanager
def opened(
    path: Path,
    share: float = 1.0,
    *,
    threads: int = 1,
    precision: Precision = Precision.FAST,
    instruction_set: str | None = None,
    rates: Rates | None = None,
    watch: MemoryWatch | None = None,
    on_change: Callable[[TierSnapshot], None] = lambda snapshot: None,
) -> Iterator[Transformer]:
    """The model of a file with a share of its weights in memory, as in `room_for`."""
    gguf = open_gguf(path)
    config = read_model_config(gguf)
    weights = ModelWeights(gguf, config)
    blocks, room = weight_blocks(gguf, config), room_for(path, share)
    with (
        closing(DirectFiles(gguf.part_paths)) as files,
        closing(
            TieredWeights(files, blocks, room, rates, watch=watch or Shortage(), on_change=on_change)
        ) as tiers,
    ):
        for _ in tiers.load(CancelToken()):
            pass
        backend = CpuBackend(
            weights,
            tiers,
            config,
            precision,
            threads=threads,
            max_tokens=32,
            instruction_set=instruction_set,
        )
        with closing(backend):
            yield Transformer(config, backend)


def tiers_of(model: Transformer) -> TieredWeights:
    tiers = model.backend.tiers
    assert tiers is not None
    return tiers


def all_logits(model: Transformer) -> np.ndarray:
    """Of a prompt in chunks, of decode steps, and of an edit in the middle of both: [T, V]."""
    kv = model.backend.new_kv(64)

    def run(first: int, last: int) -> np.ndarray:
        return model.logits(model.hidden(IDS[first:last], first, kv, GO_ON), GO_ON)

    prompt = [run(0, 7), run(7, 14), run(14, 20)]
    steps = [run(position, position + 1) for position in range(20, 24)]
    return np.concatenate([*prompt, *steps, run(10, 13), run(13, 14)])
