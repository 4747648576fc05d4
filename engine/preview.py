"""What loading a model would give, from its header alone: facts, memory, and the speed that is planned.

Knows the same rules as `loading`; reads no weights, measures nothing and takes no memory. What stands in
the way is a line of text and never an exception, so that a list can show every file it finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from engine.backends.gpus import CPU, choose_gpu
from engine.cancel import CancelToken
from engine.chat_template import find_template
from engine.config import LoadOptions
from engine.errors import BudgetError, DeviceError, EngineError
from engine.gguf import GGUFFile, open_gguf
from engine.gguf.cursor import printable
from engine.machine import available_memory, physical_cores
from engine.model_config import ModelConfig, read_model_config
from engine.requirements import choose_context, main_type, n_parameters, room_for_weights
from engine.tiers.blocks import Block, slot_bytes_for, weight_blocks
from engine.tiers.budget import DEFAULT, Budget
from engine.tiers.planner import plan
from engine.tiers.rates import Rates
from engine.weights import ModelWeights

_TEMPLATE_KEY = "tokenizer.chat_template"
_MOST_TOKENS = 1 << 20
"""No vocabulary is larger: an id beyond it is a fault, not a reason to decode for seconds."""


@dataclass(frozen=True, slots=True)
class ModelPreview:
    """What is known of a model that is not loaded; texts come from its file and are untrusted."""

    path: Path
    name: str
    """The name in the file, else that of the file."""
    architecture: str = ""
    n_layers: int = 0
    n_parameters: int = 0
    quantisation: str = ""
    """The tensor type that most of its bytes have."""
    file_bytes: int = 0
    """All parts of a split model."""
    training_context: int = 0
    """Tokens the model was trained for; 0 where the file does not say."""
    max_context: int = 0
    """Tokens that would be reserved."""
    license: str = ""
    has_template: bool = False
    """False is a base model, which continues plain text."""
    ram_bytes: int = 0
    """Memory it would take, everything counted."""
    pass_read_bytes: int = 0
    """Bytes of weights that would be read from disk for every token; 0 where all fit the memory."""
    kv_bytes: int = 0
    """The cache's part of `ram_bytes` or `vram_bytes`."""
    predicted_decode_tok_s: float | None = None
    """Tokens per second from an empty context; None until this machine has been measured."""
    limited_by: str = ""
    """What decoding would wait for, in words; empty without a prediction."""
    vram_bytes: int = 0
    """GPU memory it would take, everything counted; 0 where the CPU would compute."""
    device: str = ""
    """The GPU that would compute, such as NVIDIA H200; empty for the CPU."""
    problem: str = ""
    """Why it cannot be loaded, in one line without its path; empty where it can."""


def memory_for_model(budget: Budget | None, freed_bytes: int = 0) -> int:
    """Bytes that a model may take now under this budget, everything counted; None is the default budget."""
    return (budget or DEFAULT).resolve(available_memory() + freed_bytes)


def preview_model(
    path: Path, options: LoadOptions, freed_bytes: int = 0, freed_vram_bytes: int = 0
) -> ModelPreview:
    """Return what loading the model at `path` with `options` would give; the path in `options` is not used.

    `freed_bytes` and `freed_vram_bytes`: memory, of the GPU in the second case, that is taken now and will be
    free by then, such as that of the model loaded now. Raises nothing: what is wrong is `problem`.
    """
    preview = ModelPreview(path, printable(path.stem))
    try:
        with open_gguf(path) as gguf:
            preview = _describe(gguf, preview)
            return _plan(gguf, preview, options, available_memory() + freed_bytes, freed_vram_bytes)
    except EngineError as error:
        return replace(preview, problem=_without_path(str(error), path))


def _without_path(text: str, path: Path) -> str:
    """Drop the path that messages about files begin with: a list of files shows it already."""
    for shown in (str(path), printable(str(path))):
        text = text.removeprefix(f"{shown}: ")
    return text


def _describe(gguf: GGUFFile, preview: ModelPreview) -> ModelPreview:
    """The facts that need no support of the architecture."""
    architecture = _text(gguf, "general.architecture")
    return replace(
        preview,
        name=_text(gguf, "general.name") or preview.name,
        architecture=architecture,
        n_layers=_count(gguf, f"{architecture}.block_count"),
        n_parameters=n_parameters(gguf),
        quantisation=main_type(gguf),
        file_bytes=gguf.n_bytes,
        training_context=_count(gguf, f"{architecture}.context_length"),
        license=_text(gguf, "general.license"),
        has_template=_has_template(gguf),
    )


