"""What a preview says is what loading then does."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from engine import preview as module
from engine.cancel import CancelToken
from engine.config import LoadOptions
from engine.loading import load_model
from engine.preview import ModelPreview, preview_model
from engine.tiers import probe
from engine.tiers.budget import Budget
from engine.tiers.rates import Measured, save_rates
from kernels.quant_types import QuantType
from tests.engine.budgets import budget_for, least_for_weights, memory_beside_weights
from tests.tiny_gguf import CHATML, write_tiny_model


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("preview") / "deep.gguf"
    return write_tiny_model(path, quant_type=QuantType.Q4_K, layers=6, chat_template=CHATML)


def preview(path: Path, *, freed_bytes: int = 0, **options: object) -> ModelPreview:
    return preview_model(path, LoadOptions(path, **options), freed_bytes)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_it_tells_what_loading_then_does(deep: Path, share: float) -> None:
    options = LoadOptions(deep, context=64, ram_budget=budget_for(deep, 64, share))
    told = preview_model(deep, options)
    loaded = load_model(options, lambda stage, progress: None, CancelToken())
    assert loaded.backend.tiers is not None
    tiers, info = loaded.backend.tiers.snapshot(), loaded.info
    loaded.close()
    assert told.problem == ""
    assert told.pass_read_bytes == tiers.pass_read_bytes
    assert (told.pass_read_bytes > 0) == (share < 1)
    assert told.ram_bytes == tiers.ram_bytes + tiers.ring_bytes + memory_beside_weights(deep, 64)
    for name in (
        *("name", "architecture", "n_layers", "n_parameters", "quantisation", "file_bytes"),
        *("training_context", "max_context", "kv_bytes", "has_template"),
    ):
        assert getattr(told, name) == getattr(info, name), name


def test_the_speed_is_predicted_from_what_was_measured_before_and_never_measured(
    deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(probe, "probe_memory")
    monkeypatch.delattr(probe, "probe_disk")
    file = tmp_path / "rates.json"
    streamed = {"context": 64, "threads": 1, "rates_file": file, "ram_budget": budget_for(deep, 64, 0)}
    assert preview(deep, **streamed).predicted_decode_tok_s is None
    assert not file.exists()
    rates = Measured(1e9, {QuantType.Q4_K: 1e9}, {deep.stat().st_dev: 1e6})
    save_rates(file, probe._fingerprint(probe._device(), 1), rates)
    slow, fast = preview(deep, **streamed), preview(deep, context=64, threads=1, rates_file=file)
    assert slow.predicted_decode_tok_s == pytest.approx(1e6 / slow.pass_read_bytes)
    assert slow.limited_by == "the disk"
    assert fast.predicted_decode_tok_s is not None and fast.predicted_decode_tok_s > 100
    assert fast.limited_by and fast.limited_by != "the disk"


def test_memory_that_will_be_free_counts(deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_memory", lambda: 0)
    half = Budget(percent=50)  # type: ignore[arg-type]
    assert "budget" in preview(deep, context=64, ram_budget=half).problem
    needed = memory_beside_weights(deep, 64) + 2 * deep.stat().st_size
    assert preview(deep, context=64, ram_budget=half, freed_bytes=2 * needed).problem == ""


def test_what_does_not_fit_says_what_would_and_keeps_the_facts(deep: Path) -> None:
    budget = Budget(memory_beside_weights(deep, 64) + least_for_weights(deep) - 1)
    told = preview(deep, context=64, ram_budget=budget)
    assert "give at least" in told.problem and "\n" not in told.problem
    assert (told.architecture, told.n_layers, told.quantisation) == ("llama", 6, "Q4_K")


def test_an_architecture_that_is_not_run_is_a_problem_and_its_facts_are_told(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_name("A Mamba")
    writer.add_license("apache-2.0")
    writer.add_context_length(1000)
    writer.add_tensor("t", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    told = preview(path)
    assert told.problem.startswith("architecture 'mamba' is not supported")
    assert (told.name, told.license, told.training_context) == ("A Mamba", "apache-2.0", 1000)
    assert (told.n_parameters, told.quantisation) == (128, "F32")
    assert not told.has_template


@pytest.mark.parametrize("case", ["missing", "folder", "empty", "text", "cut"])
def test_a_file_that_is_no_model_is_one_line_without_its_path(deep: Path, tmp_path: Path, case: str) -> None:
    path = tmp_path / "m.gguf"
    if case == "folder":
        path.mkdir()
    elif case != "missing":
        data = deep.read_bytes()
        path.write_bytes({"empty": b"", "text": b"no model" * 100, "cut": data[: len(data) // 2]}[case])
    told = preview(path)
    assert told.problem and "\n" not in told.problem and str(path) not in told.problem
    assert told.name == "m"


def test_a_fallback_template_counts_and_a_base_model_has_none(tmp_path: Path) -> None:
    # The tiny model's end-of-text token is <|im_end|>, for which there is a template of our own.
    assert preview(write_tiny_model(tmp_path / "a.gguf")).has_template
    data = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "b.gguf").write_bytes(data.replace(b"<|im_end|>", b"<|im_eNd|>"))
    assert not preview(tmp_path / "b.gguf").has_template


def test_metadata_of_other_types_than_expected_is_passed_over(deep: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("general.license", 7)
    writer.add_string("llama.context_length", "long")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    told = preview(path)
    assert (told.license, told.training_context, told.quantisation) == ("", 0, "")
    assert told.problem


def test_the_least_that_works_is_not_looked_for_where_all_fits(
    deep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.requirements.least_memory", None)
    assert preview(deep, context=64).problem == ""
