"""From a file to a model that drafts for another one: its vocabulary is compared, its weights come first.

Knows the order of the steps, as `loading` does for the model that it drafts for. It is loaded before that,
which then finds out what memory is left.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from engine.backends.select import open_backend
from engine.backends.to_open import ToOpen
from engine.backends.watcher import LoadWatcher
from engine.config import LoadOptions
from engine.drafting.draft_model import DraftModel
from engine.drafting.draft_options import naming_the_draft, options_of_draft
from engine.drafting.vocabulary import n_shared_ids
from engine.gguf import GGUFFile, open_gguf
from engine.machine import available_memory
from engine.model import Transformer
from engine.model_config import read_model_config
from engine.requirements import choose_context, describe_model, room_for_weights, scratch_bytes
from engine.session import Session
from engine.tiers.blocks import weight_blocks
from engine.weights import ModelWeights


def load_draft(
    path: Path, target: GGUFFile, options: LoadOptions, max_context: int, watcher: LoadWatcher
) -> DraftModel:
    """Load the model at `path` to draft for `target`, which has `options` and `max_context`.

    Raises the engine's errors, which name it; MemoryError.
    """
    with naming_the_draft():
        return _load(options_of_draft(options, path, max_context), target, watcher)


def _load(options: LoadOptions, target: GGUFFile, watcher: LoadWatcher) -> DraftModel:
    gguf = open_gguf(options.path)
    config = read_model_config(gguf)
    n_shared = n_shared_ids(target, gguf)
    max_context, notices = choose_context(config, options)
    weights, blocks = ModelWeights(gguf, config), weight_blocks(gguf, config)
    backend, backend_notices, budget_notices = open_backend(
        ToOpen(weights, blocks, config, options, max_context),
        lambda: room_for_weights(blocks, config, options, max_context, available_memory()),
        watcher,
    )
    with ExitStack() as opened:
        opened.callback(backend.close)
        if backend.tiers is not None:
            # The model that it drafts for finds its place by what is free then.
            backend.tiers.settle(watcher.cancel)
        kv = backend.new_kv(max_context)
        opened.pop_all()
    return DraftModel(
        info=describe_model(gguf, config, max_context, kv.n_bytes, False, "a draft model needs none"),
        model=Transformer(config, backend),
        session=Session(kv),
        n_shared=n_shared,
        computing_bytes=scratch_bytes(config, backend.chunk),
        _notices=(*notices, *backend_notices, *budget_notices),
    )
