"""What a plan over three tiers promises holds for any sizes, budgets and wishes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import ExecutorChoice
from engine.errors import BudgetError
from engine.events import Executor
from engine.tiers.blocks import Block, BlockKind, slot_bytes_for
from engine.tiers.gpu_planner import plan_tiers
from engine.tiers.rates import Rates
from engine.tiers.tier_clock import LONGEST_STEP
from engine.tiers.tier_plan import GpuSizes, TierPlan
from engine.tiers.vram_order import spread
from engine.tiers.wishes import parse_place
from kernels.cuda.sampling import MOST_IDS
from tests.engine.tiers.bound import Links, decode_bound, prefill_bound
from tests.engine.tiers.shapes import (
    LLAMA_8B,
    LLAMA_70B,
    RATES,
    SIZES_8B,
    SIZES_70B,
    SIZES_TIED,
    TIED,
    shaped,
    sizes_of,
)

GB = 10**9
PLENTY = 200 * GB
SIZES_70B_SHORT = sizes_of(LLAMA_70B, 1024, 1024)
"""At a context of 1,024."""
LINK = RATES.link
assert LINK is not None
LINKS = Links(LINK.vram, LINK.h2d, LINK.h2d_beside_cpu, 120e9, 108e9, 2e9)

models = st.builds(
    shaped,
    n_layers=st.integers(1, 10),
    hidden=st.sampled_from([256, 512]),
    ffn=st.sampled_from([256, 1024, 2048]),
    kv=st.sampled_from([64, 256]),
    vocab=st.sampled_from([512, 8192]),
    tied=st.booleans(),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Sequence[Block], GpuSizes, int, int, Rates | None]:
    """A model, its sizes, budgets and rates."""
    blocks = draw(models)
    sizes = sizes_of(blocks, draw(st.sampled_from([64, 256])), draw(st.sampled_from([1, 4096])), 10**6)
    everything = sum(sizes.block_bytes.values()) + sizes.kv_layer_bytes * len(blocks) // 2 + 10**7
    vram = int(draw(st.floats(0, 1.2)) * everything)
    ram = int(draw(st.floats(0, 1.5)) * sum(map(slot_bytes_for, blocks)))
    return blocks, sizes, vram, ram, draw(st.sampled_from([RATES, None]))


def try_plan(
    case: tuple[Sequence[Block], GpuSizes, int, int, Rates | None], **wishes: object
) -> TierPlan | None:
    try:
        return plan_tiers(*case, **wishes)  # type: ignore[arg-type]
    except BudgetError:
        return None


def outside(plan: TierPlan, blocks: Sequence[Block]) -> bool:
    """Whether anything of a pass is outside the GPU's memory."""
    return any(b.index not in plan.vram and b.kind is not BlockKind.EMBEDDING for b in blocks)


def check(plan: TierPlan, blocks: Sequence[Block], sizes: GpuSizes, vram: int, ram: int) -> None:
    """Every block has one place, every byte is counted, and budgets are kept."""
    layers = [block for block in blocks if block.layer is not None]
    assert plan.layer_blocks == tuple(block.index for block in layers)
    kv_layers = len(layers) // 2 - len(plan.cpu_attention)
    assert plan.vram_bytes == (
        sizes.fixed_bytes[plan.chunk]
        + plan.ring_bytes
        + kv_layers * sizes.kv_layer_bytes
        + sum(sizes.block_bytes[index] for index in plan.vram)
    )
    assert plan.vram_bytes <= vram
    beside = sizes.host_bytes(plan.chunk, len(plan.cpu_attention))
    assert plan.host.ram_bytes + (beside if outside(plan, blocks) else 0) <= ram
    assert plan.vram.isdisjoint(plan.host.resident)
    assert plan.vram.isdisjoint(plan.host.streamed)
    placed = plan.vram | plan.host.resident | set(plan.host.streamed)
    assert placed | {sizes.embedding} >= {block.index for block in blocks}
    assert plan.vram >= set(sizes.head) or plan.vram.isdisjoint(sizes.head)

    decode, prefill = plan.executors(), plan.prefill_executors()
    assert list(decode) == list(prefill) == list(plan.layer_blocks)
    for block in layers:
        in_vram = block.index in plan.vram
        assert (decode[block.index] is Executor.GPU) == (in_vram or block.index == plan.spare)
        assert (prefill[block.index] is Executor.GPU) == in_vram
        if block.kind is BlockKind.ATTENTION:
            on_cpu = block.layer in plan.cpu_attention
            assert (decode[block.index] is Executor.CPU) == (prefill[block.index] is Executor.CPU) == on_cpu
        else:
            assert prefill[block.index] is not Executor.CPU
    copied = {index for index, executor in prefill.items() if executor is Executor.STREAM}
    assert plan.streamed <= copied
    assert (plan.slots >= 2) if copied else (plan.slots == 0)
    assert all(sizes.slot_bytes[index] <= plan.slot_bytes for index in copied)
    assert plan.landing == bool(copied.intersection(plan.host.streamed))
    assert 1 <= plan.crossover <= 8
    if plan.spare is not None:
        assert plan.spare in copied & plan.host.resident - plan.streamed
        assert sizes.slot_bytes[plan.spare] <= sizes.spare_bytes[plan.chunk]


