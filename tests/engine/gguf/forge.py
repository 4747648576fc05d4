"""Forges GGUF files byte by byte, so that tests can put any fault into them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from engine.gguf import ValueType


def string(text: bytes) -> bytes:
    """A length and the bytes."""
    return struct.pack("<Q", len(text)) + text


def pair(key: bytes, value_type: int, payload: bytes) -> bytes:
    """One key/value pair with its value already packed."""
    return string(key) + struct.pack("<I", value_type) + payload


def u32(key: bytes, number: int) -> bytes:
    return pair(key, ValueType.UINT32, struct.pack("<I", number))


def text(key: bytes, value: bytes) -> bytes:
    return pair(key, ValueType.STRING, string(value))


def array(key: bytes, item_type: int, count: int, payload: bytes) -> bytes:
    return pair(key, ValueType.ARRAY, struct.pack("<IQ", item_type, count) + payload)


def strings(key: bytes, items: Sequence[bytes]) -> bytes:
    return array(key, ValueType.STRING, len(items), b"".join(map(string, items)))


def tensor(name: bytes, dims: Sequence[int], type_id: int = 0, offset: int = 0) -> bytes:
    """One index entry."""
    packed = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)
    return string(name) + packed


def forge(
    pairs: Iterable[bytes] = (),
    tensors: Iterable[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_keys: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; the counts are right unless they are given."""
    pairs, tensors = list(pairs), list(tensors)
    n_tensors = len(tensors) if n_tensors is None else n_tensors
    n_keys = len(pairs) if n_keys is None else n_keys
    head = magic + struct.pack("<IQQ", version, n_tensors, n_keys) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data
