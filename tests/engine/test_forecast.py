"""What would be planned for a machine whose GPU is only told of: it is opened to be measured alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kernels
from engine import forecast as module
from engine.backends import gpus
from engine.cancel import CancelToken
from engine.config import ExecutorChoice, KVType, LoadOptions
from engine.errors import BudgetError, DeviceError
from engine.events import Executor
from engine.forecast import Forecast, Memory, forecast
from engine.gguf import open_gguf
from engine.kv_cache import kv_bytes
from engine.tiers import probe
from engine.tiers.budget import Budget
from engine.tiers.rates import GpuMeasured, LinkRates, Measured, load_rates, save_rates
from engine.tiers.wishes import parse_place
from kernels.cuda.devices import DeviceFacts, NoDevice
from kernels.quant_types import QuantType
from tests.tiny_gguf import write_tiny_model

pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")

GB = 10**9
CARD = DeviceFacts(0, "Testcard 9000", 90, 132, 24 * GB, 20 * GB, "580.1")
LINK = LinkRates(
    vram=4e12, h2d=5e10, h2d_beside_cpu=4e10, cpu_beside_h2d=0.9, matrix_flops=4e14, crossing_s=5e-5
)
MEASURED = Measured(
    dram=1e11,
    gemv={QuantType.Q4_K: 9e10},
    gpus={"Testcard 9000, driver 580.1, Q4_K": GpuMeasured(LINK, 1e12)},
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forecast")
    return write_tiny_model(folder / "m.gguf", quant_type=QuantType.Q4_K, layers=6, vocab_size=2000)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU that cannot be opened."""
    monkeypatch.setattr(gpus, "devices", lambda: [CARD])
    monkeypatch.setattr(module, "open_gpu", None)
    yield


def planned(path: Path, *, measure: bool = False, **options: Any) -> Forecast:
    with open_gguf(path) as gguf:
        loading = LoadOptions(path, **{"context": 64, "threads": 2, **options})
        return forecast(gguf, loading, Memory(8 * GB), CancelToken(), measure=measure)


def short_of(whole: Forecast, share: float) -> Budget:
    """A budget of GPU memory that lacks this share of the layers' weights."""
    assert whole.gpu is not None
    weights = sum(whole.gpu.sizes.block_bytes[index] for index in whole.gpu.plan.layer_blocks)
    return Budget(whole.gpu.plan.vram_bytes - int(weights * share))


@pytest.mark.usefixtures("card")
def test_a_gpu_that_holds_it_takes_no_other_memory(path: Path) -> None:
    found = planned(path)
    assert found.gpu is not None
    assert (found.ram_bytes, found.host.ram_bytes, found.no_gpu) == (0, 0, "")
    assert found.gpu.plan.vram == {block.index for block in found.blocks}
    assert found.gpu.budget == 18 * GB
    assert found.chunk == 64
    assert 0 < found.kv_bytes < found.gpu.plan.vram_bytes
    assert planned(path, kv_type=KVType.Q8_0).kv_bytes < found.kv_bytes


def test_without_a_gpu_it_says_why(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "devices", lambda: NoDevice("no driver", has_driver=False))
    found = planned(path)
    assert found.gpu is None
    assert "no driver" in found.no_gpu
    assert found.ram_bytes == found.host.ram_bytes + found.room.kv + found.room.scratch
    assert found.kv_bytes == kv_bytes(found.config, 64, found.options.precision)
    assert planned(path, device="cpu").no_gpu == "as asked for"
    with pytest.raises(DeviceError, match="no driver"):
        planned(path, device="cuda")


def test_wishes_that_change_nothing_are_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "devices", lambda: NoDevice("no driver", has_driver=False))
    assert planned(path).notices == ()
    rules = parse_place("head=ram")
    wishes = {"vram_budget": Budget(1), "kv_type": KVType.Q8_0, "gpu_layers": 0, "place": rules}
    more = {"executor": ExecutorChoice.STREAM, "prefetch": 2, "link_limit": 1e9}
    assert planned(path, **wishes, **more).notices == (
        "no GPU would compute: --vram-budget, --kv-type, --gpu-layers, --place, a choice of executor, "
        "--prefetch, --link-limit would change nothing",
    )


@pytest.mark.usefixtures("card")
def test_what_a_gpu_does_not_hold_is_in_memory_and_counted(path: Path) -> None:
    whole = planned(path)
    found = planned(path, vram_budget=short_of(whole, 0.5))
    assert found.gpu is not None
    assert found.gpu.plan.vram_bytes <= found.gpu.budget == short_of(whole, 0.5).n_bytes
    beside = found.gpu.sizes.host_bytes(found.gpu.plan.chunk, 0)
    assert found.ram_bytes == found.host.ram_bytes + found.room.scratch + beside
    assert found.host.ram_bytes > 0
    assert beside > 4 * found.config.hidden_size * found.gpu.plan.chunk, "slots that blocks pass through"
    apart = {block.index for block in found.blocks} - found.gpu.plan.vram
    assert apart and apart <= found.host.resident
    assert found.kv_bytes == whole.kv_bytes