@settings(deadline=None)
@given(cases())
def test_a_plan_places_every_block_counts_every_byte_and_keeps_its_budgets(
    case: tuple[Sequence[Block], GpuSizes, int, int, Rates | None],
) -> None:
    plan = try_plan(case)
    if plan is None:
        return
    blocks, sizes, vram, ram, rates = case
    check(plan, blocks, sizes, vram, ram)
    assert (plan.predicted_decode_s is None) == (rates is None)
    assert plan == plan_tiers(*case)


@settings(deadline=None)
@given(cases(), st.floats(0, 1), st.sampled_from([None, 2, 4]))
def test_what_less_memory_holds_more_memory_holds_too(
    case: tuple[Sequence[Block], GpuSizes, int, int, Rates | None], share: float, prefetch: int | None
) -> None:
    blocks, sizes, vram, ram, _ = case
    more = try_plan((blocks, sizes, vram, ram, None), prefetch=prefetch)
    less = try_plan((blocks, sizes, int(vram * share), ram, None), prefetch=prefetch)
    if more is None or less is None:
        return
    assert less.cpu_attention >= more.cpu_attention
    if less.cpu_attention == more.cpu_attention:
        assert less.vram <= more.vram


@settings(deadline=None)
@given(cases(), st.lists(st.floats(0, 1.2), max_size=4))
def test_budgets_that_change_move_blocks_in_one_order_and_nothing_else(
    case: tuple[Sequence[Block], GpuSizes, int, int, Rates | None], shares: list[float]
) -> None:
    blocks, sizes, vram, ram, rates = case
    plan = try_plan(case)
    seen: dict[int, frozenset[int]] = {}
    for share in shares:
        if plan is None:
            return
        other = try_plan((blocks, sizes, int(vram * share), ram, rates), like=plan)
        if other is None:
            continue
        assert (other.cpu_attention, other.chunk) == (plan.cpu_attention, plan.chunk)
        assert other.slots == plan.slots or not plan.slots
        assert other.landing >= plan.landing
        if (other.slots, other.landing) != (plan.slots, plan.landing):
            seen = {}
        plan = other
        seen[int(vram * share)] = other.vram
        ordered = [seen[budget] for budget in sorted(seen)]
        assert all(less <= more for less, more in pairwise(ordered))


@settings(deadline=None)
@given(cases())
def test_the_smallest_budget_that_is_named_works_and_none_below(
    case: tuple[Sequence[Block], GpuSizes, int, int, Rates | None],
) -> None:
    blocks, sizes, _, _, _ = case
    with pytest.raises(BudgetError, match="too little") as refused:
        plan_tiers(blocks, sizes, 0, PLENTY, None)
    named = re.search(r"at least ([0-9]+)M \(--vram-budget\)", str(refused.value))
    assert named is not None
    enough = int(named[1]) * 10**6
    check(plan_tiers(blocks, sizes, enough, PLENTY, None), blocks, sizes, enough, PLENTY)
    with pytest.raises(BudgetError, match="too little"):
        plan_tiers(blocks, sizes, enough - 10**6, PLENTY, None)


