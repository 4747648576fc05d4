"""How fast a model runs here: prompt tokens and decoded tokens per second, time to the first token.

Measures like llama.cpp's llama-bench, so that the two can be compared: prompts of random ids, decoding from
a context of chosen length, medians after a warm-up. Beside them stands how fast memory could be read at that
time. Nothing is timed before the kernels have been checked against their oracle on the model's own matrices.
Knows one loaded model at a time and nothing of output formats. Called by `tiercel bench`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Generic, TypeVar

import numpy as np

from engine.backends.base import Backend
from engine.backends.numpy_backend import NumpyBackend
from engine.cancel import CancelToken
from engine.config import LoadOptions, Precision
from engine.errors import KernelError
from engine.generate import decode_step, prefill
from engine.gguf import open_gguf
from engine.kv_cache import kv_bytes
from engine.loading import LoadedModel, load_model
from engine.machine import processor_name
from engine.model_config import ModelConfig, read_model_config
from engine.tiers.probe import probe_disk
from engine.tiers.streamer import StreamStats
from engine.weights import ModelWeights

_WARM_UP_IDS = 32
_WARM_UP_STEPS = 2

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
    """Plain reads of memory on these threads, beside this cell; None on NumPy."""
    bandwidth_share: float | None
    """weight_gb_s / read_gb_s."""
    predicted_decode_tok_s: float | None
    """What the plan promises from an empty context; None when nothing was measured for it."""
    nvme_read_bytes: int
    """Read from disk for a decode step, on average."""
    h2d_bytes: int
    """Copied to a GPU for a decode step: 0 as long as the processor computes everything."""
    stall_ms: float
    """Of a decode step, waiting for the disk, on average."""
    disk_gb_s: float | None
    """Direct reads of the model's file, by turns with decoding; None when nothing is read from disk."""


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
    try:
        if loaded.backend.name != NumpyBackend.name:
            _check_products(loaded.weights, options.precision)
        ids = np.random.default_rng(0).integers(0, loaded.info.vocab_size, context).tolist()
        bench = _ModelBench(loaded, options.precision, ids, cancel)
        return Report(
            device=f"{processor_name()}, {loaded.backend.name}",
            cells=tuple(
                bench.measure(depth, 0 if depth else n_prompt, n_decode, repetitions)
                for depth in sorted(depths)
            ),
            notices=loaded.notices,
        )
    finally:
        loaded.close()


