"""What a model takes before it is loaded: its context, the memory beside its weights, and facts about it.

Knows sizes only: from the header, the chosen options and the memory that is free; nothing is allocated.
Called by `loading`, which then takes that memory, and by `preview`, which only tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.config import DEFAULT_CHUNK, LoadOptions
from engine.errors import BudgetError, ContextError
from engine.events import ModelInfo
from engine.gguf import GGUFFile, TensorInfo
from engine.kv_cache import kv_bytes
from engine.model_config import ModelConfig
from engine.tiers.blocks import Block, slot_bytes_for
from engine.tiers.budget import DEFAULT, shown_bytes
from engine.tiers.planner import least_memory
from engine.weights import IGNORED
from kernels.quant_types import QuantType

DEFAULT_CONTEXT = 8192
"""Tokens; the smaller of this and the model's own where nothing was chosen."""
_FIXED_BYTES = 16 << 20
"""Threads' own memory, RoPE tables and the like, rounded up."""
_TOKENIZER_BYTES = 1 << 10
"""For each entry of the vocabulary, measured and rounded up."""


class Room(NamedTuple):
    """How the memory granted to a model is divided."""

    weights: int
    """Bytes left for weights and the ring that they are streamed through."""
    scratch: int
    """Bytes for computing."""
    kv: int
    """Bytes of the cache."""
    notices: tuple[str, ...]
    """What a person should know."""


def choose_context(config: ModelConfig, options: LoadOptions) -> tuple[int, tuple[str, ...]]:
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


def room_for_weights(
    blocks: Sequence[Block], config: ModelConfig, options: LoadOptions, max_context: int, available: int
) -> Room:
    """Divide what the budget grants of the `available` bytes.

    Refuses what does not fit, before anything is allocated: ContextError, BudgetError.
    """
    budget, notices = _granted(options, available)
    scratch = scratch_bytes(config, min(options.chunk or DEFAULT_CHUNK, max_context))
    needed = kv_bytes(config, max_context, options.precision)
    room = budget - scratch - needed
    # Where all weights fit, the least that works is of no interest, and finding it weighs 257 placements.
    if room < sum(map(slot_bytes_for, blocks)) and room < (least := least_memory(blocks)):
        fits = max(0, budget - scratch - least) // kv_bytes(config, 1, options.precision)
        shorter = f"use a context of {fits} or less (-c), or " if fits else ""
        taken = (options.ram_budget or DEFAULT).taken
        enough = -(-(scratch + needed + least + taken) // 10**6)  # rounded up: what is named must do
        beside = f" beside the {shown_bytes(taken)} of the draft model" if taken else ""
        error = ContextError if needed > budget - scratch else BudgetError
        raise error(
            f"a context of {max_context} tokens needs {shown_bytes(needed)} beside {shown_bytes(scratch)} "
            f"for computing and {shown_bytes(least)} for reading weights as they are used, and the memory "
            f"budget is {shown_bytes(budget)}{beside}: {shorter}give at least {enough}M (--ram-budget)"
        )
    return Room(room, scratch, needed, notices)


def room_for_gpu_host(config: ModelConfig, options: LoadOptions, max_context: int, available: int) -> Room:
    """Divide what the budget grants beside a GPU; nothing is left for weights where that is too little.

    No cache is counted: the planner takes that of layers whose KV is in memory from what is for weights.
    """
    budget, notices = _granted(options, available)
    scratch = scratch_bytes(config, min(options.chunk or DEFAULT_CHUNK, max_context))
    return Room(max(0, budget - scratch), scratch, 0, notices)


def _granted(options: LoadOptions, available: int) -> tuple[int, tuple[str, ...]]:
    """Bytes of the memory budget, and a notice where that is more than there is."""
    budget = (options.ram_budget or DEFAULT).resolve(available)
    if budget <= available:
        return budget, ()
    return budget, (
        f"the memory budget of {shown_bytes(budget)} is more than the {shown_bytes(available)} that are "
        "available: the rest of the system will be pushed out of memory",
    )


def scratch_bytes(config: ModelConfig, chunk: int) -> int:
    """What computing takes beside weights and cache; per token as in `model_new` of kernels/cpu/forward.c."""
    c = config
    q_size, kv_size = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    floats = 3 * c.hidden_size + 2 * (q_size + kv_size + c.ffn_size)
    rounded = 2 * max(c.hidden_size, c.ffn_size, q_size)
    return _FIXED_BYTES + chunk * (4 * floats + rounded) + c.vocab_size * (_TOKENIZER_BYTES + 2 * 4)


def main_type(gguf: GGUFFile) -> str:
    """Name of the tensor type that most bytes of the model have, empty where it has no tensors."""
    sizes: Counter[str] = Counter()
    for tensor in _of_the_model(gguf):
        sizes[tensor.type_name] += tensor.n_bytes
    return sizes.most_common(1)[0][0] if sizes else ""


def main_weight_type(blocks: Sequence[Block]) -> QuantType:
    """The quant type that most bytes of these blocks have."""
    sizes: Counter[QuantType] = Counter()
    for block in blocks:
        for piece in block.pieces:
            sizes[piece.quant_type] += piece.n_bytes
    return sizes.most_common(1)[0][0]


def n_parameters(gguf: GGUFFile) -> int:
    """Elements of all the model's tensors."""
    return sum(tensor.n_elements for tensor in _of_the_model(gguf))


def describe_model(
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


def _of_the_model(gguf: GGUFFile) -> Iterator[TensorInfo]:
    return (tensor for name, tensor in gguf.tensors.items() if not name.startswith(IGNORED))
