"""What a model takes on a GPU: the sizes that the planner goes by, and what is then reserved, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.cuda_model import DeviceLayout, DeviceModel, Wanted, kernels_of, whole_layout
from engine.backends.cuda_plan import (
    BESIDE_BYTES,
    CHUNKS,
    gpu_sizes,
    granted_bytes,
    layout_of,
    plan_model,
)
from engine.backends.cuda_weights import block_bytes, head_bytes, number_of
from engine.config import KVType, LoadOptions, Precision
from engine.errors import BudgetError
from engine.kv_cache import kv_bytes
from engine.tiers.blocks import Block, BlockKind, weight_blocks
from engine.tiers.budget import Budget
from engine.tiers.gpu_planner import plan_tiers
from engine.tiers.link import BUFFER_BYTES, N_LANES
from engine.tiers.tier_plan import GpuSizes
from kernels.cuda import launch_settings
from kernels.cuda.device import Device
from kernels.cuda.sketch import Sketch, allocated_bytes
from kernels.quant_types import QuantType
from tests.engine.cuda_blocks import wanted_of
from tests.engine.cuda_models import Granting
from tests.tiny_gguf import write_tiny_model

MODELS: dict[str, dict[str, object]] = {
    "untied": {"quant_type": QuantType.Q4_K, "embedding_type": QuantType.Q6_K, "vocab_size": 4001},
    "tied": {"architecture": "gemma3", "quant_type": QuantType.Q8_0, "layers": 3, "tied": True},
    "mixed": {"mixed_types": (QuantType.Q6_K, QuantType.F16, QuantType.Q5_0)},
}


class Kind:
    """A device for sketches."""

    name = "Testcard 9000"
    compute_capability = 90
    n_processors = 132


Wish = Callable[..., Wanted]


@pytest.fixture(scope="module")
def wish(tmp_path_factory: pytest.TempPathFactory) -> Wish:
    """A model of `MODELS` as it is wanted."""
    folder = tmp_path_factory.mktemp("plans")

    @cache
    def path_of(name: str) -> Path:
        return write_tiny_model(folder / f"{name}.gguf", **MODELS[name])  # type: ignore[arg-type]

    return lambda name, **options: wanted_of(path_of(name), **options)


def blocks_of(wanted: Wanted) -> tuple[Block, ...]:
    return weight_blocks(wanted.weights.gguf, wanted.config)


def sizes_of(wanted: Wanted) -> GpuSizes:
    return gpu_sizes(Kind(), wanted, launch_settings.load(Kind()))


LAYOUTS: dict[str, dict[str, Any]] = {
    "nothing": {"vram": frozenset(), "head": False, "embedding": False, "kv_layers": ()},
    "a ring": {"vram": frozenset({0, 2, 3}), "slots": 2, "slot_bytes": 3_000_000, "landing": True},
    "some layers": {"vram": frozenset({2}), "kv_layers": (1,), "embedding": False, "chunk": 9},
    "no buffers": {"staging_bytes": 0, "chunk": 4},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_layout_takes_what_was_planned_to_the_byte(
    device: Device, wish: Wish, name: str, layout: str
) -> None:
    for options in ({}, {"precision": Precision.FLOAT}, {"kv_type": KVType.Q8_0}):
        wanted = wish(name, **options)
        settings = launch_settings.load(device)
        chosen = whole_layout(wanted.config, 16)._replace(**LAYOUTS[layout])
        plan = plan_model(device, wanted, settings, 1 << 40, chosen)
        counting = Granting(device)
        model = DeviceModel(counting, wanted, settings, chosen)  # type: ignore[arg-type]
        assert sum(counting.granted) == plan.n_bytes - BESIDE_BYTES
        assert model.kv.n_bytes == plan.kv
        n_slots = chosen.slots + chosen.landing
        n_buffers = N_LANES if chosen.staging_bytes else 0
        assert plan.ring == n_slots * allocated_bytes(chosen.slot_bytes) + n_buffers * BUFFER_BYTES


@pytest.mark.parametrize("name", MODELS)
def test_computing_takes_the_same_whatever_is_on_the_gpu(wish: Wish, name: str) -> None:
    wanted, loaded = wish(name), launch_settings.load(Kind())
    whole = whole_layout(wanted.config, 16)
    part = whole._replace(vram=frozenset({1}), head=False, embedding=False, slots=2, slot_bytes=1 << 20)
    plans = [plan_model(Kind(), wanted, loaded, 1 << 40, layout) for layout in (whole, part)]
    # Rounding of the cache is all that may differ, and its layers are the same here.
    assert plans[0].computing == plans[1].computing
    assert plans[0].weights > plans[1].weights


@pytest.mark.parametrize("name", MODELS)
def test_the_sizes_of_parts_are_those_of_blocks(wish: Wish, name: str) -> None:
    wanted = wish(name)
    config, weights, blocks = wanted.config, wanted.weights, blocks_of(wanted)
    sizes = sizes_of(wanted)
    assert set(sizes.block_bytes) == {block.index for block in blocks}
    for block in blocks:
        if block.layer is not None:
            n_bytes = allocated_bytes(block_bytes(weights, number_of(block)))
            assert sizes.block_bytes[block.index] == sizes.slot_bytes[block.index] == n_bytes
    heads = [block for block in blocks if block.kind is BlockKind.HEAD]
    assert sizes.head == tuple(block.index for block in heads)
    in_all = sum(sizes.block_bytes[index] for index in sizes.head)
    assert in_all == allocated_bytes(head_bytes(weights, config))
    assert all(sizes.block_bytes[index] > 0 for index in sizes.head)
    assert (sizes.embedding is None) == config.tied_head
    assert sizes.host_kv_layer_bytes * config.n_layers == kv_bytes(config, 64, Precision.FAST)
    layout = whole_layout(config, 16)
    prompt = DeviceModel(Sketch(Kind()), wanted, launch_settings.load(Kind()), layout).prompt
    assert prompt is not None
    asked = wanted._replace(options=replace(wanted.options, chunk=16))
    assert sizes_of(asked).spare_bytes == {16: prompt.memory.nbytes}
    steps = wanted._replace(options=replace(wanted.options, chunk=4), chunk=4)
    assert sizes_of(steps).spare_bytes == {4: 0}


def test_the_chunks_to_choose_from_are_those_that_the_context_allows(wish: Wish) -> None:
    assert tuple(sizes_of(wish("tied", max_context=4096)).fixed_bytes) == CHUNKS
    assert tuple(sizes_of(wish("tied", max_context=600)).fixed_bytes) == (512, 600)
    assert tuple(sizes_of(wish("tied", max_context=7)).fixed_bytes) == (7,)
    wanted = wish("tied", max_context=4096)
    asked = wanted._replace(options=replace(wanted.options, chunk=300), chunk=300)
    assert tuple(sizes_of(asked).fixed_bytes) == (300,)
    grows = list(sizes_of(wanted).fixed_bytes.values())
    assert grows == sorted(set(grows))


LAYER_NUMBERS = st.frozensets(st.integers(0, 3))


@settings(max_examples=40, deadline=None)
@given(
    vram=LAYER_NUMBERS,
    head=st.booleans(),
    embedding=st.booleans(),
    kv_layers=st.sampled_from([(), (0,), (1,), (0, 1)]),
    slots=st.integers(0, 3),
    landing=st.booleans(),
    max_context=st.sampled_from([64, 4096, 100_000]),
)
@pytest.mark.parametrize("name", ["untied", "mixed"])
def test_parts_never_take_less_than_they_take_together(
    wish: Wish,
    name: str,
    vram: frozenset[int],
    head: bool,
    embedding: bool,
    kv_layers: tuple[int, ...],
    slots: int,
    landing: bool,
    max_context: int,
) -> None:
    wanted = wish(name, max_context=max_context)
    sizes, blocks = sizes_of(wanted), blocks_of(wanted)
    chunk = min(512, max_context)
    slot_bytes = max(sizes.slot_bytes.values())
    layout = DeviceLayout(vram, head, embedding, kv_layers, slots, slot_bytes, landing, chunk, BUFFER_BYTES)
    plan = plan_model(Kind(), wanted, launch_settings.load(Kind()), 1 << 40, layout)
    here = [block.index for block in blocks if block.layer is not None and number_of(block) in vram]
    here += sizes.head if head else ()
    here += [sizes.embedding] if embedding and sizes.embedding is not None else []
    parts = sizes.fixed_bytes[chunk] + len(kv_layers) * sizes.kv_layer_bytes
    parts += (slots + landing) * slot_bytes + sum(sizes.block_bytes[index] for index in here)
    assert plan.n_bytes <= parts <= plan.n_bytes + (8 << 20)


@pytest.mark.parametrize("name", MODELS)
def test_what_the_planner_chooses_is_what_is_reserved(wish: Wish, name: str) -> None:
    wanted = wish(name)
    sizes, blocks, config = sizes_of(wanted), blocks_of(wanted), wanted.config
    everything = sum(sizes.block_bytes.values()) + config.n_layers * sizes.kv_layer_bytes
    most = sizes.fixed_bytes[64] + everything + 3 * max(sizes.slot_bytes.values())
    tried = 0
    for vram_budget in range(sizes.fixed_bytes[64], most, max(1, everything // 12)):
        try:
            chosen = plan_tiers(blocks, sizes, vram_budget, 1 << 30, None)
        except BudgetError:
            continue
        tried += 1
        layout = layout_of(chosen, blocks, config)
        plan = plan_model(Kind(), wanted, launch_settings.load(Kind()), 1 << 40, layout)
        assert plan.n_bytes <= chosen.vram_bytes <= vram_budget
        assert len(layout.vram) == sum(
            block.layer is not None for block in blocks if block.index in chosen.vram
        )
        assert layout.head == (frozenset(sizes.head) <= chosen.vram)
        assert layout.embedding == (layout.head if config.tied_head else sizes.embedding in chosen.vram)
        assert set(layout.kv_layers) == set(range(config.n_layers)) - chosen.cpu_attention
        assert layout[5:8] == (chosen.slot_bytes, chosen.landing, chosen.chunk)
    assert tried > 3
    whole = layout_of(plan_tiers(blocks, sizes, 1 << 40, 1 << 30, None), blocks, config)
    assert whole._replace(slot_bytes=0) == whole_layout(config, 64)


def test_a_part_that_does_not_fit_is_refused_with_figures(wish: Wish) -> None:
    wanted = wish("untied", max_context=2048)
    layout = whole_layout(wanted.config, 64)._replace(vram=frozenset({0}), slots=2, slot_bytes=1 << 20)
    plan = plan_model(Kind(), wanted, launch_settings.load(Kind()), 1 << 40, layout)
    wanted = wanted._replace(options=replace(wanted.options, vram_budget=Budget(plan.n_bytes - 1)))
    text = f"for computing, and the budget is {(plan.n_bytes - 1) / 1e6:.0f} MB"
    with pytest.raises(BudgetError, match=text):
        plan_model(Kind(), wanted, launch_settings.load(Kind()), 1 << 40, layout)


def test_a_budget_is_of_what_is_free(tmp_path: Path) -> None:
    assert granted_bytes(LoadOptions(tmp_path), 1000) == 900
    assert granted_bytes(LoadOptions(tmp_path, vram_budget=Budget(700)), 1000) == 700
    assert granted_bytes(LoadOptions(tmp_path, vram_budget=Budget(7000)), 1000) == 1000


@pytest.mark.parametrize("name", MODELS)
def test_every_kernel_of_a_pass_in_pieces_is_prepared(wish: Wish, name: str) -> None:
    wanted, loaded = wish(name), launch_settings.load(Kind())
    sketch = Sketch(Kind())
    model = DeviceModel(sketch, wanted, loaded, whole_layout(wanted.config, 16))
    address = np.uint64(0)
    blocks = list(model.weights.blocks.values())
    for n_tokens in range(1, 9):
        model.step.embed(n_tokens)
        for block in blocks:
            model.step.run_blocks([block], n_tokens, model.kv, arrives=address, leaves=address)
        model.step.head(model.step.x[:n_tokens])
    assert model.prompt is not None
    model.prompt.arrive(address, 16)
    for block in blocks:
        model.prompt.run_blocks([block], 16, model.kv)
    model.prompt.leave(address, 16)
    prepared = kernels_of(Kind(), wanted, loaded)
    assert set(sketch.kernels) <= set(prepared)
    limited = wanted._replace(options=replace(wanted.options, link_limit=6.5e9))
    slowing = set(kernels_of(Kind(), limited, loaded)) - set(prepared)
    assert {kernel.source for kernel in slowing} == {"pace.cu"}
