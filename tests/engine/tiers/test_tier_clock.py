"""What a step of a plan takes of the processor and of the way to the GPU, as passes measure it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import ExecutorChoice
from engine.events import Executor
from engine.tiers.gpu_planner import plan_tiers
from engine.tiers.rates import LinkRates
from engine.tiers.simulator import cpu_seconds
from engine.tiers.tier_clock import TierClock, slowed
from engine.tiers.wishes import parse_place
from tests.engine.tiers.shapes import LLAMA_8B, RATES, SIZES_8B

GB = 10**9
assert RATES.link is not None
LINK: LinkRates = RATES.link
ALONE = replace(LINK, h2d_beside_cpu=LINK.h2d, cpu_beside_h2d=1.0)


def clock(link: LinkRates = LINK) -> TierClock:
    return TierClock(LLAMA_8B, replace(RATES, link=link), link, None)


def test_products_are_those_of_layer_blocks_without_crossings() -> None:
    plan = plan_tiers(
        LLAMA_8B,
        SIZES_8B,
        5 * GB,
        100 * GB,
        RATES,
        executor=ExecutorChoice.CPU,
        rules=parse_place("head=ram"),
    )
    computed = [b for b in LLAMA_8B if plan.executors().get(b.index) is Executor.CPU]
    alone_s = sum(cpu_seconds(block, RATES, 1) for block in computed)
    took = clock(replace(ALONE, crossing_s=0.01)).step_times(plan)
    assert took.products_s == pytest.approx(alone_s)
    assert took.copy_rate is None


def test_products_and_copies_are_as_slow_as_they_are_beside_each_other() -> None:
    plan = plan_tiers(LLAMA_8B, SIZES_8B, 4 * GB, 100 * GB, RATES, executor=ExecutorChoice.HYBRID)
    computed = [b for b in LLAMA_8B if plan.executors().get(b.index) is Executor.CPU]
    alone_s = sum(cpu_seconds(block, RATES, 1) for block in computed)
    took = clock().step_times(plan)
    assert took.products_s is not None and took.copy_rate is not None
    assert alone_s < took.products_s <= alone_s / LINK.cpu_beside_h2d
    assert LINK.h2d_beside_cpu <= took.copy_rate * (1 + 1e-9) and took.copy_rate < LINK.h2d
    assert clock(ALONE).step_times(plan).copy_rate == pytest.approx(LINK.h2d)


def test_blocks_that_land_from_disk_are_no_copies_from_memory() -> None:
    plan = plan_tiers(
        LLAMA_8B,
        SIZES_8B,
        5 * GB,
        100 * GB,
        RATES,
        executor=ExecutorChoice.STREAM,
        rules=parse_place("blk.0-31.ffn=nvme"),
    )
    assert plan.landing
    assert plan.streamed
    assert clock().step_times(plan).copy_rate is None


def test_where_the_processor_attends_its_products_are_not_known() -> None:
    plan = plan_tiers(LLAMA_8B, SIZES_8B, 5 * GB, 100 * GB, RATES, executor=ExecutorChoice.CPU)
    attending = replace(plan, cpu_attention=frozenset({31}))
    assert clock().step_times(plan).products_s is not None
    assert clock().step_times(attending).products_s is None


def test_what_is_within_a_limit_is_slowed_no_further() -> None:
    limited = slowed(LINK, 20e9)
    assert (limited.h2d, limited.h2d_beside_cpu) == (20e9, 20e9)
    assert LINK.cpu_beside_h2d < limited.cpu_beside_h2d < 1
    assert slowed(limited, 20e9) == limited
    slower = replace(limited, h2d=15e9, h2d_beside_cpu=15e9)
    assert slowed(slower, 20e9) == slower
