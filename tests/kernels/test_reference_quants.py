"""The dequantisers against those of the `gguf` package, which were written by others."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from kernels.quant_types import QuantType, block_bytes, block_size
from kernels.reference_quants import dequantize


@pytest.mark.parametrize("quant_type", QuantType, ids=lambda quant_type: quant_type.name)
def test_random_blocks_expand_as_in_the_gguf_package(quant_type: QuantType) -> None:
    n_bytes = block_bytes(quant_type)
    blocks = np.random.default_rng(quant_type).integers(0, 256, (300, n_bytes), np.uint8)
    with np.errstate(all="ignore"):  # random scales are now and then infinite or NaN
        ours = dequantize(blocks.reshape(-1), quant_type)
        theirs = gguf.dequantize(blocks, gguf.GGMLQuantizationType(quant_type)).reshape(-1)
    assert ours.dtype == np.float32
    assert ours.shape == (300 * block_size(quant_type),)
    np.testing.assert_array_equal(ours, theirs)


def test_a_q4_0_block_packed_by_hand_expands_to_what_the_eye_reads() -> None:
    # Scale 0.5; byte i holds code i for element i and 15 - i for element i + 16; codes are offset by 8.
    codes = np.array([i | (15 - i) << 4 for i in range(16)], np.uint8)
    block = np.concatenate([np.array([0.5], np.float16).view(np.uint8), codes])
    expected = [(i - 8) / 2 for i in range(16)] + [(15 - i - 8) / 2 for i in range(16)]
    assert dequantize(block, QuantType.Q4_0).tolist() == expected
