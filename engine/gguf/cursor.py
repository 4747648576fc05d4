"""A bounds-checked walk over the bytes of one GGUF file; the only place that reads untrusted lengths.

Knows scalars, strings and limits; does not know keys or tensors. Nothing is allocated from a count or a
length before it was compared with the bytes that are really there. Faults are one-line GGUFErrors that name
the file, the place and the value, with control characters escaped. Called by `metadata` and `tensors`.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from engine.errors import GGUFError
from engine.giving_way import giving_way

MAX_NAME_BYTES = 65_535
"""Longest key or tensor name; the format's own limit for keys."""
MAX_TEXT_BYTES = 16 * 2**20
"""All keys, names and single strings of a file together; real files have less than 1 MiB."""

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")

DAMAGED = "the file is damaged or incomplete: download or convert it again"


def printable(text: str) -> str:
    """Escape what a terminal could act upon: control, bidi and unassigned characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown(text: str) -> str:
    """Quote untrusted `text` for a message: printable, and cut after 80 characters."""
    return f"'{printable(text[:80])}{'…' if len(text) > 80 else ''}'"


def fault(path: Path, message: str, advice: str = DAMAGED) -> GGUFError:
    """Make the error for `path`; `message` must hold no raw untrusted text (see `shown`)."""
    return GGUFError(f"{printable(str(path))}: {message}; {advice}")


class Cursor:
    """A position in the bytes of one file. Every method moves it, or raises GGUFError."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        """Start at byte 0 of `buffer`; `path` is for messages only."""
        self.path = path
        self.buffer = buffer
        self.position = 0
        self.end = len(buffer)
        self._text_left = MAX_TEXT_BYTES

    @property
    def remaining(self) -> int:
        """Bytes from here to the end of the file."""
        return self.end - self.position

    def fault(self, message: str) -> GGUFError:
        """Make the error for a fault in this file."""
        return fault(self.path, message)

    def scalar(self, layout: struct.Struct, what: str) -> int | float | bool:
        """Read one number; `what` names it in the error."""
        if layout.size > self.remaining:
            raise self.fault(f"{what} is cut off at byte {self.end}")
        (value,) = layout.unpack_from(self.buffer, self.position)
        self.position += layout.size
        return value  # type: ignore[no-any-return]  # struct is untyped; every layout holds one number

    def u32(self, what: str) -> int:
        """Read an unsigned 32-bit integer."""
        return int(self.scalar(U32, what))

    def u64(self, what: str) -> int:
        """Read an unsigned 64-bit integer."""
        return int(self.scalar(U64, what))

    def count(self, what: str, item_bytes: int, limit: int | None = None) -> int:
        """Read a number of items that take at least `item_bytes` each; refuse more than can follow."""
        count = self.u64(what)
        most = self.remaining // item_bytes
        if count > most:
            raise self.fault(f"{what} is {count}, but only {self.remaining} bytes follow")
        if limit is not None and count > limit:
            raise self.fault(f"{what} is {count}: at most {limit} are read")
        return count

    def text(self, what: str, limit: int = MAX_TEXT_BYTES) -> str:
        """Read a string: 64-bit length, then UTF-8."""
        length = self.count(f"length of {what}", 1, limit)
        self._text_left -= length
        if self._text_left < 0:
            raise self.fault(f"{what} brings the text in the header above {MAX_TEXT_BYTES} bytes")
        raw = self.buffer[self.position : self.position + length]
        self.position += length
        return self.decode(raw, what)

    def decode(self, raw: bytes, what: str) -> str:
        """Decode UTF-8 or raise GGUFError showing the bytes."""
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            around = raw[error.start : error.start + 16]
            raise self.fault(f"{what} is not UTF-8 at its byte {error.start} ({around!r})") from None

    def skip_strings(self, count: int, what: str) -> None:
        """Move past `count` strings without decoding them; `count` must come from `count()`."""
        # Vocabularies hold hundreds of thousands of strings: local names halve the time of this loop.
        unpack_from, buffer, position, last = U64.unpack_from, self.buffer, self.position, self.end - 8
        for index in giving_way(range(count)):
            if position > last:
                raise self.fault(f"item {index} of {what} lies outside the file")
            position += 8 + unpack_from(buffer, position)[0]
        if position > self.end:
            raise self.fault(f"item {count - 1} of {what} lies outside the file")
        self.position = position
