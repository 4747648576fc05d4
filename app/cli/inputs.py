"""Text that comes from outside: standard input and files, as UTF-8 or with a clear error."""

from __future__ import annotations

import sys
from pathlib import Path

from engine import InputFileError


def piped_text() -> str:
    """Text that was piped in, nothing at a terminal; without a byte order mark. Raises InputFileError."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    return standard_input().removeprefix("\ufeff")


def standard_input() -> str:
    """All of standard input, to the byte; nothing where it is closed. Raises InputFileError."""
    return "" if sys.stdin is None else _decode(sys.stdin.buffer.read(), "standard input")


def read_text(path: Path) -> str:
    """A text file's content without the byte order mark that some editors write; raises InputFileError."""
    try:
        return _decode(path.read_bytes(), str(path)).removeprefix("\ufeff")
    except OSError as error:
        raise InputFileError(f"{path}: {error.strerror or error}; give a text file") from None


def _decode(data: bytes, origin: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputFileError(
            f"{origin} is not UTF-8 at byte {error.start}: convert it first, for example with iconv"
        ) from None
