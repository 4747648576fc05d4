"""From a file to a model that can be asked: checks, memory, tokenizer, template, backend, cache.

Knows the order of the steps and tells where it is; does not know threads of the interface. Everything a reply
needs is allocated here, so that a model that has loaded does not run out of memory later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from engine.backends.base import Backend
from engine.backends.select import open_backend
from engine.cancel import CancelToken
from engine.chat_template import find_template
from engine.config import LoadOptions
from engine.errors import BudgetError, CancelledError, ContextError, GGUFError
from engine.events import ModelInfo, TierSnapshot
from engine.gguf import GGUFFile, open_gguf
from engine.kv_cache import kv_bytes
from engine.machine import available_memory, physical_cores
from engine.model import Transformer
from engine.model_config import ModelConfig, read_model_config
from engine.prompt import PromptEncoder
from engine.session import Session
from engine.tiers.blocks import weight_blocks
from engine.tiers.budget import DEFAULT, shown_bytes
from engine.tiers.planner import least_memory
from engine.tokenizer import Tokenizer, load_tokenizer
from engine.weights import ModelWeights

DEFAULT_CONTEXT = 4096
_FIXED_BYTES = 16 << 20
"""Threads' own memory, RoPE tables and the like, rounded up."""
_TOKENIZER_BYTES = 1 << 10
"""For each entry of the vocabulary, measured and rounded up."""
_CANCEL_POLL_S = 0.05

OnProgress = Callable[[str, float], None]
"""Called with what loading is doing, in words, and how far it is, 0 to 1."""
OnTiers = Callable[[TierSnapshot], None]
"""Called when a weight block was read or moved, also while the model runs."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything that answering needs."""

    info: ModelInfo
    weights: ModelWeights
    model: Transformer
    tokenizer: Tokenizer
    encoder: PromptEncoder | None
    """None for a base model."""
    session: Session
    chunk: int
    notices: tuple[str, ...]

    @property
    def backend(self) -> Backend:
        """What computes it."""
        return self.model.backend

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
    max_context, notices = _choose_context(gguf, config, options)
    options = replace(
        options, chunk=min(options.chunk, max_context), threads=options.threads or physical_cores()
    )
    room, budget_notices = _room_for_weights(gguf, config, options, max_context)
    pool = ThreadPoolExecutor(1, "tokenizer")
    building = pool.submit(load_tokenizer, gguf)
    pool.shutdown(wait=False)  # when loading is stopped it ends by itself, with nobody waiting
    try:
        backend, backend_notices = open_backend(weights, config, options, room, on_progress, on_tiers, cancel)
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
        info=_describe(gguf, config, weights, max_context, kv.n_bytes, template is not None, origin),
        weights=weights,
        model=Transformer(config, backend),
        tokenizer=tokenizer,
        encoder=None if template is None else PromptEncoder(tokenizer, template),
        session=Session(kv),
        chunk=options.chunk,
        notices=notices + budget_notices + backend_notices,
    )


def _memory_ran_out() -> ContextError:
    return ContextError(
        "memory ran out while the model was made ready: close other programs, or use a smaller context "
        "(-c), fewer threads (-t) or a smaller memory budget (--ram-budget)"
    )


def _choose_context(gguf: GGUFFile, config: ModelConfig, options: LoadOptions) -> tuple[int, tuple[str, ...]]:
    """The context to reserve, and a notice where it is more than the model was trained for."""
    if options.context is None:
        return min(DEFAULT_CONTEXT, config.training_context), ()
    if options.context < 1:
        raise ContextError(f"a context of {options.context} tokens is too small: give at least 1")
    if options.context > config.training_context:
        return options.context, (
            f"the context of {options.context} tokens is longer than the {config.training_context} that "
            "the model was trained for: late text may be poor",
        )
    return options.context, ()


def _room_for_weights(
    gguf: GGUFFile, config: ModelConfig, options: LoadOptions, max_context: int
) -> tuple[int, tuple[str, ...]]:
    """Bytes that the budget leaves for weights beside everything else, and what a person should know.

    Refuses what does not fit, before anything is allocated: ContextError, BudgetError.
    """
    available = available_memory()
    budget = (options.ram_budget or DEFAULT).resolve(available)
    notices: tuple[str, ...] = ()
    if budget > available:
        notices = (
            f"the memory budget of {shown_bytes(budget)} is more than the {shown_bytes(available)} that are "
            "available: the rest of the system will be pushed out of memory",
        )
    scratch = _scratch_bytes(config, options.chunk)
    needed = kv_bytes(config, max_context, options.precision)
    least = least_memory(weight_blocks(gguf, config))
    if scratch + needed + least > budget:
        fits = max(0, budget - scratch - least) // kv_bytes(config, 1, options.precision)
        shorter = f"use a context of {fits} or less (-c), or " if fits else ""
        enough = -(-(scratch + needed + least) // 10**6)  # rounded up: what is named must do
        error = ContextError if needed > budget - scratch else BudgetError
        raise error(
            f"a context of {max_context} tokens needs {shown_bytes(needed)} beside {shown_bytes(scratch)} "
            f"for computing and {shown_bytes(least)} for reading weights as they are used, and the memory "
            f"budget is {shown_bytes(budget)}: {shorter}give at least {enough}M (--ram-budget)"
        )
    return budget - scratch - needed, notices


def _scratch_bytes(config: ModelConfig, chunk: int) -> int:
    """What computing takes beside weights and cache; per token as in `model_new` of kernels/cpu/forward.c."""
    c = config
    q_size, kv_size = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    floats = 3 * c.hidden_size + 2 * (q_size + kv_size + c.ffn_size)
    rounded = 2 * max(c.hidden_size, c.ffn_size, q_size)
    return _FIXED_BYTES + chunk * (4 * floats + rounded) + c.vocab_size * (_TOKENIZER_BYTES + 2 * 4)


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
    weights: ModelWeights,
    max_context: int,
    n_kv_bytes: int,
    has_template: bool,
    origin: str,
) -> ModelInfo:
    """The facts that people are shown."""
    sizes: Counter[str] = Counter()
    for weight in weights.values():
        sizes[weight.quant_type.name] += weight.data.size
    return ModelInfo(
        path=gguf.path,
        name=gguf.get_str("general.name", "") or gguf.path.stem,
        architecture=config.architecture,
        n_layers=config.n_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        n_parameters=sum(gguf.tensors[name].n_elements for name in weights),
        quantisation=sizes.most_common(1)[0][0],
        file_bytes=gguf.n_bytes,
        training_context=config.training_context,
        max_context=max_context,
        kv_bytes=n_kv_bytes,
        has_template=has_template,
        template_origin=origin,
    )
