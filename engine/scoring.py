"""A model file scored: over a text, or against reference logits. Joins loading and `evaluate`.

Knows which context a measure needs. Called by `tiercel perplexity`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.cancel import CancelToken
from engine.config import LoadOptions
from engine.evaluate import (
    Comparison,
    Perplexity,
    compare_with_reference,
    measure_perplexity,
    read_reference,
)
from engine.loading import load_model

OnNotices = Callable[[tuple[str, ...]], None]
"""Called with what a person should know about how the model runs, before it does."""


def score_text(
    options: LoadOptions, text: str, *, window: int, cancel: CancelToken, on_notices: OnNotices
) -> Perplexity:
    """Perplexity of a text in windows of `window` tokens, fed in chunks of `options.chunk`."""
    loaded = load_model(replace(options, context=window), lambda stage, progress: None, cancel)
    try:
        on_notices(loaded.notices)
        return measure_perplexity(
            loaded.model,
            loaded.tokenizer.encode(text),
            loaded.session.kv,
            cancel,
            window=window,
            chunk=loaded.chunk,
            bos_id=loaded.tokenizer.bos_id if loaded.tokenizer.add_bos else None,
        )
    finally:
        loaded.close()


def score_against_reference(
    options: LoadOptions, path: Path, *, cancel: CancelToken, on_notices: OnNotices
) -> Comparison:
    """Distance to the reference logits in the file at `path`, ids fed in chunks of `options.chunk`."""
    reference = read_reference(path)
    context = len(reference.token_ids)
    loaded = load_model(replace(options, context=context), lambda stage, progress: None, cancel)
    try:
        on_notices(loaded.notices)
        reference.check_vocabulary(loaded.info.vocab_size)
        return compare_with_reference(loaded.model, reference, loaded.session.kv, cancel, chunk=loaded.chunk)
    finally:
        loaded.close()
