"""The simulated scheduler keeps order and slots, and is never faster than what it works with."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events import Executor
from engine.tiers.blocks import Block, BlockKind, Piece
from engine.tiers.rates import LinkRates, Rates
from engine.tiers.simulator import Pass, Resource, Timeline, cpu_seconds, draw, gpu_seconds, simulate
from kernels.quant_types import QuantType
from tests.engine.tiers.shapes import LLAMA_70B, RATES

N_PASSES = 3
EPSILON = 1e-9
LINK = RATES.link
assert LINK is not None
ALONE = replace(LINK, h2d_beside_cpu=LINK.h2d, cpu_beside_h2d=1.0)
"""A machine on which nothing slows by what else runs."""
BLOCKS = [block for block in LLAMA_70B if block.layer is not None]


def block(index: int, n_bytes: int) -> Block:
    kind = BlockKind.FEED_FORWARD if index % 2 else BlockKind.ATTENTION
    return Block(index, kind, index // 2, (Piece("t", 0, 0, n_bytes, QuantType.Q4_K, 0, 1, 2 * n_bytes),))


@st.composite
def passes(draw: st.DrawFn) -> Pass:
    """Blocks of any sizes, computed by anybody, some of them from disk."""
    sizes = draw(st.lists(st.integers(1, 10**9), min_size=1, max_size=12))
    blocks = [block(index, n_bytes) for index, n_bytes in enumerate(sizes)]
    executors = {each.index: draw(st.sampled_from(Executor)) for each in blocks}
    on_disk = {
        index for index, executor in executors.items() if executor is not Executor.GPU and draw(st.booleans())
    }
    return Pass(blocks, executors, draw(st.integers(2, 4)), frozenset(on_disk), draw(st.integers(2, 4)))


def test_known_mixes_of_a_70b() -> None:
    """19.4 GB outside the card: copies alone, the processor alone, and both."""

    def tokens_per_second(n_copied: int) -> float:
        outside = [each.index for each in BLOCKS if each.kind is BlockKind.FEED_FORWARD][:45]
        executors = dict.fromkeys((each.index for each in BLOCKS), Executor.GPU)
        executors |= dict.fromkeys(outside, Executor.CPU)
        executors |= {
            i: Executor.STREAM
            for k, i in enumerate(outside)
            if k * n_copied // 45 != (k + 1) * n_copied // 45
        }
        return 1 / simulate(Pass(BLOCKS, executors, 2), RATES, LINK).seconds

    assert tokens_per_second(45) == pytest.approx(2.85, abs=0.1)
    assert tokens_per_second(0) == pytest.approx(5.9, abs=0.2)
    assert tokens_per_second(14) == pytest.approx(7.5, abs=0.3)


@settings(deadline=None)
@given(passes(), st.integers(1, 600))
def test_no_pass_is_faster_than_its_links_and_processors(shape: Pass, n_tokens: int) -> None:
    done = simulate(shape, RATES, LINK, n_tokens=n_tokens, n_passes=N_PASSES)
    copied = sum(each.n_bytes for each in shape.blocks if shape.executors[each.index] is Executor.STREAM)
    read = sum(each.n_bytes for each in shape.blocks if each.index in shape.on_disk)
    computed = sum(
        cpu_seconds(each, RATES, n_tokens)
        if shape.executors[each.index] is Executor.CPU
        else gpu_seconds(each, LINK, n_tokens)
        for each in shape.blocks
    )
    assert RATES.disk is not None
    least = N_PASSES * max(copied / LINK.h2d, read / RATES.disk, computed)
    assert done.ends[-1] >= least * (1 - EPSILON)
    assert len(done.ends) == N_PASSES
    assert list(done.ends) == sorted(done.ends)
    assert done.link_wait_s + done.disk_wait_s == pytest.approx(sum(done.stalls.values()))


def by_resource(done: Timeline, resource: Resource) -> list[tuple[float, float]]:
    return [(span.start, span.end) for span in done.spans if span.resource is resource]


@settings(deadline=None)
@given(passes())
def test_blocks_are_computed_in_order_and_each_resource_does_one_thing_at_a_time(shape: Pass) -> None:
    done = simulate(shape, RATES, LINK, n_passes=N_PASSES)
    computed = [span for span in done.spans if span.resource in (Resource.GPU, Resource.CPU)]
    assert [span.block for span in computed] == [each.index for each in shape.blocks] * N_PASSES
    assert all(one.end <= other.start + EPSILON for one, other in pairwise(computed))
    assert all(
        (span.resource is Resource.CPU) == (shape.executors[span.block] is Executor.CPU) for span in computed
    )
    for resource in (Resource.LINK, Resource.DISK):
        assert all(one[1] <= other[0] + EPSILON for one, other in pairwise(by_resource(done, resource)))


@settings(deadline=None)
@given(passes())
def test_a_slot_is_filled_used_and_only_then_filled_again(shape: Pass) -> None:
    done = simulate(shape, RATES, LINK, n_passes=N_PASSES)
    slots: dict[int, list[tuple[float, float, Resource, int]]] = defaultdict(list)
    for span in done.spans:
        if span.resource in (Resource.GPU, Resource.LINK) and span.slot != -1:
            slots[span.slot].append((span.start, span.end, span.resource, span.block))
    for events in slots.values():
        events.sort()
        for number, (copy, use) in enumerate(zip(events[::2], events[1::2], strict=False)):
            assert (copy[2], use[2]) == (Resource.LINK, Resource.GPU)
            assert copy[3] == use[3]
            assert copy[1] <= use[0] + EPSILON
            following = events[2 * number + 2 :]
            assert not following or use[1] <= following[0][0] + EPSILON
    assert len([slot for slot in slots if slot >= 0]) <= shape.slots


@settings(deadline=None)
@given(passes())
def test_reads_are_used_before_their_slot_is_read_into_again(shape: Pass) -> None:
    done = simulate(shape, RATES, LINK, n_passes=N_PASSES)
    reads = sorted(
        (span for span in done.spans if span.resource is Resource.DISK), key=lambda span: span.start
    )
    order = [each.index for each in shape.blocks if each.index in shape.on_disk]
    assert [span.block for span in reads] == (order * (N_PASSES + 4))[: len(reads)]
    until: dict[int, float] = {}
    uses = {Resource.CPU, Resource.LINK}
    for read in reads:
        assert until.get(read.slot, 0.0) <= read.start + EPSILON
        used = [span for span in done.spans if span.resource in uses and span.block == read.block]
        until[read.slot] = next((span.end for span in used if span.start >= read.end - EPSILON), 0.0)


@settings(deadline=None)
@given(passes(), st.floats(1, 5), st.floats(1, 5), st.integers(0, 2))
def test_faster_links_and_more_slots_never_make_it_slower(
    shape: Pass, link: float, disk: float, more: int
) -> None:
    # A block from disk that lands on the GPU waits for the copies before it: the more ahead, the longer.
    landing = {index for index in shape.on_disk if shape.executors[index] is Executor.STREAM}
    shape = replace(shape, on_disk=shape.on_disk - landing)
    slow = simulate(shape, RATES, ALONE).ends[-1]
    faster = replace(ALONE, h2d=ALONE.h2d * link, h2d_beside_cpu=ALONE.h2d * link)
    assert RATES.disk is not None
    rates = replace(RATES, disk=RATES.disk * disk)
    wider = replace(shape, slots=shape.slots + more, disk_slots=shape.disk_slots + more)
    assert simulate(wider, rates, faster).ends[-1] <= slow * (1 + EPSILON)


def test_copies_run_beside_the_processor_and_both_are_slower_for_it() -> None:
    shape = Pass(
        [block(0, 10**9), block(1, 10**9), block(2, 10**9)],
        {0: Executor.CPU, 1: Executor.STREAM, 2: Executor.CPU},
        2,
    )
    link = LinkRates(
        vram=1e15, h2d=20e9, h2d_beside_cpu=10e9, cpu_beside_h2d=0.5, matrix_flops=1e18, crossing_s=0.0
    )
    rates = Rates(dram=10e9, gemv={}, disk=None)
    first = simulate(shape, rates, link, n_passes=1)
    # Each product takes 100 ms alone; a copy beside it takes 100 ms, in which 50 ms worth of it are done. The
    # second copy is for the next pass.
    assert first.ends[0] == pytest.approx(0.3, rel=1e-4)
    assert first.busy(Resource.LINK) == pytest.approx(0.2, rel=1e-4)
    assert first.stalls == {}


def test_crossings_are_paid_where_the_processor_changes() -> None:
    link = replace(ALONE, crossing_s=0.01)
    apart = {0: Executor.GPU, 1: Executor.CPU, 2: Executor.GPU}
    together = {0: Executor.GPU, 1: Executor.GPU, 2: Executor.CPU}
    blocks = [block(0, 1), block(1, 1), block(2, 1)]
    twice, once = (
        simulate(Pass(blocks, executors, 2), RATES, link, n_passes=1).ends[0]
        for executors in (apart, together)
    )
    assert twice - once == pytest.approx(0.005, rel=1e-3)


def test_a_chart_shows_who_works_when() -> None:
    shape = Pass([block(0, 10**9), block(1, 10**9)], {0: Executor.CPU, 1: Executor.STREAM}, 2)
    lines = draw(simulate(shape, RATES, ALONE, n_passes=1), 45)
    assert [line[:5] for line in lines] == ["GPU  ", "CPU  ", "link ", "disk ", "     "]
    assert all(len(line) == 45 for line in lines)
    gpu, cpu, link, disk, scale = (line[5:] for line in lines)
    assert cpu.startswith("####")
    assert cpu.endswith("....")
    assert link.startswith("#" * 39)
    assert gpu == "." * 39 + "+" or gpu.count("#") <= 2
    assert set(disk) == {"."}
    assert scale.startswith("0")
    assert scale.endswith(" ms")