@given(st.integers(0, 200))
def test_the_order_that_spreads_has_every_number_once_and_begins_evenly(n: int) -> None:
    order = spread(n)
    assert sorted(order) == list(range(n))
    for taken in (2, 4, 8, 16):
        if taken <= n:
            first = sorted(order[:taken])
            gaps = [b - a for a, b in zip(first, [*first[1:], n], strict=True)]
            assert max(gaps) - min(gaps) <= 1


def plan_70b(vram_gb: float, ram_gb: float = 100, sizes: GpuSizes = SIZES_70B, **wishes: object) -> TierPlan:
    plan = plan_tiers(LLAMA_70B, sizes, int(vram_gb * GB), int(ram_gb * GB), RATES, **wishes)  # type: ignore[arg-type]
    check(plan, LLAMA_70B, sizes, int(vram_gb * GB), int(ram_gb * GB))
    return plan


def bytes_of(indices: frozenset[int] | set[int] | tuple[int, ...]) -> int:
    return sum(block.n_bytes for block in LLAMA_70B if block.index in indices)


def decode_s(plan: TierPlan) -> float:
    assert plan.predicted_decode_s is not None
    return plan.predicted_decode_s


def test_a_70b_on_24_gb_shares_decoding_and_streams_prompts() -> None:
    auto = plan_70b(24, sizes=SIZES_70B_SHORT)
    kinds = Counter(auto.executors().values())
    assert kinds[Executor.STREAM] > 10
    assert kinds[Executor.CPU] > 20
    assert not auto.cpu_attention
    assert auto.limited_by == "memory bandwidth"
    outside = bytes_of(set(auto.layer_blocks) - auto.vram)
    assert auto.spare is not None
    spare = LLAMA_70B[auto.spare].n_bytes
    bound = decode_bound(bytes_of(auto.vram) + spare, outside - spare, 0, LINKS)
    assert bound <= decode_s(auto) <= bound / 0.9
    assert 1 / decode_s(auto) > 7.0
    assert auto.predicted_prefill_s is not None
    flops = 2 * 512 * 70e9
    assert prefill_bound(outside, 0, flops, LINKS, 4e14) <= auto.predicted_prefill_s <= 0.4

    streaming = plan_70b(24, sizes=SIZES_70B_SHORT, executor=ExecutorChoice.STREAM)
    assert Executor.CPU not in streaming.executors().values()
    assert 1 / decode_s(streaming) == pytest.approx(2.7, abs=0.1)
    assert streaming.limited_by == "the link to the GPU"
    on_cpu = plan_70b(24, sizes=SIZES_70B_SHORT, executor=ExecutorChoice.CPU)
    assert Executor.STREAM not in on_cpu.executors().values()
    assert 1 / decode_s(on_cpu) == pytest.approx(5.6, abs=0.2)
    hybrid = plan_70b(24, sizes=SIZES_70B_SHORT, executor=ExecutorChoice.HYBRID)
    assert decode_s(hybrid) == pytest.approx(decode_s(auto), rel=0.01)


@pytest.mark.parametrize("vram_gb", [8, 12, 24])
def test_a_70b_is_planned_for_small_cards(vram_gb: float) -> None:
    plan = plan_70b(vram_gb)
    assert not plan.cpu_attention
    assert 1 / decode_s(plan) > 3
    alone = plan_70b(vram_gb, executor=ExecutorChoice.CPU), plan_70b(vram_gb, executor=ExecutorChoice.STREAM)
    assert decode_s(plan) <= min(map(decode_s, alone)) * 1.01


def test_an_8b_in_6_gb_and_one_that_fits() -> None:
    tight = plan_tiers(LLAMA_8B, SIZES_8B, 6 * GB, 100 * GB, RATES)
    check(tight, LLAMA_8B, SIZES_8B, 6 * GB, 100 * GB)
    assert 0 < len(set(tight.layer_blocks) - tight.vram) < 12
    whole = plan_tiers(LLAMA_8B, SIZES_8B, 12 * GB, 100 * GB, RATES)
    assert whole.vram == {block.index for block in LLAMA_8B}
    assert (whole.slots, whole.slot_bytes, whole.landing, whole.chunk) == (0, 0, False, 512)
    assert whole.host.ram_bytes == 0
    assert whole.limited_by == "the GPU"


