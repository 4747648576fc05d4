"""A plan in words says where every byte is and how it is reached, and what a change would bring."""

from __future__ import annotations

import re
from functools import partial

import pytest

from engine.events import Executor, Tier
from engine.tiers.advice import Advice, explain, places, what_if
from engine.tiers.gpu_planner import plan_tiers
from engine.tiers.tier_plan import GpuSizes, TierPlan
from tests.engine.tiers.shapes import LLAMA_8B, LLAMA_70B, RATES, SIZES_8B, SIZES_70B

GB = 10**9


def planned(vram_gb: float, ram_gb: float = 100, sizes: GpuSizes = SIZES_70B) -> TierPlan:
    return plan_tiers(LLAMA_70B, sizes, int(vram_gb * GB), int(ram_gb * GB), RATES)


def test_every_block_is_shown_with_its_tier_and_executor() -> None:
    plan = planned(24, 16)
    shown = places(plan, LLAMA_70B)
    assert [block.name for block in shown] == [block.name for block in LLAMA_70B]
    assert {block.tier for block in shown} == set(Tier)
    for block, place in zip(LLAMA_70B, shown, strict=True):
        assert (place.tier is Tier.VRAM) == (block.index in plan.vram) == (place.executor is Executor.GPU)
        if place.tier is Tier.RAM:
            assert block.index in plan.host.resident


@pytest.mark.parametrize(
    ("vram_gb", "ram_gb", "said"),
    [
        (
            24,
            100,
            [
                r"attention of 80 layers \(6\.88 GB\): in VRAM, computed by the GPU",
                r"feed-forward of \d+ layers \(.* GB\): in RAM, computed by the CPU in place",
                r"feed-forward of \d+ layers \(.* GB\): in page-locked RAM, copied to the GPU by DMA",
                r"feed-forward of 1 layers \(\d+ MB\): in page-locked RAM, copied after each prompt to VRAM",
                r"KV cache of 80 layers \(2\.68 GB\): in VRAM$",
                r"the embedding \(591 MB\): in RAM, rows are looked up by the CPU",
                r"prompts go in passes of \d+ tokens.*the GPU computes everything.*pass through \d slots",
                r"a token takes 1\d\d\.\d ms \(6\.\d per second\), and what limits it is memory bandwidth",
            ],
        ),
        (
            24,
            16,
            [
                r"feed-forward of \d+ layers \(.* GB\): read from disk into a ring in RAM, computed",
                r"slots of 457 MB and one for blocks from disk",
                r"what limits it is the disk",
            ],
        ),
        (
            3,
            100,
            [
                r"KV cache of \d+ layers .*; of \d+ layers .* in RAM, as VRAM.*",
                r"all but attention of \d+ layers",
            ],
        ),
        (8, 16, [r"attention of \d+ layers .*: read from disk into a page-locked ring, then copied"]),
        (60, 100, [r"all layers fit VRAM", r"the embedding .*: in VRAM, rows are looked up by the GPU"]),
    ],
)
def test_paths_and_reasons_are_named(vram_gb: int, ram_gb: int, said: list[str]) -> None:
    lines = explain(planned(vram_gb, ram_gb), LLAMA_70B, SIZES_70B)
    for words in said:
        assert any(re.search(words, line) for line in lines), (words, lines)


def test_changes_are_told_with_their_figures() -> None:
    plan_with = partial(plan_tiers, rates=RATES)
    changes = what_if(plan_with, LLAMA_70B, SIZES_70B, 24 * GB, 100 * GB, eight_bit_kv=False)
    vram, ram, kv, quant = changes
    assert vram.change == "4.00 GB more VRAM"
    assert vram.faster > 1.1
    assert vram.decode_tok_s == pytest.approx(1 / (planned(28).predicted_decode_s or 0))
    assert ram.change == "8.00 GB more RAM"
    assert str(ram) == "8.00 GB more RAM: no faster"
    assert kv.faster > 1.02
    assert quant.faster > 1.4
    assert re.fullmatch(r"4\.00 GB more VRAM: \d\.\d tokens per second, 1\.\d\d times as fast", str(vram))

    short_of_ram = what_if(plan_with, LLAMA_8B, SIZES_8B, 4 * GB, GB, eight_bit_kv=True)
    assert len(short_of_ram) == 3
    assert short_of_ram[1].faster > 5


def test_nothing_is_advised_where_nothing_was_measured() -> None:
    plan_with = partial(plan_tiers, rates=None)
    assert what_if(plan_with, LLAMA_8B, SIZES_8B, 6 * GB, 100 * GB, eight_bit_kv=False) == ()
    lines = explain(plan_with(LLAMA_8B, SIZES_8B, 6 * GB, 100 * GB), LLAMA_8B, SIZES_8B)
    assert not any("a token takes" in line for line in lines)


def test_a_change_that_no_plan_is_found_for_is_left_out() -> None:
    def smaller_is_refused(blocks: object, sizes: GpuSizes, vram: int, ram: int) -> TierPlan:
        return plan_tiers(LLAMA_8B, sizes, vram if sizes == SIZES_8B else 0, ram, RATES)

    changes = what_if(smaller_is_refused, LLAMA_8B, SIZES_8B, 6 * GB, 100 * GB, eight_bit_kv=False)
    assert [advice.change for advice in changes] == ["4.00 GB more VRAM", "8.00 GB more RAM"]
    assert all(isinstance(advice, Advice) for advice in changes)
