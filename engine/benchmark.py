"""How fast a model runs here: prompt tokens and decoded tokens per second, time to the first token.

Measures like llama.cpp's llama-bench, so that the two can be compared: prompts of random ids, decoding from
an empty context, medians after a warm-up. Nothing is timed before the kernels have been checked against their
oracle on the model's own matrices. Knows nothing of output formats. Called by `tiercel bench`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import numpy as np

from engine.backends.numpy_backend import NumpyBackend
from engine.cancel import CancelToken
from engine.config import LoadOptions
from engine.errors import KernelError
from engine.generate import decode_step, prefill
from engine.loading import LoadedModel, load_model
from engine.machine import processor_name
from engine.weights import ModelWeights

_WARM_UP_IDS = 32


@dataclass(frozen=True, slots=True)
class Speed:
    """Medians over the repetitions."""

    prefill_tok_s: float
    """Prompt tokens per second; 0 when no prompt was asked for."""
    decode_tok_s: float
    """Decode steps per second, from an empty context."""
    ttft_ms: float
    """Until the logits of a prompt's last token are there."""
    device: str
    """Processor and backend."""
    threads: int


def measure_speed(
    options: LoadOptions, *, n_prompt: int, n_decode: int, repetitions: int, cancel: CancelToken
) -> Speed:
    """Load a model (its context is made to fit) and measure it.

    Raises the engine's errors, KernelError when a product is wrong; CancelledError when told to stop.
    """
    context = max(n_prompt, n_decode, _WARM_UP_IDS) + 1
    loaded = load_model(replace(options, context=context), lambda stage, progress: None, cancel)
    try:
        if loaded.backend.name != NumpyBackend.name:
            _check_products(loaded.weights)
        ids = np.random.default_rng(0).integers(0, loaded.info.vocab_size, context).tolist()
        _time_prefill(loaded, ids[:_WARM_UP_IDS], cancel)
        _time_decode(loaded, ids[:2], cancel)
        # In turns, so that a disturbance does not fall on one of the two alone.
        times = [
            (_time_prefill(loaded, ids[:n_prompt], cancel), _time_decode(loaded, ids[:n_decode], cancel))
            for _ in range(repetitions)
        ]
        prefill_s, decode_s = (median(column) for column in zip(*times, strict=True))
        return Speed(
            prefill_tok_s=n_prompt / prefill_s if n_prompt else 0.0,
            decode_tok_s=n_decode / decode_s if n_decode else 0.0,
            ttft_ms=prefill_s * 1000,
            device=f"{processor_name()}, {loaded.backend.name}",
            threads=loaded.backend.threads,
        )
    finally:
        loaded.close()


def _check_products(weights: ModelWeights) -> None:
    """Compare one matrix of every quant type and width with the oracle."""
    from kernels.verification import product_is_right  # the C extension

    seen = set()
    for name, (data, shape, quant_type) in weights.items():
        kind = quant_type, shape[-1]
        if len(shape) == 1 or kind in seen:
            continue
        seen.add(kind)
        if not product_is_right(data, *kind):
            raise KernelError(
                f"the product with {name} ({quant_type.name}) differs from its oracle on this processor: "
                "nothing was timed; please report it with the output of `tiercel --version`"
            )


def _time_prefill(loaded: LoadedModel, ids: list[int], cancel: CancelToken) -> float:
    """Seconds to run a prompt from an empty context."""
    loaded.session.ids.clear()
    start = perf_counter()
    if ids:
        prefill(
            loaded.model,
            loaded.session,
            ids,
            chunk=loaded.chunk,
            cancel=cancel,
            on_progress=lambda n_done: None,
        )
    return perf_counter() - start


def _time_decode(loaded: LoadedModel, ids: list[int], cancel: CancelToken) -> float:
    """Seconds to run ids one by one from an empty context, choosing the best next one each time."""
    loaded.session.ids.clear()
    start = perf_counter()
    for token_id in ids:
        decode_step(loaded.model, loaded.session, token_id, cancel).argmax()
    return perf_counter() - start
