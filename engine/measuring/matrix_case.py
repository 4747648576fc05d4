"""What the researcher's bench is asked for and what it answers: cases, how they are measured, and figures.

Pure data, and which cases are worth looking at. Knows no models; `bench_matrix` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config import DecodingOptions, LoadOptions


@dataclass(frozen=True, slots=True)
class Case:
    """One combination of settings."""

    options: LoadOptions
    """Those that a model is opened with; the context is the bench's affair."""
    decoding: DecodingOptions


@dataclass(frozen=True, slots=True)
class MatrixTask:
    """What every case is measured on."""

    text: str
    """Is scored."""
    prompt: str
    """Is continued, for the rates."""
    text_name: str = "the text"
    """For people."""
    decode_tokens: int = 64
    """Of a reply."""
    repetitions: int = 3
    """Replies to take medians of."""
    temperature: float = 0.0
    seed: int = 0
    """Of the sampler; greedy replies do not depend on it."""
    window: int = 512
    """Tokens that a token is scored in, at most."""
    scored_tokens: int = 1024
    """Of the text, at most."""
    reference: Path | None = None
    """The model file that all are compared with, in the fast precision with 16-bit KV and nothing left out;
    None compares each file with itself so."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What was measured of a case; None is what was not, and `error` says why."""

    error: str = ""
    """Why there are no figures, or some of them; empty when all is well."""
    quantisation: str | None = None
    """The quant type that holds most bytes."""
    device: str | None = None
    """Processor or GPU, and backend."""
    plan: str | None = None
    """Where the weights are and who computes them, in words."""
    predicted_decode_tok_s: float | None = None
    """What the plan promises of steps with all blocks and without drafts."""
    vram_bytes: int | None = None
    """GPU memory that the model takes."""
    ram_bytes: int | None = None
    """Memory of the blocks that stay."""
    skipped_blocks: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    """Of a reply; fewer than asked for where the model ended it."""
    prefill_tok_s: float | None = None
    decode_tok_s: float | None = None
    """Median of the replies."""
    decode_tok_s_min: float | None = None
    decode_tok_s_max: float | None = None
    nvme_read_bytes: int | None = None
    """Read from disk for each token of a reply, its prompt included."""
    h2d_bytes: int | None = None
    """Copied to a GPU, likewise."""
    drafted_tokens: int | None = None
    """In all replies."""
    accepted_tokens: int | None = None
    acceptance_rate: float | None = None
    """accepted_tokens / drafted_tokens; None where nothing was drafted."""
    agreeing_tokens: int | None = None
    """Of a greedy reply with drafts, the ids before the first that differs from one without; None without
    drafts. On the CPU all agree, or nothing is timed."""
    perplexity: float | None = None
    perplexity_change: float | None = None
    """Against the reference, with its 95 % confidence interval."""
    perplexity_low: float | None = None
    perplexity_high: float | None = None
    kl_mean: float | None = None
    """KL64 from the reference, nats."""
    kl_p99: float | None = None
    kl_max: float | None = None
    top1: float | None = None
    """Share of positions with the same most probable token."""
    scored_tokens: int | None = None


def pareto_front(results: Sequence[CaseResult]) -> list[int]:
    """Which results no other one beats in both speed and KL, fastest first, as indices.

    Of equals the first one stands for all.
    """
    figures = [
        (-result.decode_tok_s, result.kl_mean, index)
        for index, result in enumerate(results)
        if result.decode_tok_s is not None and result.kl_mean is not None
    ]
    front: list[int] = []
    nearest = float("inf")
    for _, kl, index in sorted(figures):
        if kl < nearest:
            nearest = kl
            front.append(index)
    return front
