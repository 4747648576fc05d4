"""Measured rates come back from their file as they were put in, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tiers.rates import Measured, Rates, load_rates, save_rates
from kernels.quant_types import QuantType

MEASURED = Measured(dram=2e10, gemv={QuantType.Q4_K: 1.25e10, QuantType.F32: 2e10}, disks={66306: 3.1e9})


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
        | st.dictionaries(st.sampled_from(["m", "dram", "gemv", "disks", "Q4_K", "1"]), inner, max_size=4)
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
