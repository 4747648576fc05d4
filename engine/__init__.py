"""The engine's only door: load GGUF models, ask them, watch them. Imports nothing of `app`.

Everything a front end needs is named here; other modules of `engine` are private to it. Importing this
package stays cheap: what the interface does not need for its first frame is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from engine.cancel import CancelToken
from engine.config import LoadOptions, Message, Precision, Request, SamplingParams
from engine.engine import Engine
from engine.errors import (
    CancelledError,
    ContextError,
    EngineError,
    GGUFError,
    InputFileError,
    KernelError,
    ModelNotFoundError,
    ReferenceFileError,
    TemplateError,
    TokenizerError,
    UnsupportedModelError,
)
from engine.events import (
    EngineSnapshot,
    EngineState,
    FinishReason,
    GenerationStats,
    ModelInfo,
    Reply,
    ReplyStatus,
)

if TYPE_CHECKING:
    from engine.benchmark import Speed, measure_speed
    from engine.chat_template import ChatTemplate, open_template
    from engine.evaluate import Comparison, Perplexity
    from engine.gguf import GGUFFile, LazyArray, TensorInfo, open_gguf
    from engine.scoring import score_against_reference, score_text
    from engine.tokenizer import Tokenizer, load_tokenizer

_ON_FIRST_USE = {
    "ChatTemplate": "engine.chat_template",
    "GGUFFile": "engine.gguf",
    "LazyArray": "engine.gguf",
    "TensorInfo": "engine.gguf",
    "Tokenizer": "engine.tokenizer",
    "load_tokenizer": "engine.tokenizer",
    "open_gguf": "engine.gguf",
    "open_template": "engine.chat_template",
    "Speed": "engine.benchmark",
    "Comparison": "engine.evaluate",
    "Perplexity": "engine.evaluate",
    "measure_speed": "engine.benchmark",
    "score_against_reference": "engine.scoring",
    "score_text": "engine.scoring",
}


def __getattr__(name: str) -> object:
    """Import a name's module when it is first used."""
    if name in _ON_FIRST_USE:
        return getattr(import_module(_ON_FIRST_USE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CancelToken",
    "CancelledError",
    "ChatTemplate",
    "Comparison",
    "ContextError",
    "Engine",
    "EngineError",
    "EngineSnapshot",
    "EngineState",
    "FinishReason",
    "GGUFError",
    "GGUFFile",
    "GenerationStats",
    "InputFileError",
    "KernelError",
    "LazyArray",
    "LoadOptions",
    "Message",
    "ModelInfo",
    "ModelNotFoundError",
    "Perplexity",
    "Precision",
    "ReferenceFileError",
    "Reply",
    "ReplyStatus",
    "Request",
    "SamplingParams",
    "Speed",
    "TemplateError",
    "TensorInfo",
    "Tokenizer",
    "TokenizerError",
    "UnsupportedModelError",
    "load_tokenizer",
    "measure_speed",
    "open_gguf",
    "open_template",
    "score_against_reference",
    "score_text",
]