@dataclass(frozen=True, slots=True)
class _ModelBench:
    """A loaded model and the ids that it is fed; the session always holds the first so many of them."""

    loaded: LoadedModel
    precision: Precision
    ids: list[int]
    cancel: CancelToken

    def measure(self, depth: int, n_prompt: int, n_decode: int, repetitions: int) -> Cell:
        """Warm up, then prefill and decode by turns, so that a disturbance does not fall on one alone."""
        tiers = self.loaded.backend.tiers
        streams = tiers is not None and bool(tiers.plan.streamed)
        # Before the warm-up, as it empties the caches. Where weights are streamed no memory is left for it.
        read_before = 0.0 if streams else _read_bandwidth(self.loaded.backend)
        if n_prompt:
            self._time_prefill(_WARM_UP_IDS)
        self._time_decode(depth, min(n_decode, _WARM_UP_STEPS))
        prefill_s, decode_s, disk, n_read, stall_s = [], [], [], 0, 0.0
        for _ in range(repetitions):
            if n_prompt:
                prefill_s.append(self._time_prefill(n_prompt))
            self._fill(depth)
            if streams:
                disk.append(probe_disk(self.loaded.info.path, self.cancel))
            before = tiers.stats if tiers is not None else StreamStats()
            decode_s.append(self._time_decode(depth, n_decode))
            after = tiers.stats if tiers is not None else StreamStats()
            n_read += after.read_bytes - before.read_bytes
            stall_s += after.stall_s - before.stall_s
        read_after = 0.0 if streams else _read_bandwidth(self.loaded.backend)
        read_gb_s = max(read_before, read_after) / 1e9 or None
        n_steps = max(1, repetitions * n_decode)
        decode_tok_s, decode_min, decode_max = _rates(n_decode, decode_s)
        prefill_tok_s, prefill_min, prefill_max = _rates(n_prompt, prefill_s)
        n_bytes = step_bytes(self.loaded.weights)
        weight_gb_s = None if decode_tok_s is None else n_bytes * decode_tok_s / 1e9
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
            kv_bytes=step_kv_bytes(self.loaded.model.config, self.precision, depth, n_decode),
            weight_gb_s=weight_gb_s,
            read_gb_s=read_gb_s,
            bandwidth_share=weight_gb_s / read_gb_s if weight_gb_s and read_gb_s else None,
            predicted_decode_tok_s=None if tiers is None else tiers.predicted_decode_tok_s,
            nvme_read_bytes=n_read // n_steps,
            h2d_bytes=0,
            stall_ms=stall_s * 1000 / n_steps,
            disk_gb_s=median(disk) / 1e9 if disk else None,
        )

    def _time_prefill(self, n_prompt: int) -> float:
        """Seconds to run a prompt from an empty context."""
        self.loaded.session.ids.clear()
        start = perf_counter()
        self._prefill_to(n_prompt)
        return perf_counter() - start

    def _time_decode(self, depth: int, n_decode: int) -> float:
        """Seconds to run ids one by one after `depth` others, choosing the best next one each time."""
        self._fill(depth)
        session = self.loaded.session
        start = perf_counter()
        for token_id in self.ids[depth : depth + n_decode]:
            decode_step(self.loaded.model, session, token_id, self.cancel).argmax()
        return perf_counter() - start

    def _fill(self, depth: int) -> None:
        """Make the session hold the first `depth` ids."""
        del self.loaded.session.ids[depth:]
        self._prefill_to(depth)

    def _prefill_to(self, n_ids: int) -> None:
        """Run what the session lacks of the first `n_ids`."""
        session = self.loaded.session
        missing = self.ids[len(session.ids) : n_ids]
        if missing:
            prefill(
                self.loaded.model,
                session,
                missing,
                chunk=self.loaded.chunk,
                cancel=self.cancel,
                on_progress=lambda n_done: None,
            )


def step_bytes(weights: ModelWeights) -> int:
    """Bytes of the matrices that a decode step reads: all but an embedding that is not also the head."""
    unread = "token_embd.weight" if "output.weight" in weights else ""
    return sum(data.size for name, (data, shape, _) in weights.items() if len(shape) == 2 and name != unread)


def step_kv_bytes(config: ModelConfig, precision: Precision, depth: int, n_decode: int) -> int:
    """Bytes of keys and values that one of `n_decode` steps from `depth` on sees, on average; 0 for none."""
    if not n_decode:
        return 0
    n_seen = sum(
        min(position + 1, config.window(layer) or position + 1)
        for layer in range(config.n_layers)
        for position in range(depth, depth + n_decode)
    )
    return kv_bytes(config, n_seen, precision) // config.n_layers // n_decode


def _read_bandwidth(backend: Backend) -> float:
    """Bytes per second of plain reads on the backend's threads; 0 for NumPy, which has no such read."""
    if backend.name == NumpyBackend.name:
        return 0.0
    from kernels.bench import read_bandwidth  # the C extension

    return read_bandwidth(backend.threads)


def _rates(n_tokens: int, seconds: list[float]) -> tuple[float, float, float] | tuple[None, None, None]:
    """Tokens per second: median, lowest, highest."""
    if not n_tokens:
        return None, None, None
    return n_tokens / median(seconds), n_tokens / max(seconds), n_tokens / min(seconds)


def _check_products(weights: ModelWeights, precision: Precision) -> None:
    """Compare one matrix of every quant type and width with the oracle."""
    from kernels.verification import product_is_right  # the C extension

    seen = set()
    for name, (data, shape, quant_type) in weights.items():
        kind = quant_type, shape[-1]
        if len(shape) == 1 or kind in seen:
            continue
        seen.add(kind)
        if not product_is_right(data, *kind, float_precision=precision is Precision.FLOAT):
            raise KernelError(
                f"the product with {name} ({quant_type.name}) differs from its oracle on this processor: "
                "nothing was timed; please report it with the output of `tiercel --version`"
            )
