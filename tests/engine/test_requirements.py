"""How the memory granted to a model is divided beside a GPU, and which type most of its weights have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import DEFAULT_CHUNK, LoadOptions, Precision
from engine.gguf import open_gguf
from engine.model_config import ModelConfig, read_model_config
from engine.requirements import (
    DEFAULT_CONTEXT,
    choose_context,
    main_weight_type,
    room_for_gpu_host,
    room_for_weights,
    scratch_bytes,
)
from engine.tiers.blocks import weight_blocks
from engine.tiers.budget import Budget
from kernels.quant_types import QuantType
from tests.tiny_gguf import write_tiny_model

GB = 10**9


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(
        tmp_path_factory.mktemp("requirements") / "m.gguf", quant_type=QuantType.Q4_K, layers=6
    )


@pytest.fixture(scope="module")
def config(path: Path) -> ModelConfig:
    return read_model_config(open_gguf(path))


@given(budget=st.integers(1, 20 * GB), context=st.integers(1, 100_000))
def test_beside_a_gpu_the_parts_are_what_the_budget_grants(
    config: ModelConfig, budget: int, context: int
) -> None:
    options = LoadOptions(Path("m.gguf"), ram_budget=Budget(budget))
    room = room_for_gpu_host(config, options, context, 20 * GB)
    assert room.scratch == scratch_bytes(config, min(DEFAULT_CHUNK, context))
    assert (room.weights, room.kv) == (max(0, budget - room.scratch), 0)
    assert room.notices == ()


def test_beside_a_gpu_the_room_is_that_without_one_and_its_cache(path: Path, config: ModelConfig) -> None:
    for options in (LoadOptions(path, chunk=7), LoadOptions(path, precision=Precision.FLOAT)):
        without = room_for_weights(weight_blocks(open_gguf(path), config), config, options, 96, GB)
        room = room_for_gpu_host(config, options, 96, GB)
        assert room == without._replace(weights=without.weights + without.kv, kv=0)


def test_a_budget_beyond_the_memory_is_told_as_without_a_gpu(path: Path, config: ModelConfig) -> None:
    options = LoadOptions(path, ram_budget=Budget(2 * GB))
    (notice,) = room_for_gpu_host(config, options, 64, GB).notices
    assert "2.00 GB is more than the 1.00 GB that are available" in notice


def test_a_chunk_that_nobody_chose_is_the_usual_one(path: Path, config: ModelConfig) -> None:
    blocks = weight_blocks(open_gguf(path), config)
    options = LoadOptions(path)
    usual = replace(options, chunk=DEFAULT_CHUNK)
    assert room_for_weights(blocks, config, options, 4096, GB) == (
        room_for_weights(blocks, config, usual, 4096, GB)
    )
    assert room_for_weights(blocks, config, options, 64, GB).scratch == scratch_bytes(config, 64)


@pytest.mark.parametrize(("trained", "chosen"), [(131_072, DEFAULT_CONTEXT), (2048, 2048)])
def test_the_context_is_the_smaller_of_the_models_and_8192(
    config: ModelConfig, trained: int, chosen: int
) -> None:
    assert DEFAULT_CONTEXT == 8192
    assert choose_context(replace(config, training_context=trained), LoadOptions(Path("m"))) == (chosen, ())


def test_the_main_type_is_that_of_most_bytes(path: Path, config: ModelConfig) -> None:
    assert main_weight_type(weight_blocks(open_gguf(path), config)) is QuantType.Q4_K