def test_what_memory_does_not_hold_is_read_and_lands_on_the_gpu_for_prompts() -> None:
    plan = plan_70b(24, 16)
    assert plan.landing
    read = bytes_of(plan.host.streamed)
    assert decode_s(plan) == pytest.approx(read / 2e9, rel=0.02)
    assert plan.limited_by == "the disk"
    assert all(plan.executors()[index] is Executor.CPU for index in plan.host.streamed)
    assert all(plan.prefill_executors()[index] is Executor.STREAM for index in plan.host.streamed)
    streaming = plan_70b(24, 16, executor=ExecutorChoice.STREAM)
    assert streaming.streamed >= set(streaming.host.streamed)


def test_a_cache_that_the_gpu_does_not_hold_takes_its_attention_to_the_processor() -> None:
    sizes = sizes_of(LLAMA_8B, 1024, 131072)
    plan = plan_tiers(LLAMA_8B, sizes, 12 * GB, 100 * GB, RATES)
    check(plan, LLAMA_8B, sizes, 12 * GB, 100 * GB)
    assert plan.cpu_attention == frozenset(range(32 - len(plan.cpu_attention), 32))
    assert 10 < len(plan.cpu_attention) < 20


def test_a_slow_link_leaves_decoding_to_the_processor() -> None:
    limited = plan_70b(24, sizes=SIZES_70B_SHORT, link_limit=6.5e9)
    free = plan_70b(24, sizes=SIZES_70B_SHORT)
    assert len(limited.streamed) < len(free.streamed)
    assert limited.predicted_prefill_s is not None
    assert limited.predicted_prefill_s > 20 * GB / 6.5e9
    slow_cpu = replace(RATES, gemv=dict.fromkeys(RATES.gemv, 8e9))
    many = plan_tiers(LLAMA_70B, SIZES_70B_SHORT, 24 * GB, 100 * GB, slow_cpu)
    assert len(many.streamed) > len(free.streamed)


def test_longer_chunks_are_chosen_where_blocks_are_copied() -> None:
    assert plan_70b(24).chunk > 512
    assert plan_70b(24, chunk=512).chunk == 512
    assert plan_70b(24, prefetch=6).slots == 6
    without = plan_tiers(LLAMA_70B, SIZES_70B, 24 * GB, 100 * GB, None)
    assert (without.chunk, without.slots) == (512, 2)
    assert (without.predicted_decode_s, without.predicted_prefill_s, without.limited_by) == (None, None, "")
    assert not without.streamed


def test_so_many_layers_and_no_others() -> None:
    plan = plan_70b(24, gpu_layers=30)
    assert {block.layer for block in LLAMA_70B if block.index in plan.vram} - {None} == set(range(30))
    assert plan.vram >= set(plan.layer_blocks[:60])
    assert plan_70b(60, gpu_layers=99).vram >= set(plan.layer_blocks)
    with pytest.raises(
        BudgetError, match=r"30\.\d\d GB.*ask for (\d+) layers or fewer.*give at least \d+M"
    ) as no:
        plan_70b(24, gpu_layers=60)
    named = re.search(r"ask for (\d+) layers", str(no.value))
    assert named is not None
    plan_70b(24, gpu_layers=int(named[1]), chunk=512)
    with pytest.raises(BudgetError):
        plan_70b(24, gpu_layers=int(named[1]) + 1, chunk=512)


def test_places_by_hand_are_kept() -> None:
    rules = parse_place("blk.0-9.attn=vram,blk.70-79=nvme,blk.3.ffn=ram,head=ram,embedding=ram")
    plan = plan_70b(24, rules=rules)
    at = plan.layer_blocks
    assert plan.vram >= {at[2 * layer] for layer in range(10)}
    assert set(plan.host.streamed) == set(at[140:])
    assert at[7] in plan.host.resident
    assert plan.host.resident >= set(SIZES_70B.head)
    assert SIZES_70B.embedding in plan.host.resident
    assert (
        plan.host.ram_bytes
        == sum(slot_bytes_for(block) for block in LLAMA_70B if block.index in plan.host.resident)
        + plan.host.ring_bytes
    )


