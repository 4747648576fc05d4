"""Probing times what it should, only what is not known yet, and stops when told to. Speeds are not judged."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import kernels
from engine.cancel import CancelToken
from engine.errors import CancelledError, DeviceError, KernelError
from engine.events import GpuFacts
from engine.tiers import probe
from engine.tiers.probe import GpuToProbe
from engine.tiers.rates import GpuMeasured, LinkRates, Measured, Rates, load_rates
from kernels import errors as kernel_errors
from kernels.quant_types import QuantType
from tests.tiny_gguf import write_tiny_model

pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little to read, so that the tests are quick."""
    monkeypatch.setattr(probe, "_LEAST_BYTES", 2 << 20)
    monkeypatch.setattr(probe, "_LEAST_FILE", 0)
    monkeypatch.setattr("kernels.bench._READ_BYTES", 1 << 20)
    monkeypatch.setattr(probe, "cache_bytes", lambda: 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Stands for a model file: large enough to read, small enough to write."""
    path = write_tiny_model(tmp_path / "m.gguf")
    with path.open("ab") as file:
        file.truncate(10_000_001)
    return path


def stopped() -> CancelToken:
    token = CancelToken()
    token.cancel()
    return token


def test_every_type_has_a_rate_after_its_product_was_found_right() -> None:
    dram, gemv = probe.probe_memory(1, QuantType, CancelToken())
    assert gemv.keys() == set(QuantType)
    assert min(dram, *gemv.values()) > 0


@pytest.mark.parametrize(
    ("caches", "available", "expected"),
    [(0, 1 << 40, 2 << 20), (3 << 20, 1 << 40, 12 << 20), (3 << 20, 20 << 20, 5 << 20), (0, 0, 0)],
)
def test_what_is_multiplied_is_larger_than_the_caches_and_fits_memory(
    monkeypatch: pytest.MonkeyPatch, caches: int, available: int, expected: int
) -> None:
    monkeypatch.setattr(probe, "cache_bytes", lambda: caches)
    monkeypatch.setattr(probe, "available_memory", lambda: available)
    assert probe._matrix_bytes() == expected


def test_where_no_memory_is_free_rates_are_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "available_memory", lambda: 0)
    dram, gemv = probe.probe_memory(1, [QuantType.Q4_K], CancelToken())
    assert min(dram, *gemv.values()) > 0


def test_a_wrong_product_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.verification.product_is_right", lambda *arguments: False)
    with pytest.raises(KernelError, match="Q4_K differs from its oracle"):
        probe.probe_memory(1, [QuantType.Q4_K], CancelToken())


def test_memory_and_disk_stop_when_told_to(model: Path) -> None:
    with pytest.raises(CancelledError):
        probe.probe_memory(1, QuantType, stopped())
    with pytest.raises(CancelledError):
        probe.probe_disk(model, stopped())


class Reads:
    """In place of `DirectFiles`: notes what is read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ranges: list[tuple[int, int]] = []
        self.closed = False

    def __call__(self, paths: list[Path]) -> Reads:
        return self

    def read(self, part: int, offset: int, into: memoryview) -> int:
        assert part == 0
        assert offset % 4096 == len(into) % 4096 == 0
        n_bytes = min(len(into), self.size - offset)
        self.ranges.append((offset, offset + n_bytes))
        return n_bytes

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("size", [1, 4096, 10_000_001, 3 << 30])
def test_the_disk_is_read_in_different_places_of_the_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    path = tmp_path / "m.gguf"
    with open(path, "wb") as file:
        file.truncate(size)  # holes: no disk is filled
    reads = Reads(size)
    monkeypatch.setattr(probe, "DirectFiles", reads)
    assert probe.probe_disk(path, CancelToken()) > 0
    assert reads.closed
    ranges = sorted(reads.ranges)
    assert all(before[1] <= after[0] for before, after in pairwise(ranges))
    assert all(start < end <= size for start, end in ranges)
    n_bytes = sum(end - start for start, end in ranges)
    assert n_bytes <= probe._DISK_BYTES
    assert n_bytes >= min(size, probe._DISK_BYTES) * 0.75
    assert ranges[0][0] == 0
    assert ranges[-1][1] > size * 0.75


def test_a_slow_disk_is_not_read_to_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with open(path, "wb") as file:
        file.truncate(1 << 30)
    reads = Reads(1 << 30)
    monkeypatch.setattr(probe, "DirectFiles", reads)
    monkeypatch.setattr(probe, "_DISK_S", -1.0)  # as if the time were always over
    probe.probe_disk(path, CancelToken())
    assert len(reads.ranges) == 4  # one for each in flight


def test_a_real_file_is_read(model: Path) -> None:
    assert probe.probe_disk(model, CancelToken()) > 0


class Probes:
    """In place of the two measurements: notes what is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[object] = []
        monkeypatch.setattr(probe, "probe_memory", self.memory)
        monkeypatch.setattr(probe, "probe_disk", self.disk)

    def memory(
        self, threads: int, types: Iterable[QuantType], cancel: CancelToken
    ) -> tuple[float, dict[QuantType, float]]:
        types = list(types)
        self.asked.append((threads, types))
        return 9e9, {quant_type: 5e9 + quant_type for quant_type in types}

    def disk(self, path: Path, cancel: CancelToken) -> float:
        self.asked.append(path)
        return 2e9

    def since(self) -> list[object]:
        asked, self.asked = self.asked, []
        return asked


Q4_K, Q6_K = QuantType.Q4_K, QuantType.Q6_K


def known_rates(
    disk_of: Path | None, types: Iterable[QuantType], threads: int, file: Path, *, measure: bool = True
) -> tuple[Rates | None, tuple[str, ...]]:
    return probe.model_rates(disk_of, types, threads, file, measure=measure, cancel=CancelToken())


def test_a_load_measures_only_what_is_not_known(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes, file = Probes(monkeypatch), tmp_path / "rates.json"

    def rates(types: set[QuantType], threads: int = 2) -> Rates | None:
        found, notices = known_rates(model, types, threads, file)
        assert notices == ()
        return found

    first = rates({Q4_K})
    assert first == Rates(9e9, {Q4_K: 5e9 + Q4_K}, 2e9)
    assert probes.since() == [(2, [Q4_K]), model]
    assert rates({Q4_K}) == first
    assert probes.since() == []
    both = rates({Q4_K, Q6_K})
    assert both is not None
    assert both.gemv.keys() == {Q4_K, Q6_K}
    assert probes.since() == [(2, [Q6_K])]
    rates({Q4_K}, threads=1)
    assert probes.since() == [(1, [Q4_K]), model]
    assert rates({Q4_K, Q6_K}) == both
    assert probes.since() == []


def test_what_would_disturb_is_told_before_anything_is_measured(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes, file = Probes(monkeypatch), tmp_path / "rates.json"

    def load(*, measure: bool) -> None:
        probe.model_rates(
            model,
            [Q4_K],
            2,
            file,
            measure=measure,
            cancel=CancelToken(),
            before=lambda: probes.asked.append("quiet"),
        )

    load(measure=False)
    assert probes.since() == []
    load(measure=True)
    assert probes.since() == ["quiet", (2, [Q4_K]), model]
    load(measure=True)
    assert probes.since() == [], "all is known"


def test_what_a_disk_gave_in_use_takes_the_place_of_its_probe(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes, file = Probes(monkeypatch), tmp_path / "rates.json"
    before, _ = known_rates(model, [Q4_K], 2, file)
    assert before is not None
    probe.keep_disk_rate(model, 2, file, 0.5e9)
    probes.since()
    after, _ = known_rates(model, [Q4_K], 2, file)
    assert after == replace(before, disk=0.5e9)
    assert probes.since() == []


def test_what_is_not_known_is_not_measured_where_it_is_not_worth_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes, file = Probes(monkeypatch), tmp_path / "rates.json"

    def rates(disk_of: Path | None, types: Iterable[QuantType]) -> Rates | None:
        return known_rates(disk_of, types, 1, file, measure=False)[0]

    assert rates(None, [Q4_K]) is None
    first, _ = known_rates(None, [Q4_K], 1, file)
    assert first == Rates(9e9, {Q4_K: 5e9 + Q4_K}, None)
    assert probes.since() == [(1, [Q4_K])]
    assert rates(None, [Q4_K]) == first
    assert rates(None, [Q4_K, Q6_K]) is None
    assert rates(model, [Q4_K]) is None
    known_rates(model, [Q4_K], 1, file)
    assert probes.since() == [model]
    assert rates(model, [Q4_K]) == Rates(9e9, {Q4_K: 5e9 + Q4_K}, 2e9)
    assert probes.since() == []


# -- a GPU

GPU = GpuToProbe(GpuFacts(0, "Testcard 9000", "9.0", 1 << 30, 1 << 30, "580.1"), Q4_K, device=None)
LINK = LinkRates(4e12, 5e10, 4e10, 0.9, 4e14, 5e-5)


class Links:
    """In place of the measurement of a GPU: notes what is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[object, int, QuantType]] = []
        self.fault: Exception | None = None
        monkeypatch.setattr("engine.tiers.probe_gpu.gpu_rates", self.measure)

    def measure(
        self, device: object, threads: int, quant_type: QuantType, n_bytes: int, cancel: CancelToken
    ) -> GpuMeasured:
        assert n_bytes == probe._matrix_bytes()
        if self.fault is not None:
            raise self.fault
        self.asked.append((device, threads, quant_type))
        return GpuMeasured(replace(LINK, vram=1e12 + len(self.asked)), 7e11)