@pytest.mark.usefixtures("card")
def test_a_gpu_that_is_too_small_leaves_it_to_the_processor_unless_it_was_asked_for(path: Path) -> None:
    found = planned(path, vram_budget=Budget(10_000_000))
    assert found.gpu is None
    assert "--vram-budget" in found.no_gpu
    with pytest.raises(BudgetError, match="--vram-budget"):
        planned(path, vram_budget=Budget(10_000_000), device="cuda:0")


@pytest.mark.usefixtures("card")
def test_without_the_c_kernels_a_gpu_computes_what_it_holds_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = planned(path)
    monkeypatch.delattr(kernels, "cpu")
    monkeypatch.setitem(sys.modules, "kernels.cpu", None)
    assert planned(path).gpu is not None
    assert "make setup" in planned(path, vram_budget=short_of(whole, 0.5)).no_gpu
    with pytest.raises(DeviceError, match="the C kernels that would compute the rest are not installed"):
        planned(path, vram_budget=short_of(whole, 0.5), device="cuda")


@pytest.mark.usefixtures("card")
def test_every_wish_reaches_the_planner(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    real = module.plan_tiers

    def plan_tiers(*sizes: Any, **wishes: Any) -> object:
        asked.append(wishes)
        return real(*sizes)

    monkeypatch.setattr(module, "plan_tiers", plan_tiers)
    rules = parse_place("blk.0=ram")
    planned(
        path, executor=ExecutorChoice.CPU, gpu_layers=3, place=rules, prefetch=2, chunk=32, link_limit=1e9
    )
    assert asked == [
        {
            "executor": ExecutorChoice.CPU,
            "gpu_layers": 3,
            "rules": rules,
            "prefetch": 2,
            "chunk": 32,
            "link_limit": 1e9,
        }
    ]


@pytest.mark.usefixtures("card")
def test_a_wish_is_kept(path: Path) -> None:
    found = planned(path, place=parse_place("blk.2.ffn=ram,blk.4=ram"), executor=ExecutorChoice.CPU)
    assert found.gpu is not None
    outside = {block.name for block in found.blocks if block.index not in found.gpu.plan.vram}
    assert outside == {"blk.2 feed_forward", "blk.4 attention", "blk.4 feed_forward"}
    assert Executor.CPU in found.gpu.plan.executors().values()


@pytest.mark.usefixtures("card")
def test_what_was_measured_before_predicts_and_nothing_is_measured(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    half = short_of(planned(path), 0.5)
    unknown = planned(path, vram_budget=half, rates_file=file)
    assert unknown.gpu is not None
    assert (unknown.rates, unknown.gpu.plan.predicted_decode_s) == (None, None)
    assert not file.exists()
    save_rates(file, probe._fingerprint(probe._device(), 2), MEASURED)
    known = planned(path, vram_budget=half, rates_file=file, measure=True)
    assert known.gpu is not None and known.rates is not None
    assert (known.rates.link, known.rates.cpu_flops) == (LINK, 1e12)
    assert known.gpu.plan.predicted_decode_s is not None
    assert known.gpu.plan.limited_by


def test_what_is_missing_is_measured_on_the_gpu_that_was_asked_for(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, told = tmp_path / "rates.json", []

    class Opened:
        def close(self) -> None:
            told.append("closed")

    def open_gpu(name: str | None, cache_dir: Path | None) -> tuple[Opened, object]:
        told.append(f"opened {name}")
        return Opened(), gpus.gpu_facts(CARD)

    def gpu_rates(device: object, threads: int, quant_type: QuantType, *rest: object) -> GpuMeasured:
        assert isinstance(device, Opened)
        told.append(f"{quant_type.name} on {threads} threads")
        return MEASURED.gpus["Testcard 9000, driver 580.1, Q4_K"]

    monkeypatch.setattr(gpus, "devices", lambda: [CARD])
    monkeypatch.setattr(module, "open_gpu", open_gpu)
    monkeypatch.setattr("engine.tiers.probe_gpu.gpu_rates", gpu_rates)
    monkeypatch.setattr(probe, "probe_memory", lambda *_: (1e11, {QuantType.Q4_K: 9e10}))
    found = planned(path, rates_file=file, measure=True, device="cuda:0")
    assert told == ["opened cuda:0", "Q4_K on 2 threads", "closed"]
    assert found.rates is not None and found.rates.link == LINK
    assert load_rates(file, probe._fingerprint(probe._device(), 2)) == MEASURED
