"""What loading a model would give, from its header alone: facts, memory, and the speed that is planned.

Knows the same rules as `loading`; reads no weights, measures nothing and takes no memory. What stands in
the way is a line of text and never an exception, so that a list can show every file it finds.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from engine.cancel import CancelToken
from engine.chat_template import find_template
from engine.config import LoadOptions
from engine.drafting.forecast_draft import Forecasts, forecast_both
from engine.errors import EngineError
from engine.forecast import Memory
from engine.gguf import GGUFFile, open_gguf
from engine.gguf.cursor import printable
from engine.machine import available_memory
from engine.requirements import main_type, n_parameters
from engine.tiers.budget import DEFAULT, Budget

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
    """Memory it would take, everything and its draft model counted; 0 where a GPU holds all of it."""
    pass_read_bytes: int = 0
    """Bytes of weights that would be read from disk for every token; 0 where all fit memory and GPU."""
    kv_bytes: int = 0
    """The cache's part of `ram_bytes` and `vram_bytes`."""
    predicted_decode_tok_s: float | None = None
    """Tokens per second from an empty context; None until this machine has been measured."""
    limited_by: str = ""
    """What decoding would wait for, in words; empty without a prediction."""
    vram_bytes: int = 0
    """GPU memory that both would take, everything counted; 0 where the CPU would compute."""
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
            memory = Memory(available_memory() + freed_bytes, freed_vram_bytes)
            return _with_plan(preview, forecast_both(gguf, options, memory, CancelToken(), measure=False))
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


def _with_plan(preview: ModelPreview, both: Forecasts) -> ModelPreview:
    """What loader and planner would do."""
    planned, gpu = both.model, both.model.gpu
    seconds = planned.host.predicted_decode_s if gpu is None else gpu.plan.predicted_decode_s
    return replace(
        preview,
        training_context=planned.config.training_context,
        max_context=planned.max_context,
        ram_bytes=both.ram_bytes,
        pass_read_bytes=planned.host.read_bytes,
        kv_bytes=planned.kv_bytes,
        predicted_decode_tok_s=None if seconds is None else 1 / seconds,
        limited_by=planned.host.limited_by if gpu is None else gpu.plan.limited_by,
        vram_bytes=both.vram_bytes,
        device="" if gpu is None else gpu.facts.name,
    )
