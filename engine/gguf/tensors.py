"""The tensor index of a GGUF file: names, shapes, types and checked byte ranges.

Knows sizes of ggml's types; does not touch the tensors' bytes. Types that the kernels do not compute are
kept by id, so that a file can be listed that cannot be run. Called by `reader`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from engine.errors import UnsupportedModelError
from engine.gguf.cursor import MAX_NAME_BYTES, Cursor, shown
from kernels.quant_types import QuantType, block_bytes, block_size

MAX_DIMS = 4
MAX_TENSORS = 131_072
"""Tensors of a file; the largest mixtures of experts have about 45,000."""
_MIN_ENTRY_BYTES = 8 + 4 + 8 + 4 + 8
"""The shortest index entry: name length, n_dims, one dim, type, offset."""
_MAX_ELEMENTS = 2**63 - 1

# ggml's list (ggml.h, ggml-common.h): name, elements and bytes of a quant block; first ours, then the others.
_TYPES: dict[int, tuple[str, int, int]] = {
    **{int(ours): (ours.name, block_size(ours), block_bytes(ours)) for ours in QuantType},
    9: ("Q8_1", 32, 36),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the index; the byte range lies inside the file."""

    name: str
    """Untrusted text."""
    shape: tuple[int, ...]
    """NumPy order, rows first: the file's dims reversed; the last one is contiguous."""
    type_id: int
    """ggml's number of the type; `quant_type` where the kernels know it."""
    offset: int
    """First byte, from the start of the part it lies in."""
    n_bytes: int
    """Size in the file; 0 for a type whose size is not known."""
    n_elements: int
    part: int = 0
    """Index of the split file that holds it."""

    @property
    def type_name(self) -> str:
        """ggml's name of the type, or 'type N' for an id that is not in its list."""
        return _TYPES[self.type_id][0] if self.type_id in _TYPES else f"type {self.type_id}"

    @property
    def quant_type(self) -> QuantType:
        """The type for the kernels; UnsupportedModelError naming tensor and type when they lack it."""
        try:
            return QuantType(self.type_id)
        except ValueError:
            raise UnsupportedModelError(
                f"tensor {shown(self.name)} has the type {self.type_name} (ggml id {self.type_id}), which is "
                "not supported: take a file quantised as Q4_K_M, Q8_0 or another of the common types"
            ) from None


def read_tensor_count(cursor: Cursor) -> int:
    """Read the number of tensors that the header announces."""
    return cursor.count("the number of tensors", _MIN_ENTRY_BYTES, MAX_TENSORS)


def read_index(cursor: Cursor, n_tensors: int, alignment: int, part: int) -> dict[str, TensorInfo]:
    """Read `n_tensors` entries at the cursor and check every range against the file and the others."""
    entries: dict[str, TensorInfo] = {}
    for index in range(n_tensors):
        entry = _read_entry(cursor, index, alignment, part)
        if entry.name in entries:
            raise cursor.fault(f"tensor {shown(entry.name)} is there twice")
        entries[entry.name] = entry
    data_start = -(-cursor.position // alignment) * alignment
    tensors = {entry.name: _placed(cursor, entry, data_start) for entry in entries.values()}
    _check_overlap(cursor, tensors)
    return tensors


def _read_entry(cursor: Cursor, index: int, alignment: int, part: int) -> TensorInfo:
    """Read one entry; its offset still counts from the start of the data section."""
    name = cursor.text(f"name of tensor {index}", MAX_NAME_BYTES)
    what = f"tensor {shown(name)}"
    n_dims = cursor.u32(f"n_dims of {what}")
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.fault(f"n_dims of {what} is {n_dims}: it must lie between 1 and {MAX_DIMS}")
    dims = [cursor.u64(f"dim {i} of {what}") for i in range(n_dims)]
    n_elements = 1
    for i, dim in enumerate(dims):
        if dim == 0:
            raise cursor.fault(f"dim {i} of {what} is 0")
        n_elements *= dim
    if n_elements > _MAX_ELEMENTS:
        raise cursor.fault(f"dims {dims} of {what} overflow")
    type_id = cursor.u32(f"type of {what}")
    _, elements, n_bytes = _TYPES.get(type_id, ("", 1, 0))
    if dims[0] % elements:
        raise cursor.fault(f"dim 0 of {what} is {dims[0]}, which is not whole blocks of {elements}")
    offset = cursor.u64(f"offset of {what}")
    if offset % alignment:
        raise cursor.fault(f"offset of {what} is {offset}, which is not a multiple of {alignment}")
    return TensorInfo(
        name, tuple(reversed(dims)), type_id, offset, n_elements // elements * n_bytes, n_elements, part
    )


def _placed(cursor: Cursor, entry: TensorInfo, data_start: int) -> TensorInfo:
    """Count the offset from the start of the file and check that the tensor ends inside it."""
    offset = data_start + entry.offset
    if offset + entry.n_bytes > cursor.end:
        raise cursor.fault(
            f"tensor {shown(entry.name)} ends at byte {offset + entry.n_bytes}, the file at {cursor.end}"
        )
    return replace(entry, offset=offset)


def _check_overlap(cursor: Cursor, tensors: dict[str, TensorInfo]) -> None:
    by_offset = sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.n_bytes))
    for before, after in pairwise(by_offset):
        if before.offset + before.n_bytes > after.offset:
            raise cursor.fault(
                f"tensors {shown(before.name)} and {shown(after.name)} overlap at byte {after.offset}"
            )
