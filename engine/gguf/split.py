"""Finds and checks the other parts of a split model, `NAME-00001-of-00003.gguf` and so on.

Knows the names and the `split.*` keys that llama.cpp's gguf-split writes; reads each part through `part`.
The first part holds the metadata of the model, each part the index of its own tensors. Called by `reader`.
"""

from __future__ import annotations

import re
from pathlib import Path

from engine.errors import GGUFError
from engine.gguf.cursor import fault, shown
from engine.gguf.metadata import describe
from engine.gguf.part import Part, read_part

_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_NEXT_STEP = "download all parts again, into one folder"


def read_other_parts(first: Part) -> tuple[Part, ...]:
    """Read the parts after `first`, none when it is a whole file; GGUFError when one is missing or wrong."""
    count = _number(first, "split.count", 1)
    if count <= 1:
        return ()
    number = _number(first, "split.no", 0)
    if number != 0:
        raise fault(first.path, f"is part {number + 1} of {count}", "name the first part instead")
    others = tuple(_read_sibling(first, count, number) for number in range(1, count))
    _check_tensors(first, others)
    return others


def _read_sibling(first: Part, count: int, number: int) -> Part:
    path = part_path(first.path, count, number)
    if not path.exists():
        raise fault(path, f"part {number + 1} of {count} is missing", _NEXT_STEP)
    part = read_part(path, number)
    for key, expected in (("split.no", number), ("split.count", count)):
        if _number(part, key, 0) != expected:
            raise fault(path, f"key '{key}' is {_number(part, key, 0)}, not {expected}", _NEXT_STEP)
    return part


def part_path(first: Path, count: int, number: int) -> Path:
    """Name part `number` (from 0) of `count` beside the first one."""
    match = _NAME.fullmatch(first.name)
    if match is None or int(match["number"]) != 1 or int(match["count"]) != count:
        raise fault(
            first,
            f"is the first of {count} parts by its key 'split.count', but its name does not say so",
            f"rename the parts to NAME-00001-of-{count:05d}.gguf and so on",
        )
    return first.with_name(f"{match['stem']}-{number + 1:05d}-of-{count:05d}.gguf")


def _check_tensors(first: Part, others: tuple[Part, ...]) -> None:
    """Check that no tensor is in two parts and that none is missing."""
    seen = set(first.tensors)
    for part in others:
        for name in part.tensors:
            if name in seen:
                raise fault(part.path, f"tensor {shown(name)} is in an earlier part too", _NEXT_STEP)
            seen.add(name)
    total = _number(first, "split.tensors.count", len(seen))
    if total != len(seen):
        raise fault(
            first.path, f"key 'split.tensors.count' is {total}, the parts hold {len(seen)}", _NEXT_STEP
        )


def _number(part: Part, key: str, default: int) -> int:
    value = part.metadata.get(key, default)
    if type(value) is not int:
        raise _wrong(part, key, describe(value))
    return value


def _wrong(part: Part, key: str, value: str) -> GGUFError:
    return fault(part.path, f"key '{key}' is {value}: an integer was expected", _NEXT_STEP)
