"""From a file to a model that can be asked: checks, memory, tokenizer, template, backend, cache.

Knows the order of the steps and tells where it is; does not know threads of the interface. Everything a reply
needs is allocated here, so that a model that has loaded does not run out of memory later.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from engine.backends.base import AnyBackend
from engine.backends.select import open_backend
from engine.backends.to_open import ToOpen
from engine.backends.watcher import LoadWatcher
from engine.cancel import CancelToken
from engine.chat_template import find_template
from engine.config import LoadOptions
from engine.errors import CancelledError, ContextError, GGUFError
from engine.events import ModelInfo, TierSnapshot
from engine.gguf import GGUFFile, open_gguf
from engine.machine import available_memory
from engine.model import Transformer
from engine.model_config import ModelConfig, read_model_config
from engine.prompt import PromptEncoder
from engine.requirements import choose_context, main_type, n_parameters, room_for_weights
from engine.session import Session
from engine.tiers.blocks import weight_blocks
from engine.tokenizer import Tokenizer, load_tokenizer
from engine.weights import ModelWeights

_CANCEL_POLL_S = 0.05

OnProgress = Callable[[str, float], None]
"""Called with what loading is doing, in words, and how far it is, 0 to 1."""
OnTiers = Callable[[TierSnapshot], None]
"""Called when a weight block was read or moved, also while the model runs."""


@dataclass(slots=True)
class LoadedModel:
    """Everything that answering needs."""

    info: ModelInfo
    weights: ModelWeights
    model: Transformer
    tokenizer: Tokenizer
    encoder: PromptEncoder | None
    """None for a base model."""
    session: Session
    options: LoadOptions
    """As asked for; `budgeting` changes budgets and places."""
    lasting_notices: tuple[str, ...]
    """What a person should know for as long as the model is loaded."""
    budget_notices: tuple[str, ...]
    """What a person should know of the memory budget."""

    @property
    def notices(self) -> tuple[str, ...]:
        """Everything that a person should know now."""
        tiers = self.backend.tiers
        return (*self.lasting_notices, *self.budget_notices, *(tiers.notices if tiers is not None else ()))

    @property
    def chunk(self) -> int:
        """Prompt tokens of one pass."""
        return self.backend.chunk

    @property
    def backend(self) -> AnyBackend:
        """What computes it."""
        return self.model.backend

    def settle(self, cancel: CancelToken) -> None:
        """Wait until all weights are where they are to stay, as who measures does.

        Raises CancelledError, StreamError.
        """
        if self.backend.tiers is not None:
            self.backend.tiers.settle(cancel)

    def close(self) -> None:
        """Stop the backend's threads; weights and cache go with the last reference."""
        self.model.backend.close()


def load_model(
    options: LoadOptions,
    on_progress: OnProgress,
    cancel: CancelToken,
    on_tiers: OnTiers = lambda tiers: None,
) -> LoadedModel:
    """Open, check and allocate. Raises the engine's errors; CancelledError when told to stop."""
    on_progress("reading the header", 0.0)
    gguf = open_gguf(options.path)
    config = read_model_config(gguf)
    weights = ModelWeights(gguf, config)
    max_context, notices = choose_context(config, options)
    blocks = weight_blocks(gguf, config)
    pool = ThreadPoolExecutor(1, "tokenizer")
    building = pool.submit(load_tokenizer, gguf)
    pool.shutdown(wait=False)  # when loading is stopped it ends by itself, with nobody waiting
    try:
        backend, backend_notices, budget_notices = open_backend(
            ToOpen(weights, blocks, config, options, max_context),
            lambda: room_for_weights(blocks, config, options, max_context, available_memory()),
            LoadWatcher(on_progress, on_tiers, cancel),
        )
    except MemoryError:
        raise _memory_ran_out() from None
    try:
        on_progress("building the tokenizer", 0.9)
        tokenizer = _await(building, cancel)
        if tokenizer.vocab_size != config.vocab_size:
            raise GGUFError(
                f"{gguf.path}: {tokenizer.vocab_size} tokens beside {config.vocab_size} rows of "
                "token_embd.weight; get another copy of the model"
            )
        texts = ["" if i is None else tokenizer.token_text(i) for i in (tokenizer.bos_id, tokenizer.eos_id)]
        template, origin = find_template(gguf, bos_token=texts[0], eos_token=texts[1])
        kv = backend.new_kv(max_context)
    except BaseException as error:
        backend.close()
        if isinstance(error, MemoryError):
            raise _memory_ran_out() from None
        raise
    return LoadedModel(
        info=_describe(gguf, config, max_context, kv.n_bytes, template is not None, origin),
        weights=weights,
        model=Transformer(config, backend),
        tokenizer=tokenizer,
        encoder=None if template is None else PromptEncoder(tokenizer, template),
        session=Session(kv),
        options=options,
        lasting_notices=notices + backend_notices,
        budget_notices=budget_notices,
    )


def _memory_ran_out() -> ContextError:
    return ContextError(
        "memory ran out while the model was made ready: close other programs, or use a smaller context "
        "(-c), fewer threads (-t) or a smaller memory budget (--ram-budget)"
    )


def _await(building: Future[Tokenizer], cancel: CancelToken) -> Tokenizer:
    """Wait for the tokenizer or for being told to stop: the library that builds it cannot be stopped."""
    while True:
        try:
            return building.result(_CANCEL_POLL_S)
        except TimeoutError:
            if building.done():
                raise  # its own
            if cancel.cancelled:
                raise CancelledError("loading was stopped") from None


def _describe(
    gguf: GGUFFile,
    config: ModelConfig,
    max_context: int,
    n_kv_bytes: int,
    has_template: bool,
    origin: str,
) -> ModelInfo:
    """The facts that people are shown."""
    return ModelInfo(
        path=gguf.path,
        name=gguf.get_str("general.name", "") or gguf.path.stem,
        architecture=config.architecture,
        n_layers=config.n_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        n_parameters=n_parameters(gguf),
        quantisation=main_type(gguf),
        file_bytes=gguf.n_bytes,
        training_context=config.training_context,
        max_context=max_context,
        kv_bytes=n_kv_bytes,
        has_template=has_template,
        template_origin=origin,
    )
