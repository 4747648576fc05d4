"""How far a kernel may be from its oracle: |difference| <= rtol * scale + atol, one entry for each operation.

Knows arithmetic, not tests. `scale` is what rounding errors are proportional to: the sum of absolute products
for sums, the absolute value elsewhere. Every entry is derived in its line; u is 2^-24, half a float32 step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Tolerance(NamedTuple):
    """Allowed difference: rtol * scale + atol."""

    rtol: float
    atol: float


TOLERANCES = {
    # A chain of up to 28,672 / 16 additions drifts by about sqrt(1,792) u = 2.5e-6; the dequantised weight
    # itself is rounded differently by 2 u.
    "matmul": Tolerance(4e-6, 0.0),
    # Mean of squares, root, two products: a few u; sums of 8,192 squares add sqrt(512) u.
    "rmsnorm": Tolerance(3e-6, 0.0),
    # exp by polynomial: 2 u, and its argument of up to 88 is itself rounded by 44 u.
    "softmax": Tolerance(6e-6, 1e-12),
    "swiglu": Tolerance(6e-6, 1e-7),
    # As swiglu; g - g / (e + 1) loses about |g| u where the result is small.
    "geglu": Tolerance(6e-6, 2e-6),
    # Two products and a sum: 3 u of the larger term; scale is the length of the pair.
    "rope": Tolerance(4e-7, 0.0),
    # Softmax of scores off by sqrt(256) u of a sum of products, then a sum of values up to 1 + 2^-10 apart.
    "attention": Tolerance(2e-5, 2e-6),
    # Keys and values rounded to 11 bits: half a step is 2^-12 of a value, and moves each score as much.
    "attention float16": Tolerance(3e-3, 1e-3),
    # Equal to ggml's layout to the last bit but for the order of two products.
    "embedding": Tolerance(4e-7, 0.0),
}


def within(operation: str, result: Floats, expected: Floats, scale: Floats | float | None = None) -> bool:
    """Whether every element is near enough; `scale` is |expected| where not given."""
    tolerance = TOLERANCES[operation]
    size = np.abs(expected) if scale is None else scale
    return bool(np.all(np.abs(result - expected) <= tolerance.rtol * size + tolerance.atol))
