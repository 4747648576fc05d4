"""How fast a model runs here: prompt tokens and decoded tokens per second, time to the first token.

Measures like llama.cpp's llama-bench, so that the two can be compared: prompts of random ids, decoding from
a context of chosen length, medians after a warm-up. Beside them stands how fast the memory that holds the
weights could be read at that time. Nothing is timed before the kernels have been checked against their oracle
on the model's own matrices. Every time ends when the id that follows is known: a GPU is never merely told to
begin. Knows one loaded model at a time and nothing of output formats. Called by `tiercel bench`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from engine.backends.base import AnyBackend
from engine.backends.numpy_backend import NumpyBackend
from engine.cancel import CancelToken
from engine.config import KVType, LoadOptions, Precision, SamplingParams
from engine.generate import decode_step, prefill
from engine.gguf import open_gguf
from engine.kv_cache import kv_bytes
from engine.loading import LoadedModel, load_model
from engine.logits import Logits
from engine.machine import processor_name
from engine.measuring.benchmark_gpu import Ceilings, gpu_backend, gpu_ceilings, gpu_failures_told
from engine.measuring.product_check import check_products
from engine.model_config import ModelConfig, read_model_config
from engine.sampler import Sampler
from engine.tiers.probe import probe_disk
from engine.weights import ModelWeights

if TYPE_CHECKING:
    from engine.backends.cuda import CudaBackend

_WARM_UP_IDS = 32
_WARM_UP_STEPS = 2
_GREEDY = SamplingParams(temperature=0)

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Report(Generic[C]):
    """What was measured, and on what."""

    device: str
    """Processor and backend."""
    cells: tuple[C, ...]
    notices: tuple[str, ...]
    """What a person should know about how the model runs."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One model on some threads at one depth; rates are medians, None is what was not measured."""

    path: str
    """The model's file."""
    quantisation: str
    """The quant type that holds most bytes."""
    threads: int
    depth: int
    """Tokens in the cache when decoding starts."""
    repetitions: int
    prompt_tokens: int
    """Prompt length; prompts are measured from an empty context: 0 in cells of another depth."""
    decode_tokens: int
    """Steps of one repetition."""
    prefill_tok_s: float | None
    prefill_tok_s_min: float | None
    prefill_tok_s_max: float | None
    ttft_ms: float | None
    """Until the logits of the prompt's last token are there."""
    decode_tok_s: float | None
    decode_tok_s_min: float | None
    decode_tok_s_max: float | None
    weight_bytes: int
    """Of the matrices that one decode step reads."""
    kv_bytes: int
    """Of the keys and values that one decode step reads, on average; not in weight_bytes."""
    weight_gb_s: float | None
    """weight_bytes times the steps per second, in GB."""
    read_gb_s: float | None
    """Plain reads of the memory that holds the weights, beside this cell; None on NumPy."""
    copy_gb_s: float | None
    """Copies within the GPU's memory, bytes read and written together; None on the CPU."""
    h2d_gb_s: float | None
    """Copies to the GPU from page-locked memory; None on the CPU."""
    bandwidth_share: float | None
    """weight_gb_s / read_gb_s."""
    predicted_decode_tok_s: float | None
    """What the plan promises from an empty context; None when nothing was measured for it."""
    predicted_prefill_tok_s: float | None
    """What it promises of a prompt of 512 tokens."""
    nvme_read_bytes: int
    """Read from disk for a decode step, on average."""
    h2d_bytes: int
    """Weights copied to a GPU for a decode step, on average."""
    stall_ms: float
    """Of a decode step, waiting for the disk and for copies to a GPU, on average."""
    disk_gb_s: float | None
    """Direct reads of the model's file, by turns with decoding; None when nothing is read from disk."""
    host_share: float | None
    """Of the time of a decode step, the part in which the GPU did not work on it; None on the CPU."""


def training_context(path: Path) -> int:
    """The context that a model was trained for, in tokens, from its header. Raises the engine's errors."""
    with open_gguf(path) as gguf:
        return read_model_config(gguf).training_context


def measure_speed(
    options: LoadOptions,
    *,
    n_prompt: int,
    n_decode: int,
    depths: Sequence[int],
    repetitions: int,
    cancel: CancelToken,
) -> Report[Cell]:
    """Load a model (its context is made to fit) and measure it, one cell for each depth in rising order.

    Prompts are measured at depth 0. Raises the engine's errors, KernelError when a product is wrong;
    CancelledError when told to stop.
    """
    context = max(n_prompt, max(depths) + n_decode)
    loaded = load_model(replace(options, context=context), lambda stage, progress: None, cancel)
    with gpu_failures_told(), closing(loaded):
        loaded.settle(cancel)
        gpu = gpu_backend(loaded.backend)
        check_products(loaded)
        ids = np.random.default_rng(0).integers(0, loaded.info.vocab_size, context).tolist()
        bench = _ModelBench(loaded, gpu, options, ids, cancel)
        return Report(
            device=f"{gpu.device.name if gpu else processor_name()}, {loaded.backend.name}",
            cells=tuple(
                bench.measure(depth, 0 if depth else n_prompt, n_decode, repetitions)
                for depth in sorted(depths)
            ),
            notices=loaded.notices,
        )


