"""docs/soak.py works: its rounds leave no error behind, and it sees growth where there is some."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from engine import Engine, LoadOptions
from tests.engine.asking import wait_for

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "soak.py"


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    spec = spec_from_file_location("soak", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_rounds_of_mixed_work_end_without_an_error(
    soak: ModuleType, deep_model: Path, engine: Engine
) -> None:
    engine.load(LoadOptions(deep_model, context=256, threads=1, device="cpu"))
    wait_for(lambda: engine.snapshot.model is not None)
    work = soak.Soak(engine, vram=None, seed=3)
    while not {"cancels", "RAM budgets", "temperatures"} <= set(work.counts):
        work.round()
    assert work.errors == []
    assert engine.snapshot.ram_budget is None
    assert work.counts["tokens"] > 0


def test_growth_is_the_slope_of_what_was_seen(soak: ModuleType) -> None:
    looks = [soak.Look(at, 5_000_000 + int(at * 50_000), 0, 7) for at in (120.0, 180.0, 240.0, 300.0)]
    assert soak.mb_a_minute(looks, "resident") == pytest.approx(3.0)
    assert soak.mb_a_minute(looks, "device") == 0
    assert soak.mb_a_minute(looks[:2], "resident") is None
