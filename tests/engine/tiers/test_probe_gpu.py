"""What is measured of a GPU and its link: the processor alone and beside copies. Speeds are not judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.errors import CancelledError
from kernels.quant_types import QuantType, row_bytes

cpu = pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")
probe_gpu = pytest.importorskip("engine.tiers.probe_gpu")

ROW = row_bytes(QuantType.Q8_0, 4096)


class Beside(NamedTuple):
    rate: float
    calls: int
    seconds: float


class Machine:
    """Stands for GPU, link and processor, whose clock goes only when they work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.beside_rate, self.slower = 4e10, 1.25
        """Of copies while the processor works, and what a product takes then."""
        self.products: list[tuple[int, int, QuantType, int]] = []
        """Columns, bytes, type and threads of each."""
        self.copied: list[int] = []
        """Bytes of the memory that was copied from."""
        self._copies = False
        monkeypatch.setattr(probe_gpu.cpu, "matmul", self.matmul)
        monkeypatch.setattr(probe_gpu, "perf_counter", lambda: self.now)
        for name in ("copy_rate", "copy_rate_beside", "product_rate", "expand_flops", "crossing_seconds"):
            monkeypatch.setattr(probe_gpu.bench, name, getattr(self, name))

    def matmul(self, x: np.ndarray, data: np.ndarray, quant_type: QuantType, *, threads: int) -> None:
        self.products.append((len(x), data.size, quant_type, threads))
        self.now += len(x) * data.size * 1e-10 * (self.slower if self._copies else 1)

    def copy_rate(self, device: str, n_bytes: int, seconds: float) -> float:
        assert device == "device"
        self.copied.append(n_bytes)
        return 5e10

    def copy_rate_beside(
        self, device: str, n_bytes: int, seconds: float, beside: Callable[[], None]
    ) -> Beside:
        self.copied.append(n_bytes)
        self._copies, started = True, self.now
        for _ in range(10):
            beside()
        self._copies = False
        return Beside(self.beside_rate, 10, self.now - started)

    def product_rate(self, device: str, quant_type: QuantType) -> float:
        assert quant_type is QuantType.Q8_0
        return 3e12

    def expand_flops(self, device: str) -> float:
        return 4e14

    def crossing_seconds(self, device: str) -> float:
        return 5e-5


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def measured(n_bytes: int = 5000 * ROW, token: CancelToken | None = None):  # type: ignore[no-untyped-def]
    return probe_gpu.gpu_rates("device", 3, QuantType.Q8_0, n_bytes, token or CancelToken())


def test_every_rate_is_that_of_what_was_run(machine: Machine) -> None:
    link, cpu_flops = measured()
    assert (link.vram, link.h2d, link.h2d_beside_cpu) == (3e12, 5e10, 4e10)
    assert (link.matrix_flops, link.crossing_s) == (4e14, 5e-5)
    assert link.cpu_beside_h2d == pytest.approx(1 / 1.25)
    assert cpu_flops == pytest.approx(2 * 4096 / (ROW * 1e-10))
    assert {(quant_type, threads) for *_, quant_type, threads in machine.products} == {(QuantType.Q8_0, 3)}
    assert {(columns, n_bytes // ROW) for columns, n_bytes, *_ in machine.products} == {(1, 5000), (64, 4096)}


@pytest.mark.parametrize(("least", "expected"), [(1 << 20, 5000 * ROW), (1 << 30, 1 << 30)])
def test_caches_hold_no_more_of_what_is_copied_than_of_what_is_multiplied(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, least: int, expected: int
) -> None:
    monkeypatch.setattr(probe_gpu, "_LEAST_COPIED", least)
    measured()
    assert machine.copied == [expected, expected]


def test_nothing_is_faster_beside_something_else(machine: Machine) -> None:
    machine.beside_rate, machine.slower = 6e10, 0.9
    link, _ = measured()
    assert (link.h2d_beside_cpu, link.cpu_beside_h2d) == (link.h2d, 1.0)


def test_there_are_always_rows_for_many_columns(machine: Machine) -> None:
    measured(n_bytes=0)
    assert {n_bytes // ROW for _, n_bytes, *_ in machine.products} == {4096}


def test_it_stops_between_two_products(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    token = CancelToken()

    def matmul(*arguments: object, **options: object) -> None:
        machine.products.append((1, 1, QuantType.Q8_0, 1))
        if len(machine.products) == 8:  # by then beside copies
            token.cancel()

    monkeypatch.setattr(probe_gpu.cpu, "matmul", matmul)
    with pytest.raises(CancelledError):
        measured(token=token)
    assert len(machine.products) == 8