def test_places_that_cannot_be_are_refused_with_figures() -> None:
    with pytest.raises(BudgetError, match=r"41\.\d\d GB, their KV cache 2\.68 GB, .*at least \d+M"):
        plan_70b(24, rules=parse_place("blk.0-79=vram"))
    with pytest.raises(BudgetError, match=r"in memory \(--place\) take 41\.\d\d GB.*20\.00 GB.*--ram-budget"):
        plan_70b(24, 20, rules=parse_place("blk.0-79=ram"))


def test_what_is_to_stay_stays_when_the_budget_shrinks() -> None:
    plan = plan_70b(24)
    head = frozenset(SIZES_70B.head)
    smaller = plan_70b(9, like=plan)
    assert smaller.vram.isdisjoint(head)
    kept = plan_70b(9, like=plan, keep=head)
    assert kept.vram >= head
    with pytest.raises(BudgetError, match="too little"):
        plan_70b(3, like=plan)


def test_the_longest_step_is_what_its_kernels_take() -> None:
    assert LONGEST_STEP == MOST_IDS


def test_a_tied_head_is_the_embedding() -> None:
    plan = plan_tiers(TIED, SIZES_TIED, GB, GB, RATES)
    assert plan.vram == {block.index for block in TIED}


# -- blocks that passes leave out