def _text(gguf: GGUFFile, key: str) -> str:
    value = gguf.metadata.get(key)
    return value if isinstance(value, str) else ""


def _count(gguf: GGUFFile, key: str) -> int:
    value = gguf.metadata.get(key)
    return value if type(value) is int and value > 0 else 0


def _has_template(gguf: GGUFFile) -> bool:
    """Whether it can chat. Of the vocabulary only what comes before the end-of-text token is decoded."""
    if _text(gguf, _TEMPLATE_KEY):
        return True
    with suppress(EngineError):
        eos_id = gguf.get_int("tokenizer.ggml.eos_token_id", -1)
        tokens = gguf.get_array("tokenizer.ggml.tokens", None)
        if tokens is not None and 0 <= eos_id < min(len(tokens), _MOST_TOKENS):
            eos_token = str(tokens.first(eos_id + 1)[eos_id])
            return find_template(gguf, bos_token="", eos_token=eos_token)[0] is not None
    return False


def _plan(
    gguf: GGUFFile,
    preview: ModelPreview,
    options: LoadOptions,
    available: int,
    freed_vram_bytes: int,
) -> ModelPreview:
    """What loader and planner would do with so much memory. Raises EngineError for what they refuse."""
    config = read_model_config(gguf)
    weights = ModelWeights(gguf, config)
    max_context, _ = choose_context(config, options)
    options = replace(
        options, chunk=min(options.chunk, max_context), threads=options.threads or physical_cores()
    )
    preview = replace(preview, max_context=max_context, training_context=config.training_context)
    if options.device != CPU:
        on_gpu = _plan_on_gpu(weights, config, preview, options, freed_vram_bytes)
        if on_gpu is not None:
            return on_gpu
    blocks = weight_blocks(weights.gguf, config)
    room = room_for_weights(blocks, config, options, max_context, available)
    streams = sum(map(slot_bytes_for, blocks)) > room.weights
    placed = plan(blocks, room.weights, _known_rates(gguf, blocks, options, streams))
    seconds = placed.predicted_decode_s
    return replace(
        preview,
        ram_bytes=placed.ram_bytes + room.kv + room.scratch,
        pass_read_bytes=placed.read_bytes,
        kv_bytes=room.kv,
        predicted_decode_tok_s=None if seconds is None else 1 / seconds,
        limited_by=placed.limited_by,
    )


def _plan_on_gpu(
    weights: ModelWeights,
    config: ModelConfig,
    preview: ModelPreview,
    options: LoadOptions,
    freed_vram_bytes: int,
) -> ModelPreview | None:
    """What the model would take on a GPU; None where the CPU would compute.

    Raises DeviceError and BudgetError where a GPU was asked for.
    """
    try:
        facts = choose_gpu(options.device)
        from engine.backends.cuda_model import Wanted  # the launchers of kernels, of no use without a GPU
        from engine.backends.cuda_plan import plan_model, settings_for

        wanted = Wanted(weights, config, options, preview.max_context)
        free = facts.free_bytes + freed_vram_bytes
        plan = plan_model(facts, wanted, settings_for(facts, options), free)
    except (DeviceError, BudgetError):
        if options.device is not None:
            raise
        return None
    except ValueError as error:
        if options.device is not None:
            raise DeviceError(f"the GPU kernels do not take this model: {error}") from error
        return None
    return replace(preview, vram_bytes=plan.n_bytes, kv_bytes=plan.kv, device=facts.name)


def _known_rates(
    gguf: GGUFFile, blocks: Sequence[Block], options: LoadOptions, streams: bool
) -> Rates | None:
    """What was measured on this machine before, None where something that matters was not."""
    if options.rates_file is None or options.threads is None:
        return None
    try:
        from engine.tiers.probe import model_rates
    except ImportError:  # the C kernels were not built
        return None
    try:
        rates, _ = model_rates(
            gguf.part_paths[0] if streams else None,
            {piece.quant_type for block in blocks for piece in block.pieces},
            options.threads,
            options.rates_file,
            measure=False,
            cancel=CancelToken(),
        )
    except (ImportError, OSError):  # the kernels again, or a file that was removed meanwhile
        return None
    return rates
