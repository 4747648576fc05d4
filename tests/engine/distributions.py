"""Shared by the tests of measures: a model's own distributions, and files of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engine.cancel import CancelToken
from engine.model import Transformer
from engine.skipping.skip_choice import NOTHING, SkipSet

IDS = [int(i) for i in np.random.default_rng(3).integers(3, 320, 70)]


def logprobs(model: Transformer, ids: list[int], skip: SkipSet = NOTHING) -> np.ndarray:
    """Of the next token after each id, [T, V]."""
    hidden = model.hidden(ids, 0, model.backend.new_kv(len(ids)), CancelToken(), skip)
    logits = model.logits(hidden, CancelToken()).astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def write_reference(path: Path, model: Transformer, **changes: object) -> Path:
    ours = logprobs(model, IDS)
    best = np.argsort(-ours, axis=1)[:, :64].astype(np.int32)
    arrays: dict[str, object] = {
        "token_ids": np.array(IDS, np.int32),
        "top1": best[:, 0],
        "top_ids": best,
        "top_logprobs": np.take_along_axis(ours, best, axis=1).astype(np.float32),
    }
    np.savez(path, **{**arrays, **changes})  # type: ignore[arg-type]
    return path
