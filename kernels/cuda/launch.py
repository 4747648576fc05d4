"""A kernel on a device, ready to be launched again and again: its arguments go into memory that stays.

Knows how arguments become bytes; does not know what any kernel does. Called by cuda_device.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernels.cuda.device import Shape
from kernels.cuda.driver import (
    MAX_DYNAMIC_SHARED_SIZE_BYTES,
    SHARED_SIZE_BYTES,
    Driver,
    LaunchConfig,
    dependent_launch,
)

_SCALARS: dict[type, tuple[int, Callable[[Any], int]]] = {
    np.int32: (4, int),
    np.uint32: (4, int),
    np.int64: (8, int),
    np.uint64: (8, int),
    np.float32: (4, lambda value: int(value.view(np.uint32))),
}
"""What a kernel takes by value: its bytes, and how its bits are got as an integer."""
_CELL_BYTES = 8
_GRANTED_SHARED_BYTES = 48 * 1024
"""Shared memory that a block may have without asking."""


class LoadedKernel:
    """An entry point on the device, for any of its streams."""

    def __init__(self, driver: Driver, code: bytes, name: str, *, may_depend: bool) -> None:
        """Load `code`; `may_depend` says that the device has dependent launches. Raises DeviceError."""
        self._driver = driver
        self._name = name
        self._module = driver.load_module(code)
        self._function = driver.function(self._module, name)
        self._n_attributes = int(may_depend)
        self._config = LaunchConfig(attributes=dependent_launch())
        self._config_address = ctypes.addressof(self._config)
        self._dynamic_granted = _GRANTED_SHARED_BYTES - driver.function_attribute(
            SHARED_SIZE_BYTES, self._function
        )
        self._packs: dict[tuple[type, ...], list[Callable[[Any], int]]] = {}
        """How to get the bits of each argument, for every list of types that was given."""
        self._cells = (ctypes.c_uint64 * 0)()
        self._cell_addresses = (ctypes.c_void_p * 0)()

    def launch(
        self,
        stream: int,
        grid: Shape,
        block: Shape,
        arguments: Sequence[Any],
        shared_bytes: int,
        *,
        dependent: bool,
    ) -> None:
        """Put the kernel on a stream. Raises TypeError for arguments that are not its own, DeviceError."""
        types = tuple(map(type, arguments))
        packs = self._packs.get(types) or self._fit(types)
        for index, (pack, argument) in enumerate(zip(packs, arguments, strict=True)):
            self._cells[index] = pack(argument)
        if shared_bytes > self._dynamic_granted:
            self._driver.set_function_attribute(MAX_DYNAMIC_SHARED_SIZE_BYTES, self._function, shared_bytes)
            self._dynamic_granted = shared_bytes
        config = self._config
        config.stream = stream
        config.grid_x, config.grid_y, config.grid_z = _three(grid)
        config.block_x, config.block_y, config.block_z = _three(block)
        config.shared_bytes = shared_bytes
        config.n_attributes = self._n_attributes if dependent else 0
        status = self._driver.launch_kernel(self._config_address, self._function, self._cell_addresses, None)
        if status:
            self._driver.fail(f"launching {self._name} on a grid of {grid}, blocks of {block}", status)

    def unload(self) -> None:
        """Take it off the device."""
        self._driver.unload_module(self._module)

    def _fit(self, types: tuple[type, ...]) -> list[Callable[[Any], int]]:
        """How to pack arguments of these types, and cells for them. Raises TypeError for wrong sizes."""
        for each in types:
            if each not in _SCALARS and (
                not hasattr(each, "data") or issubclass(each, (np.generic, np.ndarray))
            ):
                raise TypeError(f"{self._name} takes arrays on the GPU and NumPy scalars, not {each}")
        how = [_SCALARS.get(each, (_CELL_BYTES, _address)) for each in types]
        given, taken = tuple(size for size, _ in how), self._driver.parameter_sizes(self._function)
        if taken is not None and given != taken:
            raise TypeError(f"{self._name} takes arguments of {taken} bytes, not of {given}")
        self._cells = (ctypes.c_uint64 * len(types))()
        start = ctypes.addressof(self._cells)
        cells = (start + _CELL_BYTES * index for index in range(len(types)))
        self._cell_addresses = (ctypes.c_void_p * len(types))(*cells)
        self._packs[types] = [pack for _, pack in how]
        return self._packs[types]


def _address(array: Any) -> int:
    return int(array.data.ptr)


def _three(extents: Shape) -> tuple[int, int, int]:
    if isinstance(extents, int):
        return extents, 1, 1
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z
