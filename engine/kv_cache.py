"""The keys and values of all positions seen so far, reserved whole before the first token.

Knows its shape and size; does not know who fills it. Rewinding needs no call: the next forward pass
names its start position and overwrites what came after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.config import Precision
from engine.model_config import ModelConfig


class KVCache(Protocol):
    """Keys and values of every layer; where and how they lie is the affair of the backend that made it."""

    @property
    def max_context(self) -> int:
        """Positions it has room for."""
        ...

    @property
    def n_bytes(self) -> int:
        """Bytes of keys and values together."""
        ...


@dataclass(frozen=True, slots=True)
class HostKV:
    """A cache in memory; how keys and values lie in the arrays differs between C and NumPy."""

    keys: npt.NDArray[np.floating]
    values: npt.NDArray[np.floating]
    max_context: int
    """Positions it has room for."""

    @property
    def n_bytes(self) -> int:
        """Bytes of keys and values together."""
        return self.keys.nbytes + self.values.nbytes


def kv_dtype(precision: Precision) -> np.dtype[np.floating]:
    """float16 in the fast precision, float32 in the exact one."""
    return np.dtype(np.float16 if precision is Precision.FAST else np.float32)


def kv_bytes(config: ModelConfig, max_context: int, precision: Precision) -> int:
    """Bytes of a cache for this many positions, known before it is allocated."""
    per_position = 2 * config.n_layers * config.n_kv_heads * config.head_dim
    return per_position * max_context * kv_dtype(precision).itemsize


def allocate_kv(config: ModelConfig, max_context: int, precision: Precision) -> HostKV:
    """Reserve zeros [n_layers, n_kv_heads, max_context, head_dim]: a head's positions lie in a row."""
    shape = (config.n_layers, config.n_kv_heads, max_context, config.head_dim)
    dtype = kv_dtype(precision)
    return HostKV(np.zeros(shape, dtype), np.zeros(shape, dtype), max_context)
