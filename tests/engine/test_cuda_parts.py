"""Arrays in one piece of memory lie apart, aligned, and take no more than each by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.cuda_parts import Part, in_one_piece
from kernels.cuda.sketch import Sketch, allocated_bytes

TYPES = st.sampled_from([np.float32, np.float16, np.int32])
SHAPES = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)


class Kind:
    """A GPU on paper, and one with memory in NumPy's."""

    name, compute_capability, n_processors = "NVIDIA H200", 90, 132

    def empty(self, shape: int, dtype: Any) -> Any:
        return np.zeros(shape, dtype)


@given(st.lists(st.builds(Part, SHAPES, TYPES), min_size=1, max_size=5))
def test_parts_lie_apart_at_multiples_of_256(parts: list[Part]) -> None:
    memory, arrays = in_one_piece(Kind(), parts)  # type: ignore[arg-type]
    whole: Any = memory
    for number, (part, array) in enumerate(zip(parts, arrays, strict=True), start=1):
        own: Any = array
        assert (own.shape, own.dtype) == (part.shape, part.dtype)
        assert (own.ctypes.data - whole.ctypes.data) % 256 == 0
        assert not own.any()
        own.view(np.uint8)[:] = number
    assert sum(int((whole == n).sum()) for n in range(1, len(parts) + 1)) == sum(a.nbytes for a in arrays)


@settings(deadline=None)
@given(st.lists(st.integers(1 << 18, 1 << 27), min_size=1, max_size=5))
def test_large_parts_take_no_more_than_each_by_itself(sizes: list[int]) -> None:
    sketch = Sketch(Kind())
    memory, arrays = in_one_piece(sketch, [Part((size,), np.float32) for size in sizes])
    assert sketch.n_bytes <= sum(allocated_bytes(4 * size) for size in sizes)
    assert memory.nbytes >= sum(array.nbytes for array in arrays) == 4 * sum(sizes)
