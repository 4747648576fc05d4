"""Chat templates we know: the checksums of some that models ship, and our own for files that have none.

A known template is a short loop over the messages and runs in this process; others get one of their own.
A fallback is taken only where architecture and end-of-text token together say which turns the model was
trained on. Data only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

_SHIPPED = frozenset(
    {
        "cbc1d50f777ec029b33f53b23d7a224cceb65bcc8c7fac54946dbb56514e4d1e",  # SmolLM3-3B
        "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5",  # Qwen3-0.6B
        "55b2f4a26ac9ee719330a61a0c39d9e538b0e9322212f048326318cff4f8674a",  # Qwen2.5-7B-Instruct
        "dd2675619a64a449cdcdd2b93e605a0a50764cee41e344f244752bc93643936c",  # DeepSeek-R1-Distill-Llama-8B
        "ecd6ae513fe103f0eb62e8ab5bfa8d0fe45c1074fa398b089c93a7e70c15cfd6",  # gemma-2-2b-it
        "93c0e9aa3629bbd77e68dbc0f5621f6e6b23aa8d74b932595cdb8d64684526d7",  # Llama-3.1-8B, -3.3-70B-Instruct
        "78d976a442bcde2f0be15aafbb8e3050e1104f86732266f68403251b89982a90",  # Phi-3.5-mini-instruct
        "e7deee034838db2bfc7487788a3013d8a307ab69f72f3c54a85f06fd76007d4e",  # Mistral-Nemo-Instruct-2407
        "a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146",  # gpt-oss-120b
        "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788",  # SmolLM2-135M-Instruct
    }
)

_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
_GEMMA = (
    # Gemma was trained without a system role: its text opens the first turn.
    "{{ bos_token }}"
    "{% set opening = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}"
    "{% for m in (messages[1:] if opening else messages) %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}"
    "{{ (opening if loop.first else '') + m.content | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Fallback:
    """A template for files that have none."""

    architectures: frozenset[str]
    """Values of `general.architecture`."""
    eos_token: str
    """Text of the end-of-text token: a base model has another."""
    source: str


FALLBACKS = (
    Fallback(frozenset({"llama", "qwen2", "qwen3", "mistral"}), "<|im_end|>", _CHATML),
    Fallback(frozenset({"llama"}), "<|eot_id|>", _LLAMA_3),
    Fallback(frozenset({"gemma", "gemma2", "gemma3"}), "<end_of_turn>", _GEMMA),
)


def checksum(source: str) -> str:
    """Return the SHA-256 of a template's text, without the last line end, which Jinja drops as well."""
    return hashlib.sha256(source.removesuffix("\n").encode("utf-8", "surrogatepass")).hexdigest()


KNOWN = _SHIPPED | {checksum(fallback.source) for fallback in FALLBACKS}
"""Checksums of the templates that run in this process."""
