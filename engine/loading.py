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
from engine.backends.select import select_backend
from engine.cancel import CancelToken
from engine.chat_template import find_template
from engine.config import LoadOptions
from engine.errors import CancelledError, ContextError, GGUFError
from engine.events import ModelInfo
from engine.gguf import GGUFFile, open_gguf
from engine.kv_cache import kv_bytes
from engine.machine import available_memory
from engine.model import Transformer
from engine.model_config import ModelConfig, read_model_config
from engine.prompt import PromptEncoder
from engine.session import Session
from engine.tokenizer import Tokenizer, load_tokenizer
from engine.weights import ModelWeights

DEFAULT_CONTEXT = 4096
_SCRATCH_BYTES = 256 << 20
"""Activations of a chunk of 512, logits and tokenizer, rounded up."""
_CANCEL_POLL_S = 0.05

OnProgress = Callable[[str, float], None]
"""Called with what loading is doing, in words, and how far it is, 0 to 1."""


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


def load_model(options: LoadOptions, on_progress: OnProgress, cancel: CancelToken) -> LoadedModel:
    """Open, check and allocate. Raises the engine's errors; CancelledError when told to stop."""
    on_progress("reading the header", 0.0)
    gguf = open_gguf(options.path)
    config = read_model_config(gguf)
    weights = ModelWeights(gguf, config)
    max_context, notices = _choose_context(gguf, config, options)
    options = replace(options, chunk=min(options.chunk, max_context))
    memory_notices = _check_memory(gguf, config, options, max_context)
    pool = ThreadPoolExecutor(1, "tokenizer")
    building = pool.submit(load_tokenizer, gguf)
    pool.shutdown(wait=False)  # when loading is stopped it ends by itself, with nobody waiting
    if not memory_notices:
        _read_weights(weights, on_progress, cancel)
    on_progress("building the tokenizer", 0.9)
    tokenizer = _await(building, cancel)
    if tokenizer.vocab_size != config.vocab_size:
        raise GGUFError(
            f"{gguf.path}: {tokenizer.vocab_size} tokens beside {config.vocab_size} rows of "
            "token_embd.weight; get another copy of the model"
        )
    texts = ["" if i is None else tokenizer.token_text(i) for i in (tokenizer.bos_id, tokenizer.eos_id)]
    template, origin = find_template(gguf, bos_token=texts[0], eos_token=texts[1])
    on_progress("preparing the backend", 0.95)
    try:
        backend, backend_notices = select_backend(weights, config, options)
        kv = backend.new_kv(max_context)
    except MemoryError:
        raise ContextError(
            "memory ran out while the model was made ready: close other programs, or use a smaller context "
            "(-c) or fewer threads (-t)"
        ) from None
    return LoadedModel(
        info=_describe(gguf, config, weights, max_context, kv.n_bytes, template is not None, origin),
        weights=weights,
        model=Transformer(config, backend),
        tokenizer=tokenizer,
        encoder=None if template is None else PromptEncoder(tokenizer, template),
        session=Session(kv),
        chunk=options.chunk,
        notices=notices + memory_notices + backend_notices,
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


def _check_memory(
    gguf: GGUFFile, config: ModelConfig, options: LoadOptions, max_context: int
) -> tuple[str, ...]:
    """Refuse a context that does not fit, before anything is allocated.

    Weights that do not fit stay mapped: the model still runs, read from disk again and again, with a notice.
    """
    free = available_memory() - _scratch_bytes(config, options.chunk)
    needed = kv_bytes(config, max_context, options.precision)
    weights_fit = gguf.n_bytes < free
    room = free - gguf.n_bytes if weights_fit else free
    if needed > room:
        per_token = kv_bytes(config, 1, options.precision)
        beside = f" beside the model's {gguf.n_bytes / 1e9:.1f} GB" if weights_fit else ""
        raise ContextError(
            f"a context of {max_context} tokens needs {needed / 1e9:.1f} GB{beside}, and "
            f"{max(0, room) / 1e9:.1f} GB of memory are free: use a context of {max(0, room) // per_token} "
            "or less (-c)"
        )
    if weights_fit:
        return ()
    return (
        f"the model ({gguf.n_bytes / 1e9:.1f} GB) is larger than the memory that is free "
        f"({max(0, free) / 1e9:.1f} GB): it is read from disk while it runs, slowly",
    )


def _scratch_bytes(config: ModelConfig, chunk: int) -> int:
    """What computing takes beside weights and cache; per token as in `model_new` of kernels/cpu/forward.c."""
    c = config
    q_size, kv_size = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    floats = 3 * c.hidden_size + 2 * (q_size + kv_size + c.ffn_size)
    rounded = 2 * max(c.hidden_size, c.ffn_size, q_size)
    return _SCRATCH_BYTES + max(0, chunk - 512) * (4 * floats + rounded)


def _read_weights(weights: ModelWeights, on_progress: OnProgress, cancel: CancelToken) -> None:
    """Bring the weights to memory, so that no token waits for the disk."""
    total = sum(weight.data.size for weight in weights.values())
    for done in weights.move_to_memory():
        if cancel.cancelled:
            raise CancelledError("loading was stopped")
        on_progress("reading the weights", 0.9 * min(1.0, done / total))


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
