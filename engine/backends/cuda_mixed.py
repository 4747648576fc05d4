"""A pass over blocks that are not all in the GPU's memory: the GPU and the processor take turns.

Knows how hidden states get from one to the other, and what each needs to compute a run of blocks; who
computes which block, and how it gets there, is the business of `GpuTiers`. What a pass computes is said in
`numpy_backend`.

While the processor computes, copies to the staging ring go on: nothing here waits for them but the GPU.
Putting those of a large block on the way takes a millisecond, so a thread of its own does it, and is done
long before the processor is. The thread that waits for the GPU sleeps. Hidden states are read and written in
page-locked memory by kernels that are part of the graphs of their runs: a copy of its own would wait behind
megabytes of weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.backends.base import Float32Array, TokenIds
from engine.backends.cuda_attention import DeviceKV
from engine.backends.cuda_model import DeviceModel
from engine.backends.cuda_prompt import Prompt
from engine.backends.cuda_weights import BlockMatrices, number_of
from engine.cancel import CancelToken
from engine.errors import CancelledError
from engine.events import Executor
from engine.kv_cache import HostKV
from engine.skipping.skip_choice import SkipSet
from engine.tiers.blocks import Block
from engine.tiers.gpu_tiers import GpuTiers, Moved
from engine.tiers.route import Run
from engine.tiers.vocabulary_rows import VocabularyRows
from kernels.cuda.device import Array, Device, Event
from kernels.cuda.sampling import MOST_IDS, begin_step

if TYPE_CHECKING:  # it needs the C kernels, without which a GPU that holds the model computes all the same
    from engine.backends.host_blocks import HostBlocks, Positions

_RUNS_AHEAD = 4
"""Layers of a prompt that the host may be ahead of the GPU: so many still run after a cancel."""


@dataclass(frozen=True, slots=True, eq=False)
class TieredKV:
    """`KVCache` of a model that a GPU and the processor share: each has the layers whose attention is its."""

    device: DeviceKV
    host: HostKV | None
    """None where the processor computes nothing."""
    host_bytes: int
    """Of the layers in `host` that are used."""

    @property
    def max_context(self) -> int:
        """Positions it has room for."""
        return self.device.max_context

    @property
    def n_bytes(self) -> int:
        """Bytes of keys and values together."""
        return self.device.n_bytes + self.host_bytes


class States(NamedTuple):
    """Hidden states [T, D] f32 after all layers: where the head is that comes next."""

    on_gpu: Array | None
    on_host: Float32Array | None


class _Pass(NamedTuple):
    """What the runs of one pass have in common."""

    n_tokens: int
    at: Positions
    kv: TieredKV
    cancel: CancelToken
    x: Float32Array
    """[T, D] in page-locked memory."""


class MixedPasses:
    """Passes through one model."""

    def __init__(
        self,
        device: Device,
        model: DeviceModel,
        tiers: GpuTiers[BlockMatrices],
        processor: HostBlocks,
        hidden_size: int,
        host_kv_bytes: int,
    ) -> None:
        """Reserve page-locked memory for the hidden states of a pass.

        `host_kv_bytes` are keys and values of one position of one layer in the processor's memory.
        """
        self._device, self._model, self._tiers, self._processor = device, model, tiers, processor
        self._where, self._host = tiers.where, tiers.where.host
        self._rows = VocabularyRows(self._host)
        n_rows = max(model.layout.chunk, MOST_IDS)
        memory = device.pinned(n_rows * hidden_size * 4).view(np.float32)
        self._x = memory.reshape(n_rows, hidden_size)
        self._address = device.host_address(memory)
        self._cpu_attention, self._host_kv_bytes = tiers.where.plan.cpu_attention, host_kv_bytes
        self._last: Event | None = None
        """After all that was put on the GPU."""
        self._running: deque[Event] = deque()
        self._arrangement = self._where.arrangement
        """Of the blocks, that there are graphs for."""
        self._products_s = 0.0
        """Of the pass that is under way, so far: of the processor's calls alone."""
        self._beside = ThreadPoolExecutor(1, "copies")
        """Puts copies on the way while this thread calls the processor."""

    def run(
        self,
        runs: Sequence[Run],
        token_ids: TokenIds,
        start_pos: int,
        kv: TieredKV,
        cancel: CancelToken,
        skip: SkipSet,
    ) -> States:
        """Run ids through `runs`, which `GpuTiers` gave for all layers but `skip`.

        Raises CancelledError, StreamError, and what the device raises.
        """
        while True:
            self._products_s = 0.0
            try:
                states = self._run(runs, token_ids, start_pos, kv, cancel)
            except Moved:
                runs = self._tiers.begin_anew(len(token_ids), skip)
                continue
            if len(token_ids) == 1 and not skip:
                self._tiers.note_step(perf_counter(), self._products_s)
            return states

    def _run(
        self, runs: Sequence[Run], token_ids: TokenIds, start_pos: int, kv: TieredKV, cancel: CancelToken
    ) -> States:
        n_tokens = len(token_ids)
        if self._arrangement != self._where.arrangement:
            self._arrangement = self._where.arrangement
            self._model.step.forget_runs()
        if self._last is not None:
            self._last.wait()  # a pass that was stopped may still use the memory of its hidden states
        x = self._x[:n_tokens]
        x[:] = self._processor.embed(self._rows.embedding(token_ids), n_tokens)
        begin_step(self._device, self._model.state, start_pos, token_ids[: self._ids_in(n_tokens)].tolist())
        # Without attention the processor has no cache, and where its rows are does not matter to it.
        at = self._processor.positions(start_pos if self._cpu_attention else 0, n_tokens)
        this = _Pass(n_tokens, at, kv, cancel, x)
        head_on_gpu = self._where.head_on_gpu
        on_gpu = False
        try:
            for run, following in zip(runs, [*runs, None][1:], strict=True):
                if cancel.cancelled:
                    raise CancelledError("stopped")
                if run.on_gpu:
                    leaves = head_on_gpu is False if following is None else not following.on_gpu
                    self._on_gpu(run, this, arrives=not on_gpu, leaves=leaves)
                else:
                    if on_gpu:
                        self._device.record().wait()
                    self._on_processor(run, this)
                on_gpu = run.on_gpu
            self._tiers.copy_on()
            if not head_on_gpu:
                if on_gpu:
                    self._device.record().wait()
                return States(None, x)
            self._tiers.ready(self._where.head_blocks, cancel, on_gpu=True)
            if not on_gpu:
                self._compute((), this, arrives=True, leaves=False)
            source = self._model.step.x if n_tokens <= MOST_IDS else self._prompt.x
            return States(source[:n_tokens], None)
        finally:
            self._last = self._device.record()
            self._running.clear()

    def with_host(self, kv: DeviceKV, max_context: int) -> TieredKV:
        """A cache with the layers whose attention is the processor's; their memory is taken as it fills."""
        n_layers = len(self._cpu_attention)
        host = self._processor.new_kv(max_context if n_layers else self._processor.max_tokens)
        return TieredKV(kv, host, n_layers * max_context * self._host_kv_bytes)

    def head(self, x: Float32Array, logits: Float32Array, cancel: CancelToken) -> None:
        """Final norm and output projection by the processor, of x [R, D] in its memory -> logits [R, V]."""
        most, streamed = self._processor.max_tokens, self._host.plan.streamed
        self._tiers.ready([block for block in self._where.head_blocks if block.index not in streamed], cancel)
        for rows in self._rows.head(cancel):
            for first in range(0, len(x), most):
                self._processor.head(x[first : first + most], rows, logits[first : first + most])

    @staticmethod
    def _ids_in(n_tokens: int) -> int:
        """Ids that go into the state: all of a step, of a prompt one, for its position."""
        return n_tokens if n_tokens <= MOST_IDS else 1

    # -- on the GPU

    def _on_gpu(self, run: Run, this: _Pass, *, arrives: bool, leaves: bool) -> None:
        for part, is_last in _parts(run, whole=self._where.settled and this.n_tokens <= MOST_IDS):
            if run.executor is Executor.STREAM:
                self._tiers.copy_on()
                matrices = [self._tiers.take(block, this.cancel) for block in part]
            else:
                self._tiers.ready(part, this.cancel)
                matrices = [self._tiers.resident(block) for block in part]
            try:
                self._compute(matrices, this, arrives=arrives, leaves=leaves and is_last)
            finally:
                if run.executor is Executor.STREAM:
                    for block in part:
                        self._tiers.release(block)
            arrives = False
            if this.n_tokens > MOST_IDS:
                self._tiers.copy_on()  # before this thread may wait
                self._running.append(self._device.record())
                if len(self._running) > _RUNS_AHEAD:
                    self._running.popleft().wait()
                if this.cancel.cancelled:
                    raise CancelledError("stopped")

    def _compute(
        self, matrices: Sequence[BlockMatrices], this: _Pass, *, arrives: bool, leaves: bool
    ) -> None:
        """Put blocks on the GPU that follow each other."""
        if this.n_tokens <= MOST_IDS:
            self._model.step.run_blocks(
                matrices,
                this.n_tokens,
                this.kv.device,
                arrives=self._address if arrives else None,
                leaves=self._address if leaves else None,
                again=self._where.settled,
            )
            return
        prompt = self._prompt
        if arrives:
            prompt.arrive(self._address, this.n_tokens)
        if matrices:
            prompt.run_blocks(matrices, this.n_tokens, this.kv.device)
        if leaves:
            prompt.leave(self._address, this.n_tokens)

    @property
    def _prompt(self) -> Prompt:
        assert self._model.prompt is not None, "chunks are no longer than planned for"
        return self._model.prompt

    # -- on the processor

    def _on_processor(self, run: Run, this: _Pass) -> None:
        """Blocks in memory, none of those between them left out, are one call."""
        waiting: list[Block] = []
        for block in run.blocks:
            if waiting and block.index != waiting[-1].index + 1:
                self._multiply(waiting, this)
                waiting = []
            if block.index not in self._host.plan.streamed:
                self._tiers.ready([block], this.cancel)
                waiting.append(block)
                continue
            self._multiply(waiting, this)
            waiting = []
            matrices = self._host.acquire(block, this.cancel)
            self._processor.follow(self._host.take_changes())  # it may have left the memory where it stayed
            self._processor.put(block, matrices)
            try:
                self._multiply([block], this)
            finally:
                self._host.release(block)
        self._multiply(waiting, this)

    def _multiply(self, blocks: Sequence[Block], this: _Pass) -> None:
        if not blocks:
            return
        self._processor.follow(self._host.take_changes())
        first = number_of(blocks[0])
        assert this.kv.host is not None, "it came from `with_host`"
        copies = self._beside.submit(self._copy_on) if self._tiers.can_copy else None
        began = perf_counter()
        try:
            self._processor.run(first, first + len(blocks), this.x, this.at, this.kv.host, this.cancel)
        finally:
            self._products_s += perf_counter() - began
            if copies is not None:
                copies.result()

    def _copy_on(self) -> None:
        """In the other thread. It enters the GPU here: what fails as its thread begins no pool tells."""
        self._device.enter()
        self._tiers.copy_on()


def _parts(run: Run, *, whole: bool) -> list[tuple[Sequence[Block], bool]]:
    """What of a run is put on the GPU together, and whether it is the last of it.

    All of it where nothing has to be waited for; else a layer at a time.
    """
    size = len(run.blocks) if whole else 2
    starts = range(0, len(run.blocks), size)
    return [(run.blocks[start : start + size], start == starts[-1]) for start in starts]
