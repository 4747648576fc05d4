"""Hidden states from the GPU to the host's memory and back: for layers that the processor computes.

By kernels: a copy engine would take them in turn with the copies of weights, megabytes at a time; a kernel
does not wait for those, and a graph may contain it. Knows bytes, not what they are. All of it goes on the
device's main stream and returns at once.
"""

from __future__ import annotations

import numpy as np

from kernels.cuda.device import Array, Device, Kernel

_TO_HOST = Kernel.of("crossing.cu", "to_host")
_FROM_HOST = Kernel.of("crossing.cu", "from_host")
_BLOCK = 128
"""Threads of a block: few, so that one row is spread over several processors."""
_PIECE_BYTES = 16
_PIECES_OF_BLOCK = 4 * _BLOCK
"""That a block has under way."""
_BLOCKS_OF_PROCESSOR = 2
"""At most: the link is full long before."""


def to_host(device: Device, x: Array, address: np.uint64) -> None:
    """Write x [T, D] f32, contiguous, to page-locked host memory at `address` (`Device.host_address`).

    The host may read it once an event recorded behind it is reached. `address` is a multiple of 16, D of 32;
    raises ValueError for what is not.
    """
    n_pieces = _pieces(x, address)
    device.launch(_TO_HOST, _grid(device, n_pieces), _BLOCK, address, x, np.uint64(n_pieces))


def from_host(device: Device, address: np.uint64, x: Array) -> None:
    """Read x [T, D] f32, contiguous, from page-locked host memory, as it is when this runs.

    The host leaves it alone until an event recorded behind it is reached. Sizes as for `to_host`.
    """
    n_pieces = _pieces(x, address)
    device.launch(_FROM_HOST, _grid(device, n_pieces), _BLOCK, x, address, np.uint64(n_pieces))


def _pieces(x: Array, address: np.uint64) -> int:
    _, n_columns = x.shape
    if x.dtype != np.float32 or n_columns % 32 or x.strides != (4 * n_columns, 4) or address % _PIECE_BYTES:
        raise ValueError(f"{x.dtype} {x.shape} of strides {x.strides} does not cross at address {address}")
    return x.nbytes // _PIECE_BYTES


def _grid(device: Device, n_pieces: int) -> int:
    return min(-(-n_pieces // _PIECES_OF_BLOCK), _BLOCKS_OF_PROCESSOR * device.n_processors)
