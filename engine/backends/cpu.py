"""The model on the processor: runs of weight blocks that are in memory, each one native call.

Knows the order of runs and what is streamed between them. Where a block is and when it comes is the business
of `TieredWeights`, how it is computed that of `HostBlocks`.
"""

from __future__ import annotations

import numpy as np

from engine.backends.base import Float32Array, TokenIds
from engine.backends.host_blocks import HostBlocks
from engine.cancel import CancelToken
from engine.config import Precision
from engine.kv_cache import HostKV
from engine.logits import HostLogits
from engine.model_config import ModelConfig
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.tiers.store import TieredWeights
from engine.tiers.vocabulary_rows import VocabularyRows
from engine.weights import ModelWeights
from kernels import cpu


class CpuBackend:
    """`Backend` over `kernels.cpu`. Raises MemoryError when its working memory cannot be had."""

    def __init__(
        self,
        weights: ModelWeights,
        tiers: TieredWeights,
        config: ModelConfig,
        precision: Precision,
        *,
        threads: int,
        max_tokens: int = 512,
        instruction_set: str | None = None,
        no_gpu: str = "",
    ) -> None:
        """Compute `config`'s model; one call takes up to `max_tokens` rows. Matrices come from `tiers`.

        `no_gpu` says why no GPU does.
        """
        self.tiers = tiers
        self.threads = threads
        self.chunk = max_tokens
        self._rows = VocabularyRows(tiers)
        self._vocab_size = config.vocab_size
        self._blocks = HostBlocks(
            weights,
            config,
            precision,
            threads=threads,
            max_tokens=max_tokens,
            instruction_set=instruction_set,
        )
        chosen, best = self._blocks.instruction_set, cpu.instruction_sets()[0]
        self.name = f"cpu {chosen}"
        choice = "the best instruction set of this processor" if chosen == best else "the one asked for"
        self.reason = f"{choice}; {no_gpu}" if no_gpu else choice
        self._blocks.follow(self.tiers.take_changes())

    def new_kv(self, max_context: int) -> HostKV:
        """Reserve a cache for this many positions."""
        return self._blocks.new_kv(max_context)

    def embed(self, token_ids: TokenIds) -> Float32Array:
        """Look up the ids, [T] -> [T, D], the embedding scale applied."""
        return self._blocks.embed(self._rows.embedding(token_ids), len(token_ids))

    def layers(
        self,
        first: int,
        last: int,
        x: Float32Array,
        start_pos: int,
        kv: HostKV,
        cancel: CancelToken,
        skip: SkipSet = NOTHING,
    ) -> None:
        """Run layers first..last-1 over x [T, D] in place; see `Backend.layers`."""
        if first == 0:
            self.tiers.before_pass()
        self._blocks.follow(self.tiers.take_changes())
        at = self._blocks.positions(start_pos, len(x))
        for start, end, streamed in self.tiers.runs(2 * first, 2 * last, skip):
            if streamed is not None:
                self._blocks.put(streamed, self.tiers.acquire(streamed, cancel))
            try:
                self._blocks.run(start, end, x, at, kv, cancel)
            finally:
                if streamed is not None:
                    self.tiers.release(streamed)

    def states(self, x: Float32Array) -> Float32Array:
        """Hidden states [T, D], here already."""
        return x

    def head(self, x: Float32Array, cancel: CancelToken) -> Float32Array:
        """Final norm and output projection, [R, D] -> [R, V]."""
        logits = np.empty((len(x), self._vocab_size), np.float32)
        for rows in self._rows.head(cancel):
            self._blocks.head(x, rows, logits)
        return logits

    def next_logits(self, x: Float32Array, cancel: CancelToken, ahead: SkipSet | None = None) -> HostLogits:
        """Logits [V] of the last row of x."""
        return HostLogits(self.head(x[-1:], cancel)[0])

    def each_logits(self, x: Float32Array, cancel: CancelToken) -> list[HostLogits]:
        """Logits [V] of every row of x; the output matrix is read once."""
        return [HostLogits(logits) for logits in self.head(x, cancel)]

    def close(self) -> None:
        """Stop the threads and let go of the weights; the backend cannot be used afterwards."""
        self.__dict__.pop("_blocks", None)
        self.tiers.close()
