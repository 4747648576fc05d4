"""The benchmarks on a real GPU: every part runs, and figures are possible ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends.gpus import find_gpus
from engine.cancel import CancelToken
from engine.config import LoadOptions
from engine.measuring.benchmark import measure_speed
from engine.measuring.benchmark_gpu import measure_gpu
from engine.measuring.benchmark_kernels import measure_gpu_kernel
from engine.measuring.benchmark_ops import WHOLE_STEP, measure_ops
from kernels.quant_types import QuantType
from tests.tiny_gguf import write_tiny_model

pytestmark = pytest.mark.gpu

CACHE = Path(__file__).resolve().parents[3] / ".cache" / "cuda-kernels"
"""Compiled kernels, for the next run of the tests too."""


@pytest.fixture(autouse=True)
def a_gpu() -> None:
    """Skip where there is none."""
    found = find_gpus()
    if not found.devices:
        pytest.skip(found.reason)


@pytest.fixture
def loading(tmp_path: Path) -> LoadOptions:
    """A small model on the GPU."""
    path = write_tiny_model(tmp_path / "tiny.gguf", quant_type=QuantType.Q4_K, context=2048)
    return LoadOptions(path, device="cuda", cache_dir=CACHE)


def test_a_model_is_measured_beside_the_ceilings(loading: LoadOptions) -> None:
    cells = measure_speed(
        loading, n_prompt=64, n_decode=32, depths=[0, 600], repetitions=3, cancel=CancelToken()
    ).cells
    for cell in cells:
        assert cell.decode_tok_s is not None
        assert cell.decode_tok_s > 100
        assert cell.read_gb_s is not None
        assert cell.copy_gb_s is not None
        assert cell.h2d_gb_s is not None
        assert cell.read_gb_s > cell.h2d_gb_s > 0
        assert cell.copy_gb_s > cell.h2d_gb_s
        assert cell.host_share is not None
        assert 0 <= cell.host_share < 1


def test_the_operations_of_a_step_add_up(loading: LoadOptions) -> None:
    whole, _, *ops = measure_ops(loading, depths=[500], repetitions=5, cancel=CancelToken()).cells
    assert whole.op == WHOLE_STEP
    assert sum(cell.launches for cell in ops) == whole.launches
    # Alone an operation may find more in the cache, and a launch overlaps with the next one of its kind.
    assert 0.3 < sum(cell.share for cell in ops) < 3


def test_products_reach_a_part_of_the_ceiling() -> None:
    cells = measure_gpu_kernel(
        QuantType.Q8_0, device="cuda", cache_dir=CACHE, repetitions=3, cancel=CancelToken()
    ).cells
    assert all(0.1 < cell.bandwidth_share < 1.2 for cell in cells if cell.columns == 1)


def test_the_probe_measures_every_type() -> None:
    rates = measure_gpu(
        None, "cuda", None, CACHE, None, on_progress=lambda stage, share: None, cancel=CancelToken()
    )
    assert rates.gemv.keys() == {quant_type.name for quant_type in QuantType}
    assert all(0.05 < rate / rates.ceilings.read < 1.2 for rate in rates.gemv.values())
    assert rates.placement is not None
    link = rates.placement.link
    assert 0.5 < link.h2d / rates.ceilings.h2d < 1.2
    assert 0 < link.h2d_beside_cpu <= link.h2d
    assert link.matrix_flops > rates.placement.cpu_flops
