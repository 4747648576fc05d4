"""Reads one GGUF file: maps it, checks its header, and gathers its metadata and tensor index.

Knows magic, versions and alignment; does not know of other parts of a split model. Called by `reader` and
`split`.
"""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from engine.errors import GGUFError
from engine.gguf.cursor import Cursor, fault
from engine.gguf.metadata import Value, describe, read_key_count, read_metadata
from engine.gguf.tensors import TensorInfo, read_index, read_tensor_count

MAGIC = b"GGUF"
_OLD_MAGICS = (b"lmgg", b"fmgg", b"tjgg", b"algg")
"""ggml, ggmf, ggjt and ggla, the formats before GGUF, as their little-endian bytes."""
_ALIGNMENT_KEY = "general.alignment"
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class Part:
    """One checked file."""

    path: Path
    version: int
    buffer: mmap.mmap
    """The mapped file, read-only."""
    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]


def read_part(path: Path, index: int = 0) -> Part:
    """Map the file at `path` and check it; its tensors are marked as lying in part `index`."""
    buffer = _map(path)
    cursor = Cursor(path, buffer)
    version = _read_version(cursor)
    n_tensors = read_tensor_count(cursor)
    metadata = read_metadata(cursor, read_key_count(cursor))
    tensors = read_index(cursor, n_tensors, _alignment(cursor, metadata), index)
    return Part(path, version, buffer, metadata, tensors)


def _map(path: Path) -> mmap.mmap:
    try:
        # Looked at before it is opened: opening a named pipe would wait for a writer.
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise fault(path, "is a directory", "name a .gguf file in it")
        if not stat.S_ISREG(mode):
            raise fault(path, "is not a regular file", "name a .gguf file")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise fault(path, "is empty (0 bytes)", "download it again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise fault(path, "no such file", "check the name") from None
    except PermissionError:
        raise fault(path, "permission denied", "make it readable for this user") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise fault(path, f"cannot be opened ({reason})", "check the path and the disk") from None


def _read_version(cursor: Cursor) -> int:
    """Check magic and version, and name what else the file may be."""
    magic = cursor.buffer[:4]
    if magic in _OLD_MAGICS:
        raise _refused(
            cursor, f"holds the old format {magic[::-1].decode()!r}", "take a GGUF file of this model"
        )
    if magic == MAGIC[::-1]:
        raise _big_endian(cursor)
    if magic != MAGIC:
        raise _refused(cursor, f"is not a GGUF file (it begins with {magic!r})", "choose a .gguf model file")
    cursor.position = len(MAGIC)
    version = cursor.u32("the version")
    if version in (2, 3):
        return version
    if version == 1:
        raise _refused(cursor, "has GGUF version 1", "versions 2 and 3 are read: convert the model again")
    if version and version & 0xFFFF == 0:
        raise _big_endian(cursor)
    raise _refused(
        cursor, f"has GGUF version {version}", "versions 2 and 3 are read: download or convert it again"
    )


def _big_endian(cursor: Cursor) -> GGUFError:
    return _refused(
        cursor, "is stored big-endian (byte-swapped)", "take the little-endian file of this model"
    )


def _refused(cursor: Cursor, message: str, advice: str) -> GGUFError:
    return fault(cursor.path, message, advice)


def _alignment(cursor: Cursor, metadata: dict[str, Value]) -> int:
    value = metadata.get(_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT)
    if type(value) is not int or value <= 0 or value & (value - 1):
        raise cursor.fault(f"key '{_ALIGNMENT_KEY}' is {describe(value)}: it must be a power of two")
    return value
