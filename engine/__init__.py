"""The engine's only door: load GGUF models, ask them, watch them. Imports nothing of `app`.

Everything a front end needs is named here; other modules of `engine` are private to it. Importing this
package stays cheap (standard library only): the interface paints before numpy and the model code load.
"""

from engine.chat_template import ChatTemplate, open_template
from engine.config import LoadOptions, Message, Precision, Request, SamplingParams
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
from engine.gguf import GGUFFile, LazyArray, TensorInfo, open_gguf
from engine.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "CancelledError",
    "ChatTemplate",
    "ContextError",
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
    "Precision",
    "ReferenceFileError",
    "Reply",
    "ReplyStatus",
    "Request",
    "SamplingParams",
    "TemplateError",
    "TensorInfo",
    "Tokenizer",
    "TokenizerError",
    "UnsupportedModelError",
    "load_tokenizer",
    "open_gguf",
    "open_template",
]
