"""Every tensor type expanded to float32 in NumPy: what the native kernels are measured against.

Knows the layout of each quant block, from the structs of ggml (ggml-common.h); does not know tensors' names
or models. Works on any number of whole blocks; speed does not matter here, being easy to check does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from kernels.quant_types import QuantType, block_bytes

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def dequantize(data: Bytes, quant_type: QuantType) -> Floats:
    """Expand whole quant blocks, 1-D uint8 -> 1-D float32, in file order."""
    blocks = data.reshape(-1, block_bytes(quant_type))
    return _EXPAND[quant_type](blocks).reshape(-1)


def _halves(blocks: Bytes, offset: int) -> Floats:
    """The float16 at a byte offset of each block, [N] -> float32 [N, 1]."""
    return blocks[:, offset : offset + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(codes: Bytes) -> Bytes:
    """Two 4-bit codes a byte: all low ones, then all high ones, along the last axis."""
    return np.concatenate([codes & 0xF, codes >> 4], axis=-1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """32 bits in 4 bytes, least significant first, [N, 4] -> [N, 32], worth 16 each."""
    return np.unpackbits(packed, axis=-1, bitorder="little") * np.uint8(16)


def _shifted(codes: Bytes, shifts: range) -> Bytes:
    """Fields of a byte as a new axis before the last: [..., B] -> [..., len(shifts), B], not masked."""
    return codes[..., None, :] >> np.array(shifts, np.uint8)[:, None]


def _f32(blocks: Bytes) -> Floats:
    return blocks.copy().view(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.copy().view(np.float16).astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    # The upper half of a float32.
    return (blocks.copy().view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _halves(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _halves(blocks, 0) * (codes.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _halves(blocks, 0) * codes.astype(np.float32) + _halves(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q2_k(blocks: Bytes) -> Floats:
    """16 sub-blocks of 16; scales[16] (4-bit scale, 4-bit minimum), codes[64], scale, minimum."""
    scales, codes = blocks[:, :16], blocks[:, 16:80].reshape(-1, 2, 32)
    quants = (_shifted(codes, range(0, 8, 2)) & 3).reshape(-1, 16, 16).astype(np.float32)
    scale = _halves(blocks, 80) * (scales & 0xF)
    minimum = _halves(blocks, 82) * (scales >> 4)
    return scale[:, :, None] * quants - minimum[:, :, None]


def _q3_k(blocks: Bytes) -> Floats:
    """16 sub-blocks of 16; third bits[32], codes[64], 6-bit scales[12], scale. A third bit of 0 means -4."""
    codes = blocks[:, 32:96].reshape(-1, 2, 32)
    low = (_shifted(codes, range(0, 8, 2)) & 3).reshape(-1, 16, 16)
    third = (_shifted(blocks[:, :32], range(8)) & 1).reshape(-1, 16, 16)
    quants = low.astype(np.float32) - 4 * (1 - third.astype(np.float32))
    packed = blocks[:, 96:108]
    low_scales = _nibbles(packed[:, :8])
    high_scales = (_shifted(packed[:, 8:], range(0, 8, 2)) & 3).reshape(-1, 16)
    scales = (low_scales | high_scales << 4).astype(np.float32) - 32
    return (_halves(blocks, 108) * scales)[:, :, None] * quants


def _k_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The 12 bytes of Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minimums, [N, 12] -> 2 x [N, 8].

    Bytes 0-3 and 4-7 hold the first four of each in their low 6 bits; bytes 8-11 hold the low 4 bits of
    the last four (scale low, minimum high), whose upper 2 bits are the upper 2 bits of bytes 0-7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 0xF) | (first >> 6) << 4], axis=1)
    minimums = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=1)
    return scales, minimums


def _scaled_k(blocks: Bytes, quants: Floats) -> Floats:
    """Q4_K and Q5_K from their codes [N, 8, 32]."""
    scales, minimums = _k_scales(blocks[:, 4:16])
    return (_halves(blocks, 0) * scales)[:, :, None] * quants - (_halves(blocks, 2) * minimums)[:, :, None]


def _q4_k(blocks: Bytes) -> Floats:
    """8 sub-blocks of 32; scale, minimum, scales[12], codes[128]: 32 bytes hold two sub-blocks."""
    quants = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _scaled_k(blocks, quants.astype(np.float32))


def _q5_k(blocks: Bytes) -> Floats:
    """As Q4_K, with fifth bits[32] before the codes: bit j of byte l belongs to sub-block j, element l."""
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    fifth = _shifted(blocks[:, 16:48], range(8)) & 1
    return _scaled_k(blocks, (low | fifth << 4).astype(np.float32))


def _q6_k(blocks: Bytes) -> Floats:
    """16 sub-blocks of 16; low 4 bits[128], high 2 bits[64], int8 scales[16], scale."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 16, 16)
    high = (_shifted(blocks[:, 128:192].reshape(-1, 2, 32), range(0, 8, 2)) & 3).reshape(-1, 16, 16)
    quants = (low | high << 4).astype(np.float32) - 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (_halves(blocks, 208) * scales)[:, :, None] * quants


_EXPAND: dict[QuantType, Callable[[Bytes], Floats]] = {
    QuantType.F32: _f32,
    QuantType.F16: _f16,
    QuantType.BF16: _bf16,
    QuantType.Q4_0: _q4_0,
    QuantType.Q4_1: _q4_1,
    QuantType.Q5_0: _q5_0,
    QuantType.Q5_1: _q5_1,
    QuantType.Q8_0: _q8_0,
    QuantType.Q2_K: _q2_k,
    QuantType.Q3_K: _q3_k,
    QuantType.Q4_K: _q4_k,
    QuantType.Q5_K: _q5_k,
    QuantType.Q6_K: _q6_k,
}
"""Each takes [N, block bytes] and returns N blocks of elements, in any shape that flattens to file order."""
