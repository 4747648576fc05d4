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
from engine.tiers.tier_plan import TierPlan
from engine.tiers.wishes import parse_place
from tests.engine.tiers.shapes import LLAMA_8B, RATES, SIZES_8B

GB = 10**9
assert RATES.link is not None
LINK: LinkRates = RATES.link
ALONE = replace(LINK, h2d_beside_cpu=LINK.h2d, cpu_beside_h2d=1.0)


def clock(link: LinkRates = LINK) -> TierClock:
    return TierClock(LLAMA_8B, replace(RATES, link=link), link, None)


def on_gb(vram: int, executor: ExecutorChoice, place: str = "") -> TierPlan:
    """The 8B on a card of so many GB, with memory for what is outside."""
    rules = parse_place(place) if place else ()
    return plan_tiers(LLAMA_8B, SIZES_8B, vram * GB, 100 * GB, RATES, executor=executor, rules=rules)


def products_alone_s(plan: TierPlan) -> float:
    """What the processor's blocks take with nothing beside them."""
    computed = [b for b in LLAMA_8B if plan.executors().get(b.index) is Executor.CPU]
    return sum(cpu_seconds(block, RATES, 1) for block in computed)


def test_products_are_those_of_layer_blocks_without_crossings() -> None:
    plan = on_gb(5, ExecutorChoice.CPU, "head=ram")
    took = clock(replace(ALONE, crossing_s=0.01)).step_times(plan)
    assert took.products_s == pytest.approx(products_alone_s(plan))
    assert took.copy_rate is None


def test_products_and_copies_are_as_slow_as_they_are_beside_each_other() -> None:
    plan = on_gb(4, ExecutorChoice.HYBRID)
    alone_s = products_alone_s(plan)
    took = clock().step_times(plan)
    assert took.products_s is not None and took.copy_rate is not None
    assert alone_s < took.products_s <= alone_s / LINK.cpu_beside_h2d
    assert LINK.h2d_beside_cpu <= took.copy_rate * (1 + 1e-9) and took.copy_rate < LINK.h2d
    assert clock(ALONE).step_times(plan).copy_rate == pytest.approx(LINK.h2d)


def test_blocks_that_land_from_disk_are_no_copies_from_memory() -> None:
    plan = on_gb(5, ExecutorChoice.STREAM, "blk.0-31.ffn=nvme")
    assert plan.landing
    assert plan.streamed
    assert clock().step_times(plan).copy_rate is None


def test_where_the_processor_attends_its_products_are_not_known() -> None:
    plan = on_gb(5, ExecutorChoice.CPU)
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
