"""The check before a benchmark finds right products right and a wrong one wrong."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.cuda import products, verification
from kernels.cuda.device import Device
from kernels.quant_types import QuantType
from kernels.synthetic import synthetic_matrix


@pytest.mark.parametrize("float_precision", [False, True], ids=["fast", "float"])
@pytest.mark.parametrize("quant_type", [QuantType.Q4_K, QuantType.Q8_0, QuantType.F16], ids=lambda t: t.name)
def test_right_products_are_right(device: Device, quant_type: QuantType, float_precision: bool) -> None:
    data = synthetic_matrix(quant_type, 50, 512)
    data.flags.writeable = False  # as a mapped file
    assert verification.product_is_right(device, data, quant_type, 512, float_precision=float_precision)


def test_a_matrix_of_a_few_rows_is_looked_at_whole(device: Device) -> None:
    assert verification.product_is_right(device, synthetic_matrix(QuantType.Q4_0, 5, 96), QuantType.Q4_0, 96)


@pytest.mark.parametrize("wrong_for", [1, 3, 8])
def test_one_wrong_kernel_is_found(device: Device, monkeypatch: pytest.MonkeyPatch, wrong_for: int) -> None:
    def multiply(device, matrix, x, out):  # type: ignore[no-untyped-def]
        products.multiply(device, matrix, x, out)
        if out.shape[0] == wrong_for:
            products.multiply(device, matrix, x, out, accumulate=True)

    monkeypatch.setattr(verification, "multiply", multiply)
    data = synthetic_matrix(QuantType.Q6_K, 40, 256)
    assert not verification.product_is_right(device, np.asarray(data), QuantType.Q6_K, 256)