def opened(quant_type: QuantType = Q4_K, name: str = "Testcard 9000", driver: str = "580.1") -> GpuToProbe:
    facts = replace(GPU.facts, name=name, driver=driver)
    return GpuToProbe(facts, quant_type, device="a device")  # type: ignore[arg-type]


def rates_with(gpu: GpuToProbe | None, file: Path, *, measure: bool = True) -> Rates | None:
    found, notices = probe.model_rates(None, [Q4_K], 2, file, measure=measure, cancel=CancelToken(), gpu=gpu)
    assert notices == ()
    return found


def test_a_gpu_is_measured_once_for_each_type_driver_and_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes, links, file = Probes(monkeypatch), Links(monkeypatch), tmp_path / "rates.json"
    assert rates_with(GPU, file, measure=False) is None
    without = rates_with(None, file)
    assert without is not None and (without.link, without.cpu_flops) == (None, None)
    assert probes.since() == [(2, [Q4_K])]
    first = rates_with(opened(), file)
    assert first is not None and first.link is not None
    assert (first.link.vram, first.cpu_flops) == (1e12 + 1, 7e11)
    assert rates_with(GPU, file, measure=False) == first == rates_with(opened(), file)
    rates_with(opened(driver="590"), file)
    rates_with(opened(name="Other"), file)
    rates_with(opened(Q6_K), file)
    assert links.asked == [("a device", 2, Q4_K)] * 3 + [("a device", 2, Q6_K)]
    assert rates_with(GPU, file, measure=False) == first
    assert rates_with(None, file) == without
    assert probes.since() == []


