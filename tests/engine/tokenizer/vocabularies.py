"""Forges small vocabularies, sound ones and ones with any fault, as GGUF files without tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.gguf import ValueType, open_gguf
from engine.tokenizer import Tokenizer, load_tokenizer
from tests.engine.gguf.forge import array, forge, pair, string, strings

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

Field = str | bool | int | Sequence[str] | Sequence[int] | Sequence[float]
Fields = dict[str, Field]
"""By key without `tokenizer.ggml.`."""

PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
ALPHABET = [chr(b) for b in PRINTABLE] + [chr(0x100 + i) for i in range(256 - len(PRINTABLE))]
"""The characters that spell bytes in byte-level vocabularies."""


def spm(words: Mapping[str, float], specials: Mapping[str, int] | None = None, **changes: Field) -> Fields:
    """<unk>, <s>, </s>, the 256 bytes, `words` with scores, `specials` with kinds."""
    specials = specials or {}
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    return {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *byte_tokens, *words, *specials],
        "scores": [0.0] * 259 + [*words.values()] + [0.0] * len(specials),
        "token_type": [UNKNOWN, CONTROL, CONTROL]
        + [BYTE] * 256
        + [NORMAL] * len(words)
        + [*specials.values()],
        **changes,
    }


def bpe(merges: Sequence[str], specials: Mapping[str, int] | None = None, **changes: Field) -> Fields:
    """The 256 bytes, the tokens that `merges` make, `specials` with kinds."""
    specials = specials or {}
    words = [*ALPHABET, *(merge.replace(" ", "") for merge in merges)]
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*words, *specials],
        "token_type": [NORMAL] * len(words) + [*specials.values()],
        "merges": merges,
        **changes,
    }


def write(path: Path, fields: Mapping[str, Field]) -> Path:
    """Write the fields as they are, sound or not, and return `path`."""
    path.write_bytes(forge([_field(f"tokenizer.ggml.{key}", value) for key, value in fields.items()]))
    return path


def load(path: Path, fields: Mapping[str, Field]) -> Tokenizer:
    """Write, open and load."""
    with open_gguf(write(path, fields)) as gguf:
        return load_tokenizer(gguf)


def _field(name: str, value: Field) -> bytes:
    key = name.encode()
    if isinstance(value, str):
        return pair(key, ValueType.STRING, string(value.encode("utf-8", "surrogateescape")))
    if isinstance(value, bool):
        return pair(key, ValueType.BOOL, bytes([value]))
    if isinstance(value, int):
        return pair(key, ValueType.INT64, struct.pack("<q", value))
    if all(isinstance(item, str) for item in value):
        return strings(key, [item.encode("utf-8", "surrogateescape") for item in value])
    if all(isinstance(item, int) for item in value):
        return array(key, ValueType.INT32, len(value), struct.pack(f"<{len(value)}i", *value))
    return array(key, ValueType.FLOAT32, len(value), struct.pack(f"<{len(value)}f", *value))
