"""The key/value section of a GGUF file: value types, lazy arrays and the reading of both.

Knows how values are stored; does not know what any key means. Single values are decoded at once, arrays are
located and checked against the end of the file but not decoded before they are asked for.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Called by `reader`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING

from engine.errors import GGUFError
from engine.gguf.cursor import MAX_NAME_BYTES, U64, Cursor, shown
from engine.giving_way import giving_way

if TYPE_CHECKING:  # numpy takes 0.1 s to import, and a list of models or `inspect` needs none
    import numpy as np
    from numpy.typing import NDArray


class ValueType(IntEnum):
    """The type of a value; the number is the one in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# struct's letter of each number type, which numpy understands as well; both little-endian by "<".
_NUMBERS: dict[ValueType, struct.Struct] = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<?"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}

_MIN_PAIR_BYTES = 8 + 4 + 1
"""The shortest key/value pair: length of the key, type, one byte."""
MAX_KEYS = 65_536
"""Key/value pairs of a file; real files have less than 100."""
MAX_ITEMS = 2**24
"""Items of an array; the largest vocabularies have some 260,000 tokens and 600,000 merges."""


class LazyArray:
    """An array of a GGUF file, located but not decoded. Keeps the file mapped as long as it lives."""

    def __init__(self, key: str, element_type: ValueType, count: int, cursor: Cursor) -> None:
        """Locate `count` items at the cursor, which moves past them."""
        self.key = key
        self.element_type = element_type
        self._count = count
        self._file = cursor
        self._start = cursor.position
        if element_type is ValueType.STRING:
            cursor.skip_strings(count, f"key {shown(key)}")
        else:
            cursor.position += count * _NUMBERS[element_type].size

    def __len__(self) -> int:
        """Return the number of items."""
        return self._count

    def __repr__(self) -> str:
        """Name key, type and length."""
        return f"<{shown(self.key)}: {len(self)} x {self.element_type.name}>"

    def to_list(self) -> list[str] | list[int] | list[float] | list[bool]:
        """Decode every item; strings that are not UTF-8 raise GGUFError naming their index."""
        return self.first(self._count)

    def first(self, count: int) -> list[str] | list[int] | list[float] | list[bool]:
        """Decode the first `count` items, or all if there are fewer; errors as for `to_list`."""
        count = min(count, self._count)
        if self.element_type is ValueType.STRING:
            return self._strings(count)
        letter = _NUMBERS[self.element_type].format[1:]
        return list(struct.unpack_from(f"<{count}{letter}", self._file.buffer, self._start))

    def to_strings(self) -> list[str]:
        """Decode an array of strings; GGUFError when it holds numbers or bytes that are not UTF-8."""
        if self.element_type is not ValueType.STRING:
            raise self._wrong_type("strings")
        return self._strings(self._count)

    def _strings(self, count: int) -> list[str]:
        buffer, position, strings = self._file.buffer, self._start, []
        for index in giving_way(range(count)):
            start = position + 8
            position = start + U64.unpack_from(buffer, position)[0]
            try:
                strings.append(buffer[start:position].decode("utf-8"))
            except UnicodeDecodeError:
                # Decoded again with the item's name, which would take too long to build for every item.
                what = f"item {index} of {shown(self.key)}"
                strings.append(self._file.decode(buffer[start:position], what))
        return strings

    def to_numpy(self) -> NDArray[np.generic]:
        """View an array of numbers, 1-D and read-only; GGUFError when it holds strings."""
        import numpy as np

        if self.element_type is ValueType.STRING:
            raise self._wrong_type("numbers")
        if self.element_type is ValueType.BOOL:  # copied: a stored 2 would be neither True nor False to numpy
            return np.frombuffer(self._file.buffer, np.uint8, self._count, self._start).astype(np.bool_)
        dtype = np.dtype(_NUMBERS[self.element_type].format)
        return np.frombuffer(self._file.buffer, dtype, self._count, self._start)

    def _wrong_type(self, expected: str) -> GGUFError:
        return self._file.fault(f"key {shown(self.key)} holds {self.element_type.name} items, not {expected}")


Value = bool | int | float | str | LazyArray


def describe(value: Value) -> str:
    """Show a value in a message: strings quoted and cut, arrays by type and length."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, LazyArray):
        return f"an array of {len(value)} {value.element_type.name}"
    return str(value)


def read_metadata(cursor: Cursor, n_keys: int) -> dict[str, Value]:
    """Read `n_keys` pairs at the cursor, in file order; duplicate keys are refused."""
    metadata: dict[str, Value] = {}
    for index in range(n_keys):
        key = cursor.text(f"key {index}", MAX_NAME_BYTES)
        if key in metadata:
            raise cursor.fault(f"key {shown(key)} is there twice")
        metadata[key] = _read_value(cursor, key)
    return metadata


def read_key_count(cursor: Cursor) -> int:
    """Read the number of pairs that the header announces."""
    return cursor.count("the number of keys", _MIN_PAIR_BYTES, MAX_KEYS)


def _read_type(cursor: Cursor, what: str) -> ValueType:
    number = cursor.u32(what)
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.fault(f"{what} is {number}, which GGUF does not have") from None


def _read_value(cursor: Cursor, key: str) -> Value:
    what = f"key {shown(key)}"
    value_type = _read_type(cursor, f"type of {what}")
    if value_type is ValueType.ARRAY:
        return _read_array(cursor, key, what)
    if value_type is ValueType.STRING:
        return cursor.text(what)
    return cursor.scalar(_NUMBERS[value_type], what)


def _read_array(cursor: Cursor, key: str, what: str) -> LazyArray:
    element_type = _read_type(cursor, f"item type of {what}")
    if element_type is ValueType.ARRAY:
        raise cursor.fault(f"{what} is an array of arrays, which no model file needs")
    item_bytes = 8 if element_type is ValueType.STRING else _NUMBERS[element_type].size
    count = cursor.count(f"length of {what}", item_bytes, MAX_ITEMS)
    return LazyArray(key, element_type, count, cursor)
