"""What sets one model architecture apart from the next: one table, read by `model_config` and nobody else.

Knows the architectures' constants and where GGUF files leave a value out; does not read files.
Sources: the model cards and reference implementations of Llama 2/3, Mistral, SmolLM2 and Gemma 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RopePairing(StrEnum):
    """Which two elements of a head form one rotated pair."""

    INTERLEAVED = "interleaved"
    """Elements 2i and 2i+1 (files converted from Llama permute Q and K for this)."""
    NEOX = "neox"
    """Elements i and i + dim/2."""


class Activation(StrEnum):
    """What the gate of the feed-forward block goes through."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    """GELU in its tanh approximation."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """The differences of one architecture from a plain pre-norm transformer with GQA."""

    pairing: RopePairing
    activation: Activation
    qk_norm: bool = False
    """RMSNorm over each head of Q and K before the rotation."""
    post_norms: bool = False
    """RMSNorm on the output of the attention and feed-forward blocks, before the residual is added."""
    scale_embedding: bool = False
    """Multiply the embedding by sqrt(hidden_size)."""
    global_every: int | None = None
    """With sliding windows: layer i sees everything where (i + 1) is a multiple of this; None: no windows."""
    local_rope_base: float | None = None
    """RoPE base of windowed layers where the file does not say; they are never scaled."""
    query_scale_by_width: frozenset[int] = frozenset()
    """Layer counts whose queries are scaled by (hidden_size / n_heads)^-1/2 instead of head_dim^-1/2."""


ARCHITECTURES: dict[str, Architecture] = {
    # Llama 2, 3, 3.1 and later, SmolLM2, Mistral
    "llama": Architecture(pairing=RopePairing.INTERLEAVED, activation=Activation.SILU),
    "gemma3": Architecture(
        pairing=RopePairing.NEOX,
        activation=Activation.GELU_TANH,
        qk_norm=True,
        post_norms=True,
        scale_embedding=True,
        global_every=6,
        local_rope_base=10_000.0,
        query_scale_by_width=frozenset({62}),  # the 27B
    ),
}