@dataclass(frozen=True, slots=True)
class _ModelBench:
    """A loaded model and the ids of its prompts; what was decoded after them is forgotten again."""

    loaded: LoadedModel
    gpu: CudaBackend | None
    """The backend again where it is a GPU's."""
    options: LoadOptions
    ids: list[int]
    cancel: CancelToken

    def measure(self, depth: int, n_prompt: int, n_decode: int, repetitions: int) -> Cell:
        """Warm up, then prefill and decode by turns, so that a disturbance does not fall on one alone."""
        tiers = self.loaded.backend.tiers
        streams = tiers is not None and tiers.snapshot().pass_read_bytes > 0
        # Before the warm-up, as it empties the caches. Where weights are streamed no memory is left for it.
        before = Ceilings() if streams else _ceilings(self.loaded.backend, self.gpu)
        if n_prompt:
            # On a GPU all of it: other lengths are other kernels there, which come with their first use.
            self._time_prefill(_WARM_UP_IDS if self.gpu is None else n_prompt)
        self._time_decode(depth, min(n_decode, _WARM_UP_STEPS))
        prefill_s, decode_s, disk, moved = [], [], [], _Moved()
        for _ in range(repetitions):
            if n_prompt:
                prefill_s.append(self._time_prefill(n_prompt))
            self._fill(depth)
            if streams:
                disk.append(probe_disk(self.loaded.info.path, self.cancel))
            start = self._moved()
            decode_s.append(self._time_decode(depth, n_decode))
            moved = moved.plus(self._moved(), start)
        host_share = self._host_share(depth, n_decode)
        ceilings = before.best(Ceilings() if streams else _ceilings(self.loaded.backend, self.gpu))
        n_steps = max(1, repetitions * n_decode)
        decode_tok_s, decode_min, decode_max = _rates(n_decode, decode_s)
        prefill_tok_s, prefill_min, prefill_max = _rates(n_prompt, prefill_s)
        n_bytes = step_bytes(self.loaded.weights)
        weight_gb_s = None if decode_tok_s is None else n_bytes * decode_tok_s / 1e9
        read_gb_s = _gb_s(ceilings.read)
        return Cell(
            path=str(self.loaded.info.path),
            quantisation=self.loaded.info.quantisation,
            threads=self.loaded.backend.threads,
            depth=depth,
            repetitions=repetitions,
            prompt_tokens=n_prompt,
            decode_tokens=n_decode,
            prefill_tok_s=prefill_tok_s,
            prefill_tok_s_min=prefill_min,
            prefill_tok_s_max=prefill_max,
            ttft_ms=median(prefill_s) * 1000 if n_prompt else None,
            decode_tok_s=decode_tok_s,
            decode_tok_s_min=decode_min,
            decode_tok_s_max=decode_max,
            weight_bytes=n_bytes,
            kv_bytes=step_kv_bytes(
                self.loaded.model.config,
                self.options.precision,
                depth,
                n_decode,
                kv_type=self.options.kv_type if self.gpu else KVType.F16,
            ),
            weight_gb_s=weight_gb_s,
            read_gb_s=read_gb_s,
            copy_gb_s=_gb_s(ceilings.copy),
            h2d_gb_s=_gb_s(ceilings.h2d),
            bandwidth_share=weight_gb_s / read_gb_s if weight_gb_s and read_gb_s else None,
            predicted_decode_tok_s=None if tiers is None else tiers.predicted_decode_tok_s,
            predicted_prefill_tok_s=None if tiers is None else tiers.snapshot().predicted_prefill_tok_s,
            nvme_read_bytes=moved.read_bytes // n_steps,
            h2d_bytes=moved.h2d_bytes // n_steps,
            stall_ms=moved.stall_s * 1000 / n_steps,
            disk_gb_s=median(disk) / 1e9 if disk else None,
            host_share=host_share,
        )

    def _time_prefill(self, n_prompt: int) -> float:
        """Seconds to run a prompt from an empty context, until the id that follows it is drawn."""
        self.loaded.session.cut(0)
        self._settle()
        start = perf_counter()
        logits = self._prefill_to(n_prompt)
        assert logits is not None, "nothing of it was there"
        self._draw(logits)
        return perf_counter() - start

    def _time_decode(self, depth: int, n_decode: int) -> float:
        """Seconds to draw ids one by one after `depth` others, always the best one."""
        self._fill(depth)
        self._settle()
        start = perf_counter()
        self._decode(depth, n_decode)
        seconds = perf_counter() - start
        self.loaded.session.cut(depth)
        return seconds

    def _host_share(self, depth: int, n_decode: int) -> float | None:
        """What is left of the time of steps without the time of their graphs on the GPU."""
        if self.gpu is None or not n_decode:
            return None
        self._fill(depth)
        self._settle()
        with self.gpu.timed() as times:
            seconds = self._time_decode(depth, n_decode)
            # A step and a draw for each id; by then one step more is under way, which nobody asks for.
            busy = sum(end.since(start) for start, end in times.spans[: 2 * n_decode])
        return max(0.0, 1 - busy / seconds)

    def _decode(self, depth: int, n_decode: int) -> None:
        token_id = self.ids[depth] if n_decode else 0
        for _ in range(n_decode):
            token_id = self._draw(decode_step(self.loaded.model, self.loaded.session, token_id, self.cancel))

    def _draw(self, logits: Logits) -> int:
        """The best id, drawn where the logits are."""
        return Sampler(_GREEDY)(logits, self.loaded.session.ids)

    def _settle(self) -> None:
        """Wait until the GPU has nothing to do."""
        if self.gpu is not None:
            self.gpu.device.synchronize()

    def _moved(self) -> _Moved:
        tiers = self.loaded.backend.tiers
        if tiers is None:
            return _Moved()
        stats = tiers.stats
        return _Moved(stats.read_bytes, stats.h2d_bytes, stats.stall_s + stats.copy_stall_s)

    def _fill(self, depth: int) -> None:
        """Make the session hold the first `depth` ids."""
        self.loaded.session.cut(depth)
        self._prefill_to(depth)

    def _prefill_to(self, n_ids: int) -> Logits | None:
        """Run what the session lacks of the first `n_ids` -> logits after the last; None if it lacks none."""
        session = self.loaded.session
        missing = self.ids[len(session.ids) : n_ids]
        if not missing:
            return None
        return prefill(
            self.loaded.model,
            session,
            missing,
            chunk=self.loaded.chunk,
            cancel=self.cancel,
            on_progress=lambda n_done: None,
        )


