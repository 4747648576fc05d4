"""The arithmetic of the report: rates by differences, waiting in a pass, and what the words may claim."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tiers.history import BINS, Rate, sparkline
from app.tiers.layout import Activity
from app.tiers.report import Limit, TierReport, TierWatch
from app.tiers.text import as_json, as_lines
from app.tiers.words import (
    bar_parts,
    legend,
    limit_words,
    moving_words,
    settling_words,
    skipped_words,
    tier_numbers,
    wait_words,
    waiting_words,
    why_no_map,
    why_there,
)
from engine import EngineSnapshot, EngineState, Executor, Tier, TierEvent, TierSnapshot
from tests.app.tiers.models import (
    H2D_RATE,
    RATE,
    REASON,
    blocks,
    gpu_tiers,
    loading_to_gpu,
    mixed,
    mixed_blocks,
    mixed_tiers,
    model,
    on_gpu,
    running,
    snapshot,
    tiers,
)


def watched(snapshots: list[EngineSnapshot]) -> TierReport:
    watch = TierWatch()
    for each in snapshots:
        watch.feed(each)
    return watch.report


# -- rates


@given(st.lists(st.tuples(st.floats(0.01, 3), st.integers(0, 1000)), min_size=2, max_size=80))
def test_the_curve_loses_and_invents_nothing(steps: list[tuple[float, int]]) -> None:
    rate, at, count = Rate(), 0.0, 0
    rate.add(at, count)
    for seconds, more in steps:
        at, count = at + seconds, count + more
        rate.add(at, count)
    if at < (BINS - 1) * 0.5:
        assert sum(rate._bins) * 1.0 == pytest.approx(count, rel=1e-6, abs=1e-6)
    assert len(rate.history) < BINS
    assert all(value >= -1e-9 for value in rate.history)


def test_an_even_flow_has_an_even_rate() -> None:
    rate = Rate()
    for step in range(100):
        rate.add(step / 10, step * 7)
    assert rate.now == pytest.approx(70)
    assert rate.history == pytest.approx([70] * len(rate.history))


def test_a_counter_that_fell_begins_anew() -> None:
    rate = Rate()
    for at, count in ((0.0, 100.0), (1.0, 200.0), (2.0, 0.0), (3.0, 100.0)):
        rate.add(at, count)
    assert rate.now == pytest.approx(100)


@given(st.lists(st.floats(0, 10), max_size=BINS), st.integers(0, 80), st.floats(0, 10))
def test_a_curve_is_as_wide_as_asked(values: list[float], width: int, top: float) -> None:
    assert len(sparkline(values, top, width)) == width


def test_a_curve_has_a_fixed_scale_and_nothing_is_a_blank() -> None:
    assert sparkline([0.0, 1.0, 5.0, 10.0], 10, BINS).strip(" ") == "▁▄█"


# -- one snapshot


def test_the_tiers_add_up() -> None:
    placed = tiers()
    report = TierWatch().feed(snapshot(placed))
    ram, nvme = report.tiers
    assert (ram.tier, nvme.tier) == (Tier.RAM, Tier.NVME)
    assert ram.blocks + nvme.blocks == len(placed.blocks)
    assert ram.n_bytes + nvme.n_bytes == nvme.total == sum(block.n_bytes for block in placed.blocks)
    assert (ram.used, ram.total) == (placed.ram_bytes + placed.ring_bytes, placed.budget_bytes)
    assert report.pass_bytes == nvme.total - 280_000_000  # the embedding's rows are read one by one
    assert report.hit_rate == pytest.approx(1 - placed.pass_read_bytes / report.pass_bytes)


def test_cells_say_what_happens_to_blocks() -> None:
    placed = tiers()
    (staged, _), (moving, _) = placed.in_flight
    report = TierWatch().feed(snapshot(placed))
    assert placed.active is not None
    assert report.cells[placed.active].activity is Activity.ACTIVE
    assert report.cells[staged].activity is Activity.STAGED
    assert (report.cells[moving].activity, report.cells[moving].eighths) == (Activity.MOVING, 4)
    assert [each.index for each in report.link.moving] == [moving]
    assert "62%" in why_there(report, moving)
    assert "62%" in moving_words(report, report.link)
    others = set(range(len(placed.blocks))) - {placed.active, staged, moving}
    assert all(report.cells[i].activity is Activity.STILL for i in others)


# -- on a GPU


def test_what_a_gpu_holds_is_a_tier_of_its_own_with_budget_and_card() -> None:
    placed = gpu_tiers()
    report = TierWatch().feed(on_gpu(placed))
    vram, nvme = report.tiers  # no memory is granted to this model: it has no bar
    assert (vram.tier, nvme.tier) == (Tier.VRAM, Tier.NVME)
    assert (vram.letter, vram.blocks, nvme.blocks) == ("V", len(placed.blocks), 0)
    assert (vram.used, vram.total, vram.whole) == (6_000_000_000, 20_000_000_000, 24_000_000_000)
    assert {one.glyph for one in report.cells} == {"V"}
    assert report.hit_rate == 1
    assert why_there(report, 3) == "stays in video memory: the GPU finds it there in every pass"


def test_the_bar_of_a_gpu_shows_use_budget_and_card_without_colour() -> None:
    vram = TierWatch().feed(on_gpu()).tiers[0]
    assert bar_parts(vram, 24) == ("█" * 6, "", "░" * 14, "·" * 4)
    assert "".join(bar_parts(replace(vram, used=30_000_000_000), 8)) == "█" * 8
    for width in range(1, 60):
        assert len("".join(bar_parts(vram, width))) == width


def test_without_a_gpu_nothing_speaks_of_one() -> None:
    report = TierWatch().feed(snapshot(tiers()))
    assert report.copies is None
    assert [total.tier for total in report.tiers] == [Tier.RAM, Tier.NVME]
    assert all(bar_parts(total, 20).beyond == "" for total in report.tiers)
    told = "\n".join([*as_lines(report, 100), json.dumps(as_json(report)["links"])]).lower()
    assert "vram" not in told
    assert as_json(report)["gpu"] is None


def test_while_a_model_comes_to_the_gpu_blocks_and_bytes_are_on_their_way() -> None:
    report = watched(loading_to_gpu(12))
    assert why_no_map(report) == ""
    assert report.copies is not None
    assert report.copies.rate == pytest.approx(2e9, rel=0.01)
    assert report.copies.ceiling == H2D_RATE
    (moving,) = report.copies.moving
    assert report.cells[moving.index].activity is Activity.MOVING
    assert report.link.moving == ()
    assert why_there(report, moving.index).startswith("on its way to the GPU: ")
    assert {one.letter for one in report.cells} == {"V", "N"}
    text = "\n".join(as_lines(report, 100))
    assert "RAM->VRAM" in text
    assert "2.00/25.00 GB/s" in text
    (disk, link) = as_json(report)["links"]  # type: ignore[misc]
    assert (disk["to"], link["from"], link["to"]) == ("ram", "ram", "vram")  # type: ignore[index]
    assert link["h2d_bytes"] == pytest.approx(2e9 * 1.1, rel=0.01)  # type: ignore[index]


def test_a_gpu_at_rest_copies_nothing() -> None:
    arrived = on_gpu(state=EngineState.READY, at=103.0, seq=99)
    report = watched([*loading_to_gpu(12), arrived])
    assert report.copies is not None
    assert (report.copies.rate, report.copies.moving) == (0.0, ())


def test_the_text_names_the_gpu_and_the_reason() -> None:
    report = TierWatch().feed(on_gpu())
    lines = as_lines(report, 120)
    assert lines[0].endswith("cuda sm_86")
    assert lines[1] == REASON
    assert lines[2].startswith("V VRAM ")
    assert lines[2].endswith("6.00/20.00 GB 69V")
    assert "V vram •ring ▶now" in "\n".join(lines)


@pytest.mark.parametrize("limited_by", ["video memory bandwidth", "the GPU", "the link to the GPU"])
def test_what_limits_a_gpu_is_told_as_it_is_planned(limited_by: str) -> None:
    ready = on_gpu(gpu_tiers(limited_by=limited_by), state=EngineState.READY)
    assert limit_words(TierWatch().feed(ready)) == f"{limited_by}, by plan"


# -- three tiers


def block_of(placed: TierSnapshot, tier: Tier, executor: Executor, kind: str = "feed_forward") -> int:
    """A block that is still, in this place."""
    busy = {placed.active, *(index for index, _share in placed.in_flight)}
    return next(
        index
        for index, block in enumerate(placed.blocks)
        if (block.tier, block.executor, block.kind) == (tier, executor, kind) and index not in busy
    )


@pytest.mark.parametrize(
    ("tier", "executor", "letter", "words"),
    [
        (Tier.VRAM, Executor.GPU, "V", "stays in video memory"),
        (Tier.RAM, Executor.CPU, "R", "computed by the processor in place"),
        (Tier.RAM, Executor.GPU, "R", "copied once after each prompt"),
        (Tier.RAM, Executor.STREAM, "S", "page-locked memory, copied to the GPU by DMA"),
        (Tier.NVME, Executor.CPU, "N", "page-locked ring, computed there by the processor"),
        (Tier.NVME, Executor.STREAM, "D", "page-locked ring, then by DMA to the GPU"),
    ],
)
def test_a_block_is_drawn_and_explained_by_its_tier_and_who_computes_it(
    tier: Tier, executor: Executor, letter: str, words: str
) -> None:
    blocks = list(mixed_blocks())
    blocks[4] = replace(blocks[4], tier=tier, executor=executor)
    report = TierWatch().feed(on_gpu(mixed_tiers(blocks=tuple(blocks))))
    assert report.cells[4].glyph == letter
    assert words in why_there(report, 4)
    assert letter in legend(report)
    assert dict(next(total for total in report.tiers if total.tier is tier).kinds)[letter] >= 1


def test_what_moves_says_where_to() -> None:
    placed = mixed_tiers()
    report = TierWatch().feed(on_gpu(placed))
    assert report.copies is not None
    (staged, _), (copied, _), (read, _) = placed.in_flight
    assert [each.index for each in report.copies.moving] == [copied]
    assert [each.index for each in report.link.moving] == [read]
    assert why_there(report, copied) == "on its way to the GPU: 40% is there"
    assert why_there(report, read) == "on its way from the disk into memory: 70% is there"
    assert report.cells[staged].activity is Activity.STAGED
    assert placed.active is not None
    assert why_there(report, placed.active) == "in the staging ring of the GPU, which computes it now"


def test_blocks_whose_keys_are_in_memory_are_told_as_such() -> None:
    blocks = list(mixed_blocks())
    blocks[1] = replace(blocks[1], tier=Tier.RAM, executor=Executor.CPU)
    report = TierWatch().feed(on_gpu(mixed_tiers(blocks=tuple(blocks))))
    assert "its keys and values are in memory too" in why_there(report, 1)
    assert "only the rows of its tokens" in why_there(report, 0)


def test_rates_and_waiting_of_both_links_are_told_apart() -> None:
    report = watched(mixed(200))
    placed = mixed_tiers()
    assert report.copies is not None
    assert report.link.rate == pytest.approx(6 * placed.pass_read_bytes, rel=0.1)
    assert report.copies.rate == pytest.approx(6 * placed.pass_copy_bytes, rel=0.1)
    assert (report.link.busy, report.copies.busy) == (pytest.approx(0.5), pytest.approx(0.75))
    assert report.stall_share == pytest.approx(0.3, abs=0.02)
    assert report.copy_stall_s == pytest.approx(0.2 / 6, rel=0.1)
    assert report.stall_s == pytest.approx(0.3 / 6, rel=0.1)
    assert report.waits == dict(placed.pass_stalls)
    assert wait_words(report, placed.pass_stalls[0][0]) == "stall 3.1 ms"
    assert wait_words(report, 0) == ""


@pytest.mark.parametrize(
    ("disk", "copies", "limited_by", "limit", "words"),
    [
        (0.6, 0.2, "the GPU", Limit.DISK, "the disk: waiting 60%"),
        (0.2, 0.6, "the GPU", Limit.LINK, "copies: waiting 60%"),
        (0.1, 0.3, "the disk", Limit.LINK_IN_PART, "partly copies: waiting 30%"),
        (0.3, 0.1, "the GPU", Limit.DISK_IN_PART, "partly the disk: waiting 30%"),
        (0.02, 0.04, "memory bandwidth", Limit.COMPUTE, "memory bandwidth: waiting 6%"),
        (0.0, 0.0, "the link to the GPU", Limit.COMPUTE, "computing: waiting 0%"),
    ],
)
def test_what_a_hybrid_waits_for_is_what_was_measured(
    disk: float, copies: float, limited_by: str, limit: Limit, words: str
) -> None:
    snapshots = mixed(200, disk=disk, copies=copies)
    report = watched(
        [replace(each, tiers=replace(each.tiers, limited_by=limited_by)) for each in snapshots]  # type: ignore[type-var]
    )
    assert report.limit is limit
    assert limit_words(report) == words


def test_the_bar_of_the_gpu_shows_its_ring() -> None:
    placed = mixed_tiers()
    vram, ram, nvme = TierWatch().feed(on_gpu(placed)).tiers
    assert (vram.ring, ram.ring, nvme.ring) == (placed.vram_ring_bytes, placed.ring_bytes, 0)
    assert (vram.used, vram.total, vram.whole) == (
        placed.vram_used_bytes,
        placed.vram_budget_bytes,
        24_000_000_000,
    )
    assert "▒" in "".join(bar_parts(vram, 40))
    assert tier_numbers(ram) == f"{ram.used / 1e9:.2f}/4.00 GB 17R 5S"  # the embedding is one of them


def test_a_model_that_answers_while_it_loads_says_so_and_moves_at_rest() -> None:
    moving = mixed_tiers(settled=False, active=None)
    ready = {"state": EngineState.READY, "load_progress": 0.43, "decode_tok_s": 0.0}
    watch = TierWatch()
    for step in range(30):
        now = replace(moving, h2d_bytes=step * 200_000_000, copy_s=step * 0.1, read_bytes=step * 100_000_000)
        report = watch.feed(on_gpu(now, seq=step, at=100 + step / 10, **ready))
    assert (report.settled, report.load_progress) == (False, 0.43)
    assert settling_words(settled=report.settled, progress=report.load_progress).endswith("loads: 43%")
    assert report.copies is not None
    assert (report.copies.rate, report.copies.busy) == (pytest.approx(2e9), pytest.approx(1.0))
    assert report.link.rate == pytest.approx(1e9)
    (_staged, (copied, _), _read) = moving.in_flight
    assert report.cells[copied].activity is Activity.MOVING
    text = "\n".join(as_lines(report, 100))
    assert "answers while it loads: 43%" in text
    assert "NVMe->RAM" in text
    assert settling_words(settled=False, progress=1.0) == "blocks move"
    assert settling_words(settled=True, progress=1.0) == ""


def test_the_text_and_the_object_tell_of_three_tiers() -> None:
    report = watched(mixed(50))
    text = "\n".join(as_lines(report, 100))
    for words in (
        "V vram R ram S ram→gpu N disk •ring",
        "prompt of 512 planned 1,170 tok/s",
        "a token: 490 MB →gpu, 490 MB disk",
        "waited longest for L5 ffn 12 ms, L3 ffn 3.1 ms",
        "ms copies",
        "planned 6.2",
    ):
        assert words in text
    told = as_json(report)
    index = block_of(mixed_tiers(), Tier.RAM, Executor.STREAM)
    block = told["blocks"][index]  # type: ignore[index]
    assert (block["tier"], block["executor"]) == ("ram", "stream")
    assert told["blocks"][8]["wait_ms"] == pytest.approx(3.1)  # type: ignore[index]
    assert told["predicted_prefill_tok_s"] == 1170.0
    assert (told["settled"], told["pass_copy_bytes"]) == (True, 490_000_000)
    assert told["copy_stall_ms_per_pass"] < told["stall_ms_per_pass"]  # type: ignore[operator]
    assert json.dumps(told)


def test_the_same_snapshot_gives_the_same_report() -> None:
    watch, one = TierWatch(), snapshot(tiers())
    assert watch.feed(one) is watch.feed(one)


@pytest.mark.parametrize(
    ("given_snapshot", "words"),
    [
        (EngineSnapshot(), "no model is loaded"),
        (EngineSnapshot(state=EngineState.LOADING), "being loaded"),
        (EngineSnapshot(state=EngineState.READY, model=model()), "NumPy"),
    ],
)
def test_without_a_map_it_says_why(given_snapshot: EngineSnapshot, words: str) -> None:
    report = TierWatch().feed(given_snapshot)
    assert words in why_no_map(report)
    assert as_lines(report, 80)[-1] == why_no_map(report)


# -- several snapshots


def test_speed_reads_and_waiting_agree_with_each_other() -> None:
    report = watched(running(250, passes_per_s=2.0, stalled=0.6))
    assert report.now_tok_s == pytest.approx(2.0, rel=0.05)
    assert report.link.rate == pytest.approx(2.0 * report.pass_read_bytes, rel=0.05)
    assert report.stall_share == pytest.approx(0.6, abs=0.02)
    assert report.stall_s == pytest.approx(0.3, rel=0.05)
    assert report.compute.busy == pytest.approx(1.6, rel=0.01)


def test_a_slow_model_has_a_steady_speed() -> None:
    watch = TierWatch()
    speeds = [watch.feed(each).now_tok_s for each in running(300, passes_per_s=0.4)][150:]
    assert min(speeds) == pytest.approx(0.4, rel=0.1)
    assert max(speeds) == pytest.approx(0.4, rel=0.1)


def test_the_ceiling_is_never_below_what_was_seen() -> None:
    report = watched(running(100, passes_per_s=3.0))
    assert report.link.probed == RATE
    assert report.link.ceiling is not None
    assert report.link.rate > RATE
    assert report.link.ceiling >= max(report.link.history)


@pytest.mark.parametrize(
    ("stalled", "limited_by", "limit", "words"),
    [
        (0.8, "the processor", Limit.DISK, "the disk: waiting 80%"),
        (0.3, "the processor", Limit.DISK_IN_PART, "partly the disk: waiting 30%"),
        (0.0, "the disk", Limit.COMPUTE, "computing: waiting 0%"),
        (0.0, "memory bandwidth", Limit.COMPUTE, "memory bandwidth: waiting 0%"),
    ],
)
def test_what_was_measured_wins_over_the_plan(
    stalled: float, limited_by: str, limit: Limit, words: str
) -> None:
    snapshots = running(200, passes_per_s=2.0, stalled=stalled)
    report = watched(
        [replace(each, tiers=replace(each.tiers, limited_by=limited_by)) for each in snapshots]  # type: ignore[type-var]
    )
    assert report.limit is limit
    assert limit_words(report) == words


def test_nothing_moves_after_the_reply() -> None:
    snapshots = running(50)
    end = replace(snapshots[-1], state=EngineState.READY, at=snapshots[-1].at + 0.1, seq=999)
    watch = TierWatch()
    for each in (*snapshots, end):
        report = watch.feed(each)
    assert (report.link.rate, report.link.moving, report.now_tok_s, report.compute.busy) == (
        0.0,
        (),
        0.0,
        0.0,
    )
    assert report.compute.active is None
    assert {one.activity for one in report.cells} == {Activity.STILL, Activity.STAGED}
    assert limit_words(report) == "the disk, by plan"
    # The queue grew, or a notice came: the tiers are as they were.
    assert watch.feed(replace(end, seq=1000)).link.moving == ()


@pytest.mark.parametrize(
    ("stalled", "limit", "words"),
    [
        (0.8, Limit.DISK, "the disk"),
        (0.3, Limit.DISK_IN_PART, "partly the disk"),
        (0.0, Limit.COMPUTE, "computing"),
    ],
)
def test_what_held_the_last_reply_back_stays_where_nothing_is_planned(
    stalled: float, limit: Limit, words: str
) -> None:
    snapshots = [
        replace(each, tiers=replace(each.tiers, limited_by=""))  # type: ignore[type-var]
        for each in running(100, stalled=stalled)
    ]
    assert limit_words(TierWatch().feed(snapshots[0])) == "not measured yet"
    end = replace(snapshots[-1], state=EngineState.READY, at=snapshots[-1].at + 0.1, seq=999)
    report = watched([*snapshots, end])
    assert (report.limit, limit_words(report)) == (limit, words)
    assert "stall" not in waiting_words(report)


def test_blocks_that_come_because_of_a_new_budget_are_seen_while_nothing_is_computed() -> None:
    ready = snapshot(tiers(active=None, in_flight=()), state=EngineState.READY)
    coming = tiers(active=None, in_flight=((5, 0.25),))
    watch = TierWatch()
    watch.feed(ready)
    report = watch.feed(replace(ready, tiers=coming, at=101.0))
    assert report.cells[5].activity is Activity.MOVING


def test_another_model_begins_anew() -> None:
    watch = TierWatch()
    for each in running(50):
        watch.feed(each)
    report = watch.feed(snapshot(tiers(), model=model(name="Other"), at=200.0))
    assert (report.link.rate, report.link.history, report.stall_s) == (0.0, (), None)


def test_only_a_report_of_a_running_reply_grows_old() -> None:
    report = TierWatch().feed(snapshot(tiers(), at=100.0))
    assert report.age(101.9) == 0.0
    assert report.age(103.5) == 3.5
    assert TierWatch().feed(snapshot(tiers(), state=EngineState.READY)).age(1000.0) == 0.0


# -- text


@given(st.integers(4, 120), st.integers(0, 1200), st.integers(0, 400), st.integers(0, 1000))
def test_a_bar_has_the_width_asked_for(width: int, used: int, ring: int, total: int) -> None:
    report = TierWatch().feed(snapshot(tiers()))
    ram = replace(report.tiers[0], used=used + ring, ring=ring, total=total)
    parts = bar_parts(ram, width)
    assert len("".join(parts)) == width
    assert bool(parts[1]) == bool(ring)


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_lines_fit_and_show_each_block(width: int) -> None:
    report = watched(running(100))
    lines = as_lines(report, width)
    assert max(map(len, lines)) <= width
    letters = "".join(line[5:] for line in lines if line[3:4] in "af" and line[:1] in " 0123456789")
    assert letters.count("R") + letters.count("N") >= 50


def test_hostile_names_and_events_reach_no_terminal() -> None:
    placed = blocks(2)
    placed = (replace(placed[0], name="\x1b]52;c;x\x07"), *placed[1:])
    event = TierEvent(0.0, "moved \x1b[2J")
    report = TierWatch().feed(
        snapshot(tiers(placed, active=0, in_flight=(), events=(event,)), model=model(name="\x1b[31mred"))
    )
    assert "\x1b" not in "\n".join(as_lines(report, 100))


def test_what_is_left_out_is_marked_and_no_pass_needs_it() -> None:
    placed = tiers(active=None, in_flight=())
    before = TierWatch().feed(snapshot(placed))
    left_out = frozenset({1, 4, 6})
    watch = TierWatch()
    report = watch.feed(snapshot(replace(placed, skipped=left_out)))
    assert {index for index, each in enumerate(report.cells) if each.skipped} == left_out
    n_bytes = sum(placed.blocks[index].n_bytes for index in left_out)
    assert (report.skipped_bytes, report.pass_bytes) == (n_bytes, before.pass_bytes - n_bytes)
    assert "left out of every pass" in why_there(report, 4)
    assert "left out" not in why_there(report, 2)
    text = "\n".join(as_lines(report, 100))
    assert "· skipped 3 of 64, 5% of bytes" in text
    assert [block["skipped"] for block in as_json(report)["blocks"]].count(True) == 3  # type: ignore[attr-defined]
    assert skipped_words(before) == ""
    again = watch.feed(snapshot(placed))
    assert not any(each.skipped for each in again.cells), "all are used again"


def test_reads_of_a_plan_that_was_made_before_are_no_negative_hits() -> None:
    placed = tiers(blocks(1, heads=1), pass_read_bytes=10**12)
    assert TierWatch().feed(snapshot(replace(placed, skipped=frozenset({1, 2})))).hit_rate == 0.0


def test_json_has_the_promised_keys() -> None:
    result = as_json(watched(running(100)))
    assert result.keys() == {
        "state",
        "model",
        "backend",
        "backend_reason",
        "gpu",
        "reason",
        "tiers",
        "blocks",
        "links",
        "compute",
        "passes",
        "pass_bytes",
        "skipped_blocks",
        "skipped_bytes",
        "pass_read_bytes",
        "pass_copy_bytes",
        "hit_rate",
        "stall_ms_per_pass",
        "copy_stall_ms_per_pass",
        "stall_share",
        "now_tok_s",
        "decode_tok_s",
        "predicted_decode_tok_s",
        "predicted_prefill_tok_s",
        "limited_by",
        "limit",
        "settled",
        "load_progress",
        "events",
        "events_dropped",
    }
    assert len(result["blocks"]) == len(blocks())  # type: ignore[arg-type]
