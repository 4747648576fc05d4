"""The logits of one row, wherever they are, and what to ask of whoever holds them.

Knows the two ways to an id: drawn where the logits are, or from a copy on the host. Does not know the chain
(`sampler` does) or any device.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from engine.config import SamplingParams
from engine.errors import KernelError

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]


class Penalties(NamedTuple):
    """The distinct ids that the penalties lower, ascending; none when all penalties are off."""

    ids: Int32Array
    counts: Int32Array
    """How often each occurs in the window."""


class DrawRequest(NamedTuple):
    """One draw, as far as it does not depend on the logits."""

    params: SamplingParams
    penalties: Penalties
    uniform: float
    """In [0, 1), from the sampler's generator: which point of the distribution is drawn. Greedy: unused."""


class Logits(Protocol):
    """Logits [V] that follow the last id of a pass."""

    def all(self) -> Float32Array:
        """Give them on the host, [V]; not to be written to. Raises KernelError when they are not numbers."""
        ...

    def draw(self, request: DrawRequest) -> int | None:
        """Draw an id where the logits are; None when that is not possible there, and nothing was done.

        At most once; `all` is undefined afterwards. Raises KernelError when the logits are not numbers.
        """
        ...


class HostLogits:
    """`Logits` in host memory: the sampler draws from them."""

    def __init__(self, logits: Float32Array) -> None:
        """Hold logits [V]. Raises KernelError when they are not numbers."""
        self._logits: Float32Array = checked(logits)

    def all(self) -> Float32Array:
        """Give them, [V]; not to be written to."""
        return self._logits

    def draw(self, request: DrawRequest) -> int | None:
        """None: they are here already."""
        return None


def checked(logits: Float32Array) -> Float32Array:
    """The logits [..., V] given; KernelError when the best of a row is not a number or not finite."""
    if not np.all(np.isfinite(logits.max(axis=-1))):
        raise not_numbers()
    return logits


def not_numbers() -> KernelError:
    """The error for logits of which the best is not a finite number."""
    return KernelError(
        "the model computed values that are not numbers; the file may be damaged: fetch it again, or "
        "try --precision float"
    )
