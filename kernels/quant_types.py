"""The tensor types that the kernels compute with: ggml ids, quant block sizes and bytes.

Knows how many elements and bytes a quant block has; does not know what lies inside it (the kernels do) nor
the other types of ggml's list. Called by everything that turns element counts into bytes.
"""

from __future__ import annotations

from enum import IntEnum


class QuantType(IntEnum):
    """A tensor type; the value is ggml's id in the file (`enum ggml_type` in ggml.h)."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30


_ELEMENTS_AND_BYTES: dict[QuantType, tuple[int, int]] = {
    QuantType.F32: (1, 4),
    QuantType.F16: (1, 2),
    QuantType.BF16: (1, 2),
    QuantType.Q4_0: (32, 2 + 16),  # scale, 4-bit codes
    QuantType.Q4_1: (32, 2 + 2 + 16),  # scale, minimum, 4-bit codes
    QuantType.Q5_0: (32, 2 + 4 + 16),  # scale, fifth bits, low 4 bits
    QuantType.Q5_1: (32, 2 + 2 + 4 + 16),  # scale, minimum, fifth bits, low 4 bits
    QuantType.Q8_0: (32, 2 + 32),  # scale, 8-bit codes
    QuantType.Q2_K: (256, 16 + 64 + 2 + 2),  # 4-bit scales and minimums, codes, scale, minimum
    QuantType.Q3_K: (256, 32 + 64 + 12 + 2),  # third bits, low 2 bits, 6-bit scales, scale
    QuantType.Q4_K: (256, 2 + 2 + 12 + 128),  # scale, minimum, 6-bit scales and minimums, codes
    QuantType.Q5_K: (256, 2 + 2 + 12 + 32 + 128),  # as Q4_K, with the fifth bits before the codes
    QuantType.Q6_K: (256, 128 + 64 + 16 + 2),  # low 4 bits, high 2 bits, 8-bit scales, scale
}


def block_size(quant_type: QuantType) -> int:
    """Elements in one quant block; 1 for the float types."""
    return _ELEMENTS_AND_BYTES[quant_type][0]


def block_bytes(quant_type: QuantType) -> int:
    """Bytes of one quant block."""
    return _ELEMENTS_AND_BYTES[quant_type][1]


def row_bytes(quant_type: QuantType, n_elements: int) -> int:
    """Bytes of a row of `n_elements`; raises ValueError when they are not whole quant blocks."""
    elements, n_bytes = _ELEMENTS_AND_BYTES[quant_type]
    if n_elements % elements:
        raise ValueError(
            f"a row of {n_elements} elements is not whole {quant_type.name} blocks of {elements}"
        )
    return n_elements // elements * n_bytes
