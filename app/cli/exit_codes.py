"""What the exit codes of `tiercel` mean, and which error has which."""

from __future__ import annotations

from engine import (
    BudgetError,
    CancelledError,
    ContextError,
    EngineError,
    GGUFError,
    InputFileError,
    ModelNotFoundError,
    ReferenceFileError,
    TokenizerError,
    UnsupportedModelError,
)

OK = 0
FAILED = 1
USAGE = 2
BAD_FILE = 3
"""A model or another file is missing, damaged or of a kind that we do not read."""
DOES_NOT_FIT = 4
"""A prompt does not fit the context, or a context or weights the memory."""
INTERRUPTED = 130
"""Ctrl+c, as shells number it: 128 + SIGINT."""

MEANINGS = (
    "exit codes: 0 done, 1 failed, 2 wrong usage, 3 bad or missing file or model, "
    "4 does not fit the context or the memory, 130 interrupted"
)

_BAD_FILES = (
    GGUFError,
    InputFileError,
    ModelNotFoundError,
    ReferenceFileError,
    TokenizerError,
    UnsupportedModelError,
)


class UsageError(Exception):
    """The command line asks for something that makes no sense; the text is one line."""


def exit_code(error: EngineError) -> int:
    """The exit code for an error of the engine."""
    if isinstance(error, _BAD_FILES):
        return BAD_FILE
    if isinstance(error, (BudgetError, ContextError)):
        return DOES_NOT_FIT
    return INTERRUPTED if isinstance(error, CancelledError) else FAILED
