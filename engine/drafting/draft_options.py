"""What of a model's options holds for the one that drafts for it, and what is left when that has its place.

Knows options and bytes; loads nothing. Called where models are loaded and where that is foretold.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from engine.config import ExecutorChoice, LoadOptions
from engine.errors import CancelledError, EngineError
from engine.tiers.budget import DEFAULT


def options_of_draft(options: LoadOptions, path: Path, max_context: int) -> LoadOptions:
    """How the draft model at `path` is opened: the same device and context; nothing of it placed by hand."""
    return replace(
        options,
        path=path,
        context=max_context,
        draft_model=None,
        gpu_layers=None,
        place=(),
        executor=ExecutorChoice.AUTO,
        prefetch=None,
    )


def beside_draft(options: LoadOptions, ram_bytes: int, vram_bytes: int) -> LoadOptions:
    """What is granted to a model, `options` being for its draft model too, which takes so many bytes.

    Without a budget for the GPU's memory it is a share of what the draft model leaves free.
    """
    vram = options.vram_budget
    return replace(
        options,
        ram_budget=replace(options.ram_budget or DEFAULT, taken=ram_bytes),
        vram_budget=None if vram is None else replace(vram, taken=vram_bytes),
    )


@contextmanager
def naming_the_draft() -> Iterator[None]:
    """What is wrong with the draft model is said to be wrong with that."""
    try:
        yield
    except CancelledError:
        raise
    except EngineError as error:
        raise type(error)(f"the draft model: {error}") from error
