"""What a plan promises holds for any sizes and any budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import BudgetError
from engine.tiers.blocks import Block, BlockKind, Piece, slot_bytes_for
from engine.tiers.planner import Plan, least_memory, plan, predicted
from engine.tiers.rates import Rates
from kernels.quant_types import QuantType

RATES = Rates(dram=40e9, gemv={QuantType.Q4_K: 20e9}, disk=3e9)
Sizes = tuple[int, int, int, int, int, bool]


def model(
    layers: int, attention: int, feed_forward: int, heads: int, head: int, embedding: bool = True
) -> tuple[Block, ...]:
    """Blocks of these sizes in bytes; attention and feed-forward in two pieces each."""
    cuts: list[tuple[BlockKind, int | None, list[int]]] = []
    if embedding:
        cuts.append((BlockKind.EMBEDDING, None, [heads * head]))
    for layer in range(layers):
        for kind, size in ((BlockKind.ATTENTION, attention), (BlockKind.FEED_FORWARD, feed_forward)):
            cuts.append((kind, layer, [size // 2, size - size // 2]))
    cuts += [(BlockKind.HEAD, None, [head])] * heads
    return tuple(
        Block(
            index,
            kind,
            layer,
            tuple(Piece("t", 0, 0, n_bytes, QuantType.Q4_K, 0, 1, n_bytes) for n_bytes in sizes),
        )
        for index, (kind, layer, sizes) in enumerate(cuts)
    )


def memory_of(blocks: Sequence[Block]) -> int:
    return sum(map(slot_bytes_for, blocks))


models = st.builds(
    model,
    layers=st.integers(1, 40),
    attention=st.integers(2, 10**8),
    feed_forward=st.integers(2, 10**9),
    heads=st.integers(1, 9),
    head=st.integers(1, 10**9),
    embedding=st.booleans(),
)
shares = st.floats(0, 1.2)
Among = frozenset[int] | None


@st.composite
def models_and_residents(draw: st.DrawFn) -> tuple[tuple[Block, ...], Among]:
    """A model, and which of its blocks may stay: all, or what another plan kept, or any."""
    blocks = draw(models)
    return blocks, draw(st.none() | st.frozensets(st.sampled_from(range(len(blocks)))))


def try_plan(blocks: Sequence[Block], budget: int, among: Among = None) -> Plan | None:
    try:
        return plan(blocks, budget, RATES, among=among)
    except BudgetError:
        assert budget < least_memory(blocks, among)
        return None


@settings(deadline=None)
@given(models_and_residents(), shares)
def test_a_plan_places_every_block_once_and_keeps_the_budget(
    case: tuple[tuple[Block, ...], Among], share: float
) -> None:
    blocks, among = case
    budget = int(memory_of(blocks) * share)
    chosen = try_plan(blocks, budget, among)
    if chosen is None:
        return
    assert among is None or chosen.resident <= among
    assert chosen.ram_bytes == chosen.resident_bytes + chosen.slots * chosen.slot_bytes <= budget
    assert chosen.resident.isdisjoint(chosen.streamed)
    assert list(chosen.streamed) == sorted(chosen.streamed)
    left_out = {block.index for block in blocks} - chosen.resident - set(chosen.streamed)
    assert all(blocks[index].kind is BlockKind.EMBEDDING for index in left_out)
    assert all(blocks[index].kind is not BlockKind.EMBEDDING for index in chosen.streamed)
    assert chosen.resident_bytes == memory_of([blocks[index] for index in chosen.resident])
    assert chosen.read_bytes == sum(blocks[index].n_bytes for index in chosen.streamed)
    if chosen.streamed:
        assert 2 <= chosen.slots <= 4
        assert chosen.slot_bytes == max(slot_bytes_for(blocks[index]) for index in chosen.streamed)
    else:
        assert (chosen.slots, chosen.slot_bytes) == (0, 0)


@settings(deadline=None)
@given(models_and_residents(), shares, shares)
def test_more_budget_never_reads_more_and_is_never_slower(
    case: tuple[tuple[Block, ...], Among], one: float, other: float
) -> None:
    blocks, among = case
    less, more = (try_plan(blocks, int(memory_of(blocks) * share), among) for share in sorted((one, other)))
    if less is None:
        return
    assert more is not None
    assert more.read_bytes <= less.read_bytes
    assert more.predicted_decode_s <= less.predicted_decode_s


@settings(deadline=None)
@given(models, shares, st.integers(1, 10**9))
def test_giving_memory_back_moves_blocks_out_and_none_in(
    blocks: tuple[Block, ...], share: float, deficit: int
) -> None:
    before = try_plan(blocks, int(memory_of(blocks) * share))
    if before is None:
        return
    same = plan(blocks, before.ram_bytes, RATES, among=before.resident)
    assert (same.resident, same.ram_bytes) == (before.resident, before.ram_bytes)
    after = try_plan(blocks, before.ram_bytes - deficit, before.resident)
    if after is not None:
        assert after.resident < before.resident
        assert after.ram_bytes <= before.ram_bytes - deficit


@settings(deadline=None)
@given(models)
def test_what_fits_stays_and_the_embedding_goes_first(blocks: tuple[Block, ...]) -> None:
    whole = plan(blocks, memory_of(blocks), RATES)
    assert whole.resident == {block.index for block in blocks}
    used = [block for block in blocks if block.kind is not BlockKind.EMBEDDING]
    tight = plan(blocks, memory_of(used), RATES)
    assert tight.streamed == ()
    assert tight.resident == {block.index for block in used}
    assert tight.predicted_decode_s == whole.predicted_decode_s


@settings(deadline=None)
@given(models)
def test_the_smallest_budget_that_is_named_works_and_none_below(blocks: tuple[Block, ...]) -> None:
    assert plan(blocks, least_memory(blocks), RATES).ram_bytes == least_memory(blocks)
    with pytest.raises(BudgetError, match="-c") as failed:
        plan(blocks, 0, RATES)
    named = re.search(r"takes ([\d,]+) MB", str(failed.value))
    assert named is not None
    megabytes = int(named[1].replace(",", ""))
    plan(blocks, megabytes * 10**6, RATES)
    with pytest.raises(BudgetError):
        plan(blocks, (megabytes - 1) * 10**6, RATES)


LARGE = model(layers=80, attention=100_000_000, feed_forward=400_000_000, heads=2, head=400_000_000)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75, 0.9])
def test_a_budget_is_used_and_residents_are_spread_evenly(share: float) -> None:
    budget = int(memory_of(LARGE) * share)
    chosen = plan(LARGE, budget, RATES)
    assert budget - chosen.ram_bytes < 3 * chosen.slot_bytes
    # Whatever stretch of the pass: its share of residents is that of the whole, to within a block or two.
    used = LARGE[1:]
    kept = chosen.resident_bytes / memory_of(used)
    owed = 0.0
    for block in used:
        owed += block.n_bytes * (kept - (block.index in chosen.resident))
        assert abs(owed) < 1.5 * chosen.slot_bytes


def test_the_ring_grows_with_the_budget() -> None:
    slots = [plan(LARGE, n * 10**9, RATES).slots for n in range(1, 40)]
    assert [count for count, _ in groupby(slots)] == [2, 3, 4]


@pytest.mark.parametrize(
    ("rates", "budget", "said"),
    [
        (RATES, 20 * 10**9, "the disk"),
        (RATES, 60 * 10**9, "the processor"),
        (Rates(dram=20e9, gemv={QuantType.Q4_K: 19e9}, disk=3e9), 60 * 10**9, "memory bandwidth"),
        (Rates(dram=20e9, gemv={}, disk=3e9), 60 * 10**9, "memory bandwidth"),
    ],
)
def test_the_slowest_part_is_named(rates: Rates, budget: int, said: str) -> None:
    assert plan(LARGE, budget, rates).limited_by == said


def test_the_prediction_is_the_slower_of_disk_and_products() -> None:
    blocks = model(layers=2, attention=10**6, feed_forward=10**6, heads=1, head=10**6)
    n_bytes = 5 * 10**6
    resident = plan(blocks, 10**9, RATES)
    assert resident.predicted_decode_s == pytest.approx(n_bytes / 20e9)
    streamed = plan(blocks, 2_100_000, RATES)
    assert streamed.predicted_decode_s == pytest.approx(streamed.read_bytes / 3e9)


def test_another_rate_of_the_disk_changes_what_a_plan_promises_and_nothing_else() -> None:
    apart, idle = frozenset({1}), frozenset({2})
    chosen = plan(LARGE, 20 * 10**9, RATES, apart=apart, idle=idle)
    slower = replace(RATES, disk=1e9)
    assert predicted(chosen, LARGE, slower, apart, idle) == plan(
        LARGE, 20 * 10**9, slower, apart=apart, idle=idle
    )
    assert predicted(chosen, LARGE, RATES, apart, idle) == chosen


@pytest.mark.parametrize("rates", [None, Rates(dram=20e9, gemv={}, disk=None)])
def test_nothing_is_predicted_without_the_rates_for_it(rates: Rates | None) -> None:
    chosen = plan(LARGE, 20 * 10**9, rates)
    assert (chosen.predicted_decode_s, chosen.limited_by) == (None, "")
    assert chosen.streamed == plan(LARGE, 20 * 10**9, RATES).streamed


def test_what_is_not_read_needs_no_rate_of_the_disk() -> None:
    chosen = plan(LARGE, 60 * 10**9, Rates(dram=20e9, gemv={}, disk=None))
    assert chosen.predicted_decode_s == pytest.approx(sum(block.n_bytes for block in LARGE[1:]) / 20e9)


# -- blocks that are elsewhere


@st.composite
def models_and_apart(draw: st.DrawFn) -> tuple[tuple[Block, ...], frozenset[int]]:
    blocks = draw(models)
    return blocks, draw(st.frozensets(st.sampled_from(range(len(blocks)))))


@settings(deadline=None)
@given(models_and_apart(), shares)
def test_what_is_apart_is_planned_as_if_it_were_not_there(
    case: tuple[tuple[Block, ...], frozenset[int]], share: float
) -> None:
    blocks, apart = case
    rest = [block for block in blocks if block.index not in apart]
    budget = int(memory_of(rest) * share)
    if budget < least_memory(blocks, apart=apart):
        with pytest.raises(BudgetError):
            plan(blocks, budget, RATES, apart=apart)
        return
    chosen = plan(blocks, budget, RATES, apart=apart)
    assert chosen == plan(rest, budget, RATES)
    assert apart.isdisjoint(chosen.resident)
    assert apart.isdisjoint(chosen.streamed)


def test_nothing_is_planned_where_all_is_apart() -> None:
    everything = frozenset(block.index for block in LARGE)
    chosen = plan(LARGE, 0, RATES, apart=everything)
    assert (chosen.resident, chosen.streamed, chosen.ram_bytes, chosen.read_bytes) == (frozenset(), (), 0, 0)
    assert (chosen.predicted_decode_s, chosen.limited_by) == (None, "")
    assert least_memory(LARGE, apart=everything) == 0


def test_blocks_that_may_stay_but_are_apart_do_not() -> None:
    everything, apart = frozenset(block.index for block in LARGE), frozenset({0, 3})
    for among in (everything, frozenset(range(10))):
        assert plan(LARGE, 60 * 10**9, RATES, among=among, apart=apart).resident == among - apart


# -- blocks that passes leave out


@st.composite
def models_and_idle(draw: st.DrawFn) -> tuple[tuple[Block, ...], Among, frozenset[int]]:
    blocks, among = draw(models_and_residents())
    layers = [block.index for block in blocks if block.layer is not None]
    return blocks, among, draw(st.frozensets(st.sampled_from(layers)))


@settings(deadline=None)
@given(models_and_idle(), shares)
def test_idle_blocks_give_their_places_to_others_and_nothing_else_moves(
    case: tuple[tuple[Block, ...], Among, frozenset[int]], share: float
) -> None:
    blocks, among, idle = case
    budget = int(memory_of(blocks) * share)
    base = try_plan(blocks, budget, among)
    if base is None:
        return
    chosen = plan(blocks, budget, RATES, among=among, idle=idle)
    assert chosen.ram_bytes == chosen.resident_bytes + chosen.slots * chosen.slot_bytes <= budget
    assert chosen.resident_bytes == memory_of([blocks[index] for index in chosen.resident])
    assert among is None or chosen.resident <= among
    assert base.resident - idle <= chosen.resident, "who is used stays"
    assert (chosen.resident - base.resident).isdisjoint(idle), "who is idle does not come"
    used = [block.index for block in blocks if block.kind is not BlockKind.EMBEDDING]
    assert list(chosen.streamed) == [index for index in used if index not in chosen.resident]
    assert chosen.slots == base.slots
    assert all(slot_bytes_for(blocks[index]) <= chosen.slot_bytes for index in chosen.streamed)
    assert chosen.read_bytes == sum(blocks[index].n_bytes for index in chosen.streamed if index not in idle)
    assert chosen.read_bytes <= sum(blocks[index].n_bytes for index in base.streamed if index not in idle)
    if base.resident.isdisjoint(idle) or not base.streamed:
        assert chosen.resident == base.resident
    assert chosen.predicted_decode_s is not None
    assert base.predicted_decode_s is not None
    assert chosen.predicted_decode_s <= base.predicted_decode_s


def test_twenty_of_eighty_layers_left_out_leave_a_third_less_to_read() -> None:
    idle = frozenset(block.index for block in LARGE if block.layer is not None and block.layer % 4 == 1)
    for share in (0.3, 0.5):
        budget = int(memory_of(LARGE) * share)
        base, chosen = plan(LARGE, budget, RATES), plan(LARGE, budget, RATES, idle=idle)
        weigh = sum(LARGE[index].n_bytes for index in idle)
        # Wherever they were: what they weigh is not read, but for what a few slots do not even out.
        assert base.read_bytes - chosen.read_bytes >= 0.93 * weigh


def test_idle_blocks_that_nobody_needs_the_places_of_stay() -> None:
    idle = frozenset({1, 2})
    whole = plan(LARGE, memory_of(LARGE), RATES, idle=idle)
    assert whole.resident == {block.index for block in LARGE}
    assert whole.streamed == ()
    # All others fit: of those that are left out as many stay as there is room for.
    layers = frozenset(block.index for block in LARGE if block.layer is not None)
    half = plan(LARGE, memory_of(LARGE) // 2, RATES, idle=layers)
    assert half.read_bytes == 0
    assert half.resident & layers
    assert memory_of(LARGE) // 2 - half.ram_bytes < 2 * half.slot_bytes
