"""Arrays in one piece of a GPU's memory, one behind the other, each aligned as if it had memory of its own.

What is reserved in one piece can be given to something else as one piece while nobody computes in it. Knows
sizes and types; does not know what the arrays are for.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.cuda.device import Array, Device

_ALIGNED = 256
"""Bytes: what `Device.empty` promises, and kernels count on."""


class Part(NamedTuple):
    """An array before there is memory for it."""

    shape: tuple[int, ...]
    dtype: npt.DTypeLike


def in_one_piece(device: Device, parts: Sequence[Part]) -> tuple[Array, list[Array]]:
    """Reserve memory -> all of it, uint8, and the parts in order, undefined. Raises DeviceMemoryError."""
    sizes = [prod(shape) * np.dtype(dtype).itemsize for shape, dtype in parts]
    memory = device.empty(sum(map(_rounded, sizes)), np.uint8)
    arrays, start = [], 0
    for (shape, dtype), n_bytes in zip(parts, sizes, strict=True):
        arrays.append(memory[start : start + n_bytes].view(np.dtype(dtype)).reshape(*shape))
        start += _rounded(n_bytes)
    return memory, arrays


def _rounded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNED) * _ALIGNED
