"""Opens a GGUF model, whole or split, and hands out its metadata and the bytes of its tensors.

    with open_gguf(path) as gguf:
        gguf.get_int("llama.block_count"), gguf.tensor_bytes("token_embd.weight")

Opening reads header, metadata and tensor index and locates the arrays; nothing else is touched, the file is
mapped. Knows types and ranges; does not know what keys and tensors mean. Every fault is a GGUFError of one
line. A file that another program shortens while it is mapped kills the process (SIGBUS), as with any mmap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from engine.gguf.cursor import fault, shown
from engine.gguf.metadata import LazyArray, Value, describe
from engine.gguf.part import Part, read_part
from engine.gguf.split import read_other_parts
from engine.gguf.tensors import TensorInfo

if TYPE_CHECKING:  # see `metadata`
    import numpy as np
    from numpy.typing import NDArray

D = TypeVar("D")
V = TypeVar("V", bound=Value)


class _Missing(Enum):
    """The default of a getter whose key must be there."""

    REQUIRED = 0


REQUIRED = _Missing.REQUIRED


def open_gguf(path: Path) -> GGUFFile:
    """Open the model at `path`; given the first part of a split model, its other parts as well."""
    first = read_part(path)
    return GGUFFile((first, *read_other_parts(first)))


class GGUFFile:
    """An open model: the metadata of its (first) file, the tensors of all its files."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        """Join checked parts; callers use `open_gguf`."""
        first = parts[0]
        self.path: Path = first.path
        self.version: int = first.version
        self.metadata: Mapping[str, Value] = first.metadata
        self.tensors: dict[str, TensorInfo] = {
            name: tensor for part in parts for name, tensor in part.tensors.items()
        }
        self.part_paths: tuple[Path, ...] = tuple(part.path for part in parts)
        self.n_bytes: int = sum(len(part.buffer) for part in parts)
        """Size of all its files."""
        self._buffers = tuple(part.buffer for part in parts)

    def tensor_bytes(self, name: str) -> NDArray[np.uint8]:
        """View the bytes of a tensor in the mapped file, 1-D and read-only; GGUFError when it is missing."""
        import numpy as np

        tensor = self.tensors.get(name)
        if tensor is None:
            raise fault(self.path, f"tensor {shown(name)} is missing")
        return np.frombuffer(self._buffers[tensor.part], np.uint8, tensor.n_bytes, tensor.offset)

    def get_int(self, key: str, default: D | _Missing = REQUIRED) -> int | D:
        """Look up an integer; GGUFError when it has another type, or is missing without a default."""
        return self._get(key, (int,), "an integer", default)

    def get_float(self, key: str, default: D | _Missing = REQUIRED) -> float | D:
        """Look up a finite number, integers included; errors as for `get_int`."""
        value = self._get(key, (int, float), "a finite number", default)
        return float(value) if isinstance(value, int) else value

    def get_str(self, key: str, default: D | _Missing = REQUIRED) -> str | D:
        """Look up a string, which is untrusted text; errors as for `get_int`."""
        return self._get(key, (str,), "a string", default)

    def get_bool(self, key: str, default: D | _Missing = REQUIRED) -> bool | D:
        """Look up a boolean; errors as for `get_int`."""
        return self._get(key, (bool,), "a boolean", default)

    def get_array(self, key: str, default: D | _Missing = REQUIRED) -> LazyArray | D:
        """Look up an array, still undecoded; errors as for `get_int`."""
        return self._get(key, (LazyArray,), "an array", default)

    def _get(self, key: str, types: tuple[type[V], ...], expected: str, default: D | _Missing) -> V | D:
        value = self.metadata.get(key)
        if value is None:
            if isinstance(default, _Missing):
                raise fault(self.path, f"key {shown(key)} is missing: {expected} was expected")
            return default
        finite = not isinstance(value, float) or math.isfinite(value)
        # Exact types: a bool is an int in Python, but not in a file.
        for expected_type in types:
            if type(value) is expected_type and finite:
                return value
        raise fault(self.path, f"key {shown(key)} is {describe(value)}: {expected} was expected")

    def close(self) -> None:
        """Forget the file. Views and arrays already handed out stay valid and keep it mapped."""
        self.metadata, self.tensors, self._buffers = {}, {}, ()

    def __enter__(self) -> Self:
        """Return itself; leaving the block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
