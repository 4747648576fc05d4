"""`tiercel inspect`: what a model file holds, by its own word: metadata, tensors, types and sizes.

Reads no weights. Everything shown comes from the file and is cleaned before it reaches the terminal.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence

from app.models import resolve_model
from app.sanitize import sanitize_line
from engine import GGUFFile, LazyArray, TensorInfo, open_gguf

NAME = "inspect"
HELP = "show the metadata, tensors, types and sizes of a model file"

_ITEMS_SHOWN = 8
"""Arrays are summarised by their first items."""
_TEXT_SHOWN = 160
"""Characters of a value on its line."""

Json = dict[str, object]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model and the output format."""
    parser.add_argument("model", metavar="MODEL", help="a GGUF file, or a name from `tiercel models`")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one object: path, files, version, bytes, elements, types, metadata, tensors",
    )
    parser.epilog = "example: tiercel inspect smollm2.gguf"


def run(args: argparse.Namespace) -> int:
    """Print the report."""
    with open_gguf(resolve_model(args.model)) as gguf:
        if args.json:
            print(json.dumps(_as_json(gguf), indent=2))
        else:
            print("\n".join(_lines(gguf)))
    return 0


def _as_json(gguf: GGUFFile) -> Json:
    return {
        "path": str(gguf.path),
        "files": [str(path) for path in gguf.part_paths],
        "version": gguf.version,
        "bytes": gguf.n_bytes,
        "elements": sum(tensor.n_elements for tensor in gguf.tensors.values()),
        "types": _types(gguf),
        "metadata": {key: _json_value(value) for key, value in gguf.metadata.items()},
        "tensors": [_json_tensor(tensor) for tensor in gguf.tensors.values()],
    }


def _json_value(value: object) -> object:
    if isinstance(value, LazyArray):
        first = [_json_value(item) for item in value.first(_ITEMS_SHOWN)]
        return {"item_type": value.element_type.name, "length": len(value), "first": first}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    return value


def _json_tensor(tensor: TensorInfo) -> Json:
    return {
        "name": tensor.name,
        "shape": list(tensor.shape),
        "type": tensor.type_name,
        "bytes": tensor.n_bytes,
        "offset": tensor.offset,
        "file": tensor.part,
    }


def _types(gguf: GGUFFile) -> dict[str, dict[str, int]]:
    """Count tensors, elements and bytes of each type, the one with most bytes first."""
    types: dict[str, dict[str, int]] = {}
    for tensor in gguf.tensors.values():
        counts = types.setdefault(tensor.type_name, {"tensors": 0, "elements": 0, "bytes": 0})
        counts["tensors"] += 1
        counts["elements"] += tensor.n_elements
        counts["bytes"] += tensor.n_bytes
    return dict(sorted(types.items(), key=lambda item: -item[1]["bytes"]))


def _lines(gguf: GGUFFile) -> Iterator[str]:
    yield sanitize_line(str(gguf.path))
    n_files = len(gguf.part_paths)
    files = f"{n_files} files" if n_files > 1 else "1 file"
    yield f"GGUF version {gguf.version}, {files}, {_size(gguf.n_bytes)} ({gguf.n_bytes:,} bytes)"
    yield f"\nMETADATA: {len(gguf.metadata)} keys"
    yield from _table([(sanitize_line(key), _shown(value)) for key, value in gguf.metadata.items()], "<<")
    yield f"\nTYPES: {sum(tensor.n_elements for tensor in gguf.tensors.values()) / 1e6:,.1f} M elements"
    types = [
        (name, f"{counts['tensors']:,} tensors", f"{counts['elements'] / 1e6:,.1f} M", _size(counts["bytes"]))
        for name, counts in _types(gguf).items()
    ]
    yield from _table(types, "<>>>")
    yield f"\nTENSORS: {len(gguf.tensors):,}, shapes rows first"
    yield from _table([_tensor_row(tensor) for tensor in gguf.tensors.values()], "<>>>")


def _tensor_row(tensor: TensorInfo) -> tuple[str, ...]:
    shape = " x ".join(map(str, tensor.shape))
    # A type that is not in ggml's list has no known size.
    size = f"{tensor.n_bytes:,} bytes" if tensor.n_bytes else "unknown size"
    return sanitize_line(tensor.name), shape, tensor.type_name, size


def _table(rows: Sequence[tuple[str, ...]], alignments: str) -> Iterator[str]:
    """Align columns, each by its sign in `alignments`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, alignments, widths, strict=True)
        yield "  " + "  ".join(f"{cell:{side}{width}}" for cell, side, width in cells).rstrip()


def _shown(value: object) -> str:
    """Show a value on one line, cut where it is long."""
    if isinstance(value, LazyArray):
        items = ", ".join(_shown(item) for item in value.first(_ITEMS_SHOWN))
        more = ", …" if len(value) > _ITEMS_SHOWN else ""
        return f"{len(value):,} x {value.element_type.name}: {_cut(items + more)}"
    if isinstance(value, float):
        return f"{value:.7g}"  # most are float32, whose further digits mean nothing
    return _cut(sanitize_line(str(value)))


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]}… ({len(text):,} characters)"


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.1f} MB"