@settings(deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_what_is_left_out_has_only_the_place_that_others_leave(
    case: tuple[Sequence[Block], GpuSizes, int, int, Rates | None], rng: Random
) -> None:
    plan = try_plan(case)
    if plan is None:
        return
    blocks, sizes, vram, ram, _ = case
    layers = list(plan.layer_blocks)
    idle = frozenset(rng.sample(layers, rng.randint(0, len(layers))))
    without = try_plan(case, like=plan, idle=idle)
    if (
        without is None
    ):  # what leaves GPU memory would have to be read from disk, and there is no memory for it
        return
    assert without.vram_bytes <= vram
    beside = sizes.host_bytes(without.chunk, len(without.cpu_attention))
    assert without.host.ram_bytes + (beside if outside(without, blocks) else 0) <= ram
    assert without.vram.isdisjoint(without.host.resident)
    assert without.vram | without.host.resident | set(without.host.streamed) >= set(layers)
    if without.ring_bytes == plan.ring_bytes:
        assert without.vram - idle >= plan.vram - idle
    if without.vram & idle:  # what room is left is too little for any other
        on_cpu = {layers[2 * layer] for layer in without.cpu_attention}
        assert without.vram >= set(layers) - idle - on_cpu
    again = try_plan(case, like=plan)
    assert again is not None
    assert again.vram == plan.vram
    assert try_plan(case, like=plan, idle=idle) == without


def test_a_quarter_left_out_of_a_model_that_is_streamed_by_half() -> None:
    case = (LLAMA_70B, SIZES_70B_SHORT, 24 * GB, PLENTY, RATES)
    plan = plan_tiers(*case, executor=ExecutorChoice.STREAM)
    layers = plan.layer_blocks
    idle = frozenset(index for n, index in enumerate(layers) if n // 2 % 4 == 2)
    without = plan_tiers(*case, executor=ExecutorChoice.STREAM, like=plan, idle=idle)
    streamed = sum(LLAMA_70B[index].n_bytes for index in plan.streamed)
    left = sum(LLAMA_70B[index].n_bytes for index in without.streamed - idle)
    assert left < 0.55 * streamed
    assert plan.predicted_decode_s is not None and without.predicted_decode_s is not None
    assert plan.predicted_decode_s > 1.6 * without.predicted_decode_s


# -- a block where long passes compute


def without_spare(sizes: GpuSizes) -> GpuSizes:
    return replace(sizes, spare_bytes=dict.fromkeys(sizes.spare_bytes, 0))


@settings(deadline=None)
@given(cases(), st.floats(0, 2), st.sampled_from(ExecutorChoice), st.randoms(use_true_random=False))
def test_a_spare_block_fits_takes_no_memory_and_makes_steps_shorter(
    case: tuple[Sequence[Block], GpuSizes, int, int, Rates | None],
    share: float,
    executor: ExecutorChoice,
    rng: Random,
) -> None:
    blocks, sizes, vram, ram, rates = case
    room = int(share * max(sizes.slot_bytes.values()))
    sizes = replace(sizes, spare_bytes=dict.fromkeys(sizes.spare_bytes, room))
    chunk = rng.choice(list(sizes.fixed_bytes))
    layers = [block.index for block in blocks if block.layer is not None]
    idle = frozenset(rng.sample(layers, rng.randint(0, len(layers) // 2)))
    wishes = {"executor": executor, "chunk": chunk, "prefetch": 2, "idle": idle}
    plan = try_plan((blocks, sizes, vram, ram, rates), **wishes)
    before = try_plan((blocks, without_spare(sizes), vram, ram, rates), **wishes)
    assert (plan is None) == (before is None)
    if plan is None or before is None:
        return
    check(plan, blocks, sizes, vram, ram) if not idle else None
    assert before.spare is None
    assert (plan.vram, plan.host, plan.vram_bytes) == (before.vram, before.host, before.vram_bytes)
    if plan.spare is None:
        assert plan == before
        return
    assert rates is not None and executor is not ExecutorChoice.CPU
    assert plan.spare not in idle
    assert plan.spare in plan.host.resident and sizes.slot_bytes[plan.spare] <= room
    assert decode_s(plan) < decode_s(before)
    larger = [i for i in layers if sizes.slot_bytes[plan.spare] < sizes.slot_bytes[i] <= room]
    on_cpu = {layers[2 * layer] for layer in plan.cpu_attention}
    assert not set(larger) & plan.host.resident - idle - on_cpu


def test_a_70b_on_24_gb_has_a_feed_forward_block_where_prompts_are_computed() -> None:
    sizes = SIZES_70B_SHORT
    plan, before = plan_70b(24, sizes=sizes), plan_70b(24, sizes=without_spare(sizes))
    assert plan.spare is not None and before.spare is None
    block = LLAMA_70B[plan.spare]
    assert block.kind is BlockKind.FEED_FORWARD
    # Those of the better type do not fit; what lies where it lies makes way for one more.
    assert block.n_bytes == min(b.n_bytes for b in LLAMA_70B if b.kind is BlockKind.FEED_FORWARD)
    assert 0.97 * decode_s(before) < decode_s(plan) < 0.985 * decode_s(before)
    assert plan.predicted_prefill_s == before.predicted_prefill_s
    assert plan.prefill_executors() == before.prefill_executors()


def test_the_spare_block_is_the_one_that_a_little_more_memory_would_hold() -> None:
    plan = plan_70b(24, sizes=SIZES_70B_SHORT, chunk=2048, prefetch=2)  # any block fits
    more = plan_70b(25.5, sizes=SIZES_70B_SHORT, chunk=2048, prefetch=2)
    assert plan.spare in more.vram - plan.vram


def test_places_by_hand_are_no_places_for_a_spare_block() -> None:
    assert plan_70b(24, rules=parse_place("blk.0-79.ffn=ram,blk.0-79.attn=vram")).spare is None
    assert plan_70b(24, executor=ExecutorChoice.CPU).spare is None
    some = plan_70b(24, sizes=SIZES_70B_SHORT, rules=parse_place("blk.0-40.ffn=ram"))
    assert some.spare is not None
    assert LLAMA_70B[some.spare].layer not in range(41)


def test_who_wants_both_to_compute_has_both() -> None:
    sizes = replace(SIZES_TIED, spare_bytes=dict.fromkeys(SIZES_TIED.spare_bytes, 1 << 30))
    everything = plan_tiers(TIED, sizes, PLENTY, PLENTY, RATES).vram_bytes
    n_spare = 0
    for less in range(0, 6 << 20, 1 << 19):
        budget = everything - less
        before, plan = (
            try_plan((TIED, each, budget, PLENTY, RATES), executor=ExecutorChoice.HYBRID, prefetch=2)
            for each in (without_spare(sizes), sizes)
        )
        if plan is None or before is None:
            continue
        assert {*plan.executors().values()} == {*before.executors().values()}
        n_spare += plan.spare is not None
    assert n_spare