class _Moved(NamedTuple):
    """What has moved so far, or during a time."""

    read_bytes: int = 0
    h2d_bytes: int = 0
    stall_s: float = 0.0

    def plus(self, end: _Moved, start: _Moved) -> _Moved:
        """What moved from `start` to `end` added."""
        return _Moved(
            self.read_bytes + end.read_bytes - start.read_bytes,
            self.h2d_bytes + end.h2d_bytes - start.h2d_bytes,
            self.stall_s + end.stall_s - start.stall_s,
        )


def step_bytes(weights: ModelWeights) -> int:
    """Bytes of the matrices that a decode step reads: all but an embedding that is not also the head."""
    unread = "token_embd.weight" if "output.weight" in weights else ""
    return sum(data.size for name, (data, shape, _) in weights.items() if len(shape) == 2 and name != unread)


def step_kv_bytes(
    config: ModelConfig, precision: Precision, depth: int, n_decode: int, *, kv_type: KVType = KVType.F16
) -> int:
    """Bytes of keys and values that one of `n_decode` steps from `depth` on sees, on average; 0 for none."""
    if not n_decode:
        return 0
    n_seen = sum(
        min(position + 1, config.window(layer) or position + 1)
        for layer in range(config.n_layers)
        for position in range(depth, depth + n_decode)
    )
    if kv_type is KVType.Q8_0 and precision is Precision.FAST:
        row = 2 * config.n_kv_heads * (config.head_dim + 2 * -(-config.head_dim // 32))
        return row * n_seen // n_decode
    return kv_bytes(config, n_seen, precision) // config.n_layers // n_decode


def _ceilings(backend: AnyBackend, gpu: CudaBackend | None) -> Ceilings:
    """How fast the memory that holds the weights can be read; nothing for NumPy, which has no such read."""
    if gpu is not None:
        return gpu_ceilings(gpu.device)
    if backend.name == NumpyBackend.name:
        return Ceilings()
    from kernels.bench import read_bandwidth  # the C extension

    return Ceilings(read=read_bandwidth(backend.threads))


def _gb_s(rate: float) -> float | None:
    return rate / 1e9 or None


def _rates(n_tokens: int, seconds: list[float]) -> tuple[float, float, float] | tuple[None, None, None]:
    """Tokens per second: median, lowest, highest."""
    if not n_tokens:
        return None, None, None
    return n_tokens / median(seconds), n_tokens / max(seconds), n_tokens / min(seconds)
