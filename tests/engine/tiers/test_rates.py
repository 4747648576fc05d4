"""Measured rates come back from their file as they were put in, or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tiers.rates import GpuMeasured, LinkRates, Measured, Rates, load_rates, save_rates
from kernels.quant_types import QuantType

LINK = LinkRates(
    vram=4e12, h2d=5.5e10, h2d_beside_cpu=4.6e10, cpu_beside_h2d=0.9, matrix_flops=4e14, crossing_s=3e-5
)
MEASURED = Measured(
    dram=2e10,
    gemv={QuantType.Q4_K: 1.25e10, QuantType.F32: 2e10},
    disks={66306: 3.1e9},
    gpus={"NVIDIA H200, driver 580.1, Q4_K": GpuMeasured(LINK, 9e11)},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "rates.json"


def test_what_was_saved_comes_back(path: Path) -> None:
    save_rates(path, "this machine", MEASURED)
    assert load_rates(path, "this machine") == MEASURED
    assert os.listdir(path.parent) == ["rates.json"]


def test_machines_share_a_file_without_mixing(path: Path) -> None:
    save_rates(path, "one", MEASURED)
    save_rates(path, "other", Measured(dram=1e9))
    assert load_rates(path, "one") == MEASURED
    assert load_rates(path, "other") == Measured(dram=1e9)
    assert load_rates(path, "third") == Measured()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["m", "dram", "gemv", "disks", "gpus", "Q4_K", "1"]), inner, max_size=4
        )
    ),
)


@settings(deadline=None)
@given(json_values)
def test_a_foreign_file_is_ignored_and_replaced(
    tmp_path_factory: pytest.TempPathFactory, document: object
) -> None:
    path = tmp_path_factory.mktemp("rates") / "rates.json"
    path.write_text(json.dumps(document))
    found = load_rates(path, "m")
    rates = [*found.gemv.values(), *found.disks.values(), *([] if found.dram is None else [found.dram])]
    assert all(0 < rate < float("inf") for rate in rates)
    save_rates(path, "m", MEASURED)
    assert load_rates(path, "m") == MEASURED


@pytest.mark.parametrize("name", [*LinkRates.__slots__, "cpu_flops"])
@pytest.mark.parametrize("value", [None, 0, -1, "fast", float("inf")])
def test_a_damaged_rate_of_a_gpu_is_measured_again(path: Path, name: str, value: object) -> None:
    save_rates(path, "m", MEASURED)
    document = json.loads(path.read_bytes())
    (gpu,) = document["m"]["gpus"].values()
    gpu[name] = value
    path.write_text(json.dumps(document))
    assert load_rates(path, "m") == Measured()


def test_a_processor_is_not_faster_beside_copies(path: Path) -> None:
    faster = GpuMeasured(replace(LINK, cpu_beside_h2d=1.01), 9e11)
    save_rates(path, "m", replace(MEASURED, gpus={"g": faster}))
    assert load_rates(path, "m") == Measured()


def test_a_file_from_before_gpus_were_measured_still_counts(path: Path) -> None:
    save_rates(path, "m", MEASURED)
    document = json.loads(path.read_bytes())
    del document["m"]["gpus"]
    path.write_text(json.dumps(document))
    assert load_rates(path, "m") == replace(MEASURED, gpus={})


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"{", b"[" * 100_000, b'{"m": {"dram": 1e9}}'])
def test_a_damaged_file_is_ignored(path: Path, data: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(data)
    assert load_rates(path, "m") == Measured()
    save_rates(path, "m", MEASURED)
    assert load_rates(path, "m") == MEASURED


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_rates(path, "m", MEASURED)

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.tiers.rates.os.replace", fail)
    with pytest.raises(OSError, match="No space"):
        save_rates(path, "m", Measured())
    assert os.listdir(path.parent) == ["rates.json"]
    assert load_rates(path, "m") == MEASURED


def test_a_type_that_was_not_measured_counts_as_memory() -> None:
    rates = Rates(dram=5.0, gemv={QuantType.Q4_K: 3.0}, disk=1.0)
    assert (rates.product(QuantType.Q4_K), rates.product(QuantType.Q6_K)) == (3.0, 5.0)
