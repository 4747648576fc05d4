"""The engine's only door: load GGUF models, ask them, watch them. Imports nothing of `app`.

Everything a front end needs is named here; other modules of `engine` are private to it.
"""

from engine.errors import (
    CancelledError,
    ContextError,
    EngineError,
    GGUFError,
    KernelError,
    ModelNotFoundError,
    ReferenceFileError,
    TemplateError,
    TokenizerError,
    UnsupportedModelError,
)

__all__ = [
    "CancelledError",
    "ContextError",
    "EngineError",
    "GGUFError",
    "KernelError",
    "ModelNotFoundError",
    "ReferenceFileError",
    "TemplateError",
    "TokenizerError",
    "UnsupportedModelError",
]