def test_a_gpu_without_room_is_told_and_nothing_is_predicted_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Probes(monkeypatch)
    links, file = Links(monkeypatch), tmp_path / "rates.json"
    links.fault = kernel_errors.DeviceMemoryError(1 << 30, 5_000_000, None, 0)
    rates, (notice,) = probe.model_rates(
        None, [Q4_K], 2, file, measure=True, cancel=CancelToken(), gpu=opened()
    )
    assert rates is not None and (rates.link, rates.cpu_flops) == (None, None)
    assert "Testcard 9000 is too full to measure its link (5 MB are free)" in notice
    links.fault = None
    assert rates_with(GPU, file, measure=False) is None
    rates = rates_with(opened(), file)
    assert rates is not None and rates.link is not None
    links.fault = kernel_errors.DeviceError("it broke")
    with pytest.raises(DeviceError, match="Testcard 9000 failed while it was measured: it broke"):
        rates_with(opened(Q6_K), file)


def test_measuring_a_link_again_replaces_what_is_known_of_that_gpu_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Probes(monkeypatch)
    links, file = Links(monkeypatch), tmp_path / "rates.json"
    for gpu in (opened(), opened(Q6_K), opened(name="Testcard 9"), opened(driver="old")):
        rates_with(gpu, file)
    found, notices = probe.probe_link(opened(), 2, file, CancelToken())
    assert notices == ()
    assert found == GpuMeasured(replace(LINK, vram=1e12 + 5), 7e11)
    kept = load_rates(file, probe._fingerprint(probe._device(), 2))
    assert kept.gpus.keys() == {opened().key, opened(name="Testcard 9").key}
    assert kept.gpus[opened().key] == found
    assert (kept.dram, kept.gemv) == (9e9, {Q4_K: 5e9 + Q4_K})
    links.fault = kernel_errors.DeviceMemoryError(1, 0, None, 0)
    found, (notice,) = probe.probe_link(opened(), 2, file, CancelToken())
    assert found is None
    assert "too full" in notice
    assert load_rates(file, probe._fingerprint(probe._device(), 2)) == kept


