"""A report says what a preview and loading say, with and without a GPU; every block is in it once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import reporting as module
from engine.backends import gpus
from engine.cancel import CancelToken
from engine.config import LoadOptions
from engine.errors import BudgetError, GGUFError
from engine.events import Executor, Tier
from engine.preview import preview_model
from engine.reporting import plan_report
from engine.tiers import probe
from engine.tiers.advice import PlanReport
from engine.tiers.budget import Budget
from engine.tiers.rates import GpuMeasured, LinkRates, Measured, save_rates
from kernels.cuda.devices import DeviceFacts, NoDevice
from kernels.quant_types import QuantType
from tests.engine.budgets import budget_for
from tests.tiny_gguf import write_tiny_model

pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")

CARD = DeviceFacts(0, "Testcard 9000", 90, 132, 24 * 10**9, 20 * 10**9, "580.1")
LINK = LinkRates(4e12, 5e10, 4e10, 0.9, 4e14, 5e-5)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reporting")
    return write_tiny_model(folder / "m.gguf", quant_type=QuantType.Q4_K, layers=6, vocab_size=2000)


@pytest.fixture
def rates_file(path: Path, tmp_path: Path) -> Path:
    """Everything is known already."""
    file = tmp_path / "rates.json"
    measured = Measured(
        dram=1e11,
        gemv={QuantType.Q4_K: 9e10},
        disks={path.stat().st_dev: 2e9},
        gpus={"Testcard 9000, driver 580.1, Q4_K": GpuMeasured(LINK, 1e12)},
    )
    save_rates(file, probe._fingerprint(probe._device(), 2), measured)
    return file


def report(path: Path, rates_file: Path | None, **options: Any) -> PlanReport:
    return plan_report(
        LoadOptions(path, context=64, threads=2, rates_file=rates_file, **options), CancelToken()
    )


def has_one_line_each(found: PlanReport) -> bool:
    return all("\n" not in line for line in (*found.lines, *found.advice, *found.timeline))


@pytest.fixture
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "devices", lambda: NoDevice("no driver is installed", has_driver=False))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "devices", lambda: [CARD])


@pytest.mark.usefixtures("no_card")
def test_without_a_gpu_memory_and_disk_are_planned_and_that_is_said(path: Path, rates_file: Path) -> None:
    found = report(path, rates_file, ram_budget=budget_for(path, 64, 0.5))
    told = preview_model(path, LoadOptions(path, context=64, threads=2, ram_budget=budget_for(path, 64, 0.5)))
    assert "no driver is installed" in found.lines[0]
    on_disk = [block for block in found.blocks if block.tier is Tier.NVME and block.layer is not None]
    assert on_disk
    assert {block.executor for block in found.blocks} == {Executor.CPU}
    assert found.ram_bytes == told.ram_bytes <= found.ram_budget_bytes
    assert (found.vram_bytes, found.vram_budget_bytes, found.slots) == (0, 0, 0)
    assert (found.context, found.chunk, found.limited_by) == (64, 64, "the disk")
    assert found.predicted_decode_tok_s == pytest.approx(2e9 / told.pass_read_bytes)
    (more,) = found.advice
    assert more.startswith("8.00 GB more RAM: ") and "times as fast" in more
    assert has_one_line_each(found)


@pytest.mark.usefixtures("no_card")
def test_what_fits_memory_needs_no_advice_and_without_rates_nothing_is_predicted(path: Path) -> None:
    found = report(path, None)
    assert (found.predicted_decode_tok_s, found.advice, found.limited_by) == (None, (), "")
    assert {block.tier for block in found.blocks} == {Tier.RAM}


@pytest.mark.usefixtures("card")
def test_with_a_gpu_every_block_has_its_tier_and_executor(path: Path, rates_file: Path) -> None:
    whole = report(path, rates_file)
    assert {(block.tier, block.executor) for block in whole.blocks} == {(Tier.VRAM, Executor.GPU)}
    weights = sum(block.n_bytes for block in whole.blocks if block.layer is not None)
    budget = Budget(whole.vram_bytes - weights // 2)
    found = report(path, rates_file, vram_budget=budget)
    options = LoadOptions(path, context=64, threads=2, rates_file=rates_file, vram_budget=budget)
    told = preview_model(path, options)
    assert [block.name for block in found.blocks] == [block.name for block in whole.blocks]
    assert {block.tier for block in found.blocks} == {Tier.VRAM, Tier.RAM}
    on_gpu = [block.tier for block in found.blocks if block.executor is Executor.GPU]
    assert on_gpu.count(Tier.RAM) == 1  # the spare block
    assert on_gpu.count(Tier.VRAM) == sum(block.tier is Tier.VRAM for block in found.blocks)
    assert (found.vram_bytes, found.ram_bytes) == (told.vram_bytes, told.ram_bytes)
    assert found.vram_bytes <= found.vram_budget_bytes == budget.n_bytes
    assert found.predicted_decode_tok_s == told.predicted_decode_tok_s
    assert found.predicted_decode_tok_s is not None and found.predicted_prefill_tok_s is not None
    assert found.limited_by == told.limited_by != ""
    assert "Testcard 9000" in found.lines[0]
    assert found.advice and found.timeline
    assert max(map(len, found.timeline)) <= module._COLUMNS
    assert has_one_line_each(found)


@pytest.mark.usefixtures("card")
def test_without_rates_of_the_link_nothing_is_predicted(path: Path) -> None:
    found = report(path, None)
    assert (found.predicted_decode_tok_s, found.predicted_prefill_tok_s) == (None, None)
    assert (found.advice, found.timeline, found.limited_by) == ((), (), "")
    assert found.blocks


@pytest.mark.usefixtures("card")
def test_what_loading_refuses_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError):
        report(path, None, device="cuda", vram_budget=Budget(1))
    (tmp_path / "note.gguf").write_bytes(b"hi")
    with pytest.raises(GGUFError):
        report(tmp_path / "note.gguf", None)