def test_measuring_the_processor_again_leaves_the_gpu_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Probes(monkeypatch)
    Links(monkeypatch)
    file = tmp_path / "rates.json"
    before = rates_with(opened(), file)
    probe.measure_machine(None, 2, file, CancelToken())
    after = rates_with(GPU, file, measure=False)
    assert before is not None and after is not None
    assert after.link == before.link


def test_rates_that_cannot_be_kept_are_used_and_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Probes(monkeypatch)
    file = model / "no folder" / "rates.json"
    rates, notices = known_rates(model, [Q4_K], 1, file)
    assert rates is not None
    assert len(notices) == 1
    assert "cannot be kept" in notices[0]


def test_measuring_the_machine_measures_all_again_and_keeps_other_disks(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes, file = Probes(monkeypatch), tmp_path / "rates.json"
    known_rates(model, [Q4_K], 3, file)
    probes.since()
    found = probe.measure_machine(None, 3, file, CancelToken())
    assert probes.since() == [(3, sorted(QuantType))]
    assert (found.threads, found.dram, found.disk) == (3, 9e9, None)
    assert found.gemv.keys() == {quant_type.name for quant_type in QuantType}
    rates, _ = known_rates(model, QuantType, 3, file)
    assert rates is not None
    assert probes.since() == []
    assert probe.measure_machine(model, 3, file, CancelToken()).disk == 2e9
    assert probes.since() == [(3, sorted(QuantType)), model]


def test_without_the_kernels_nothing_is_measured(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes, file = Probes(monkeypatch), tmp_path / "rates.json"
    monkeypatch.delattr(kernels, "cpu")
    monkeypatch.setitem(sys.modules, "kernels.cpu", None)
    with pytest.raises(KernelError, match="make setup"):
        probe.measure_machine(model, 1, file, CancelToken())
    assert probes.since() == []
    assert load_rates(file, "any") == Measured()


def test_a_small_file_says_nothing_about_its_disk(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_LEAST_FILE", 1 << 24)
    file = tmp_path / "rates.json"
    assert probe.measure_machine(model, 1, file, CancelToken()).disk is None
    assert '"disks": {}' in file.read_text()
