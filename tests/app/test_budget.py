"""The memory budget: what the estimate promises, and the dialog under keys and mouse."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot

from app.bridge import BudgetOf
from app.budget_estimate import computing_bytes, ram_range, vram_range
from app.screens.budget import BudgetScreen
from app.widgets.budget_slider import BudgetSlider
from engine import (
    BlockPlace,
    Budget,
    Engine,
    EngineSnapshot,
    EngineState,
    Executor,
    LoadOptions,
    ModelInfo,
    Tier,
    TierEvent,
    TierSnapshot,
    parse_budget,
)
from tests.app.bare_host import Host
from tests.app.hosting import until
from tests.app.tiers.models import GPU, gpu_tiers
from tests.tiny_gguf import write_tiny_model

MB = 1_000_000
MODEL = ModelInfo(
    path=Path("m.gguf"),
    name="Big\x1b[2J",
    architecture="llama",
    n_layers=10,
    hidden_size=1,
    vocab_size=1,
    n_parameters=1,
    quantisation="Q4_K",
    file_bytes=2200 * MB,
    training_context=8192,
    max_context=4096,
    kv_bytes=300 * MB,
    has_template=True,
    template_origin="",
)
TIERS = TierSnapshot(
    blocks=(
        BlockPlace("embedding", "embedding", None, 200 * MB, "Q4_K", Tier.NVME),
        *(BlockPlace(f"blk.{n}", "attention", n, 100 * MB, "Q4_K", Tier.RAM) for n in range(20)),
    ),
    ram_bytes=800 * MB,
    ring_bytes=200 * MB,
    budget_bytes=1000 * MB,
    pass_read_bytes=1200 * MB,
    read_bytes=0,
    read_s=0.0,
    stall_s=0.0,
    disk_rate=2e9,
    predicted_decode_tok_s=1.0,
    limited_by="the disk",
    active=None,
    in_flight=(),
    events=(),
    events_dropped=0,
)
SNAPSHOT = EngineSnapshot(seq=1, state=EngineState.READY, model=MODEL, tiers=TIERS)


class BudgetHost(Host):
    """An engine that takes a budget when it is told to."""

    def __init__(self, snapshot: EngineSnapshot = SNAPSHOT) -> None:
        super().__init__()
        self.snapshot = snapshot
        self.asked: list[Budget | None] = []
        self.of: list[BudgetOf] = []

    def change(self, memory: BudgetOf, budget: Budget | None) -> None:
        self.of.append(memory)
        self.asked.append(budget)

    def acknowledge(self) -> None:
        budget = self.asked[-1]
        n_bytes = (budget.n_bytes if budget is not None else 1300 * MB) - 300 * MB
        tiers = replace(TIERS, budget_bytes=n_bytes, pass_read_bytes=700 * MB)
        self.snapshot = replace(self.snapshot, seq=self.snapshot.seq + 1, ram_budget=budget, tiers=tiers)


@asynccontextmanager
async def dialog(
    size: tuple[int, int] = (80, 24), snapshot: EngineSnapshot = SNAPSHOT
) -> AsyncIterator[tuple[BudgetHost, Pilot[None]]]:
    host = BudgetHost(snapshot)
    async with host.run_test(size=size) as pilot:
        host.push_screen(BudgetScreen(lambda: host.snapshot, lambda: 8000 * MB, host.change))
        await pilot.pause()
        yield host, pilot


def test_the_range_counts_what_is_beside_the_weights() -> None:
    budgets = ram_range(SNAPSHOT, 8000 * MB)
    assert budgets is not None
    assert (budgets.least, budgets.in_effect, budgets.whole) == (500 * MB, 1300 * MB, 2500 * MB)
    assert budgets.available == 9300 * MB
    # Bytes that were asked for tell to the byte what is not for weights.
    asked = ram_range(replace(SNAPSHOT, ram_budget=Budget(1350 * MB)), 8000 * MB)
    assert asked is not None and asked.in_effect == 1350 * MB
    assert ram_range(EngineSnapshot(), 8000 * MB) is None


def loaded(path: Path, budget: Budget | None) -> EngineSnapshot:
    engine = Engine()
    try:
        engine.load(LoadOptions(path, context=64, device="cpu", ram_budget=budget))
        until = time.monotonic() + 60
        while engine.snapshot.model is None and time.monotonic() < until:
            time.sleep(0.01)
        return engine.snapshot
    finally:
        engine.close()


def test_the_default_budget_has_the_limits_of_one_in_bytes(tmp_path: Path) -> None:
    pytest.importorskip("kernels.cpu", reason="no C kernels, so no tiers")
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path)
    default, in_bytes = loaded(path, None), loaded(path, Budget(400 * MB))
    computing = computing_bytes(default)
    one, other = ram_range(default, 8000 * MB, computing), ram_range(in_bytes, 8000 * MB)
    assert computing > 0 and one is not None and other is not None
    assert (one.least, one.whole) == pytest.approx((other.least, other.whole), rel=0.01)
    assert other.in_effect == 400 * MB
    assert computing_bytes(SNAPSHOT) == 0, "there is no such file"


@given(st.integers(0, 9000), st.integers(0, 9000), st.integers(0, 12000))
def test_more_memory_never_reads_more(one: int, other: int, available: int) -> None:
    budgets = ram_range(SNAPSHOT, available * MB)
    assert budgets is not None
    low, high = sorted((one, other))
    assert budgets.outside(low * MB) >= budgets.outside(high * MB) >= 0
    assert budgets.outside(budgets.least) == budgets.pass_bytes
    assert budgets.outside(budgets.whole) == 0
    assert budgets.least < budgets.most


async def test_moving_says_what_it_would_bring_and_enter_asks_for_it() -> None:
    async with dialog() as (host, pilot):
        assert "disk now  1.2 GB a token, 0.6 s" in host.shown()
        assert "disk then" not in host.shown()
        await pilot.press("shift+right")
        await pilot.pause()
        assert "disk then  ~" in host.shown()
        assert not host.asked
        await pilot.press("enter")
        await pilot.pause()
        assert len(host.asked) == 1 and host.asked[0] is not None
        assert host.asked[0].n_bytes > 1300 * MB
        assert "…  when the engine has taken it" in host.shown()
        host.acknowledge()
        there = "disk now  700 MB a token"
        await until(pilot, lambda: there in host.shown() and "…" not in host.shown())


async def test_a_refusal_is_shown_and_nothing_is_waited_for() -> None:
    async with dialog() as (host, pilot):
        for asked in (1, 2):  # the same words the second time
            await pilot.press("9", "0", "M", "enter")
            await pilot.pause()
            assert "…  when the engine has taken it" in host.shown()
            assert "✗" not in host.shown()
            told = TierEvent(0.0, "the memory budget was not changed: give at least 500M (--ram-budget)")
            placed = replace(TIERS, events=(told,) * asked)
            host.snapshot = replace(host.snapshot, seq=host.snapshot.seq + 1, tiers=placed)
            refused = "✗ the memory budget was not changed: give at least 500M (/budget)"
            await until(pilot, lambda: refused in host.shown() and "…" not in host.shown())  # noqa: B023
            assert "1.3 GB" in host.shown(), "the slider stands where it stood"
        await pilot.press("d")
        await pilot.pause()
        assert "not changed" not in host.shown()


async def test_all_the_way_right_nothing_is_read() -> None:
    async with dialog() as (host, pilot):
        await pilot.press("end")
        await pilot.pause()
        assert "disk then  nothing is read" in host.shown()
        assert "◆ all in memory" in host.shown()
        assert "▲ now" in host.shown()


@pytest.mark.parametrize("typed", ["8G", "50%", "7.5GiB", "900 MB"])
async def test_a_size_is_typed(typed: str) -> None:
    async with dialog() as (host, pilot):
        await pilot.press(
            *(
                "full_stop" if c == "." else "space" if c == " " else "percent_sign" if c == "%" else c
                for c in typed
            )
        )
        await pilot.press("enter")
        await pilot.pause()
        assert host.asked == [parse_budget(typed)]


async def test_what_is_no_size_is_said_and_nothing_asked() -> None:
    async with dialog() as (host, pilot):
        await pilot.press("0", "enter")
        await pilot.pause()
        assert "✗ 0 is no size" in host.shown()
        await pilot.press("8", "escape")
        await pilot.pause()
        assert not host.asked
        assert isinstance(host.screen, BudgetScreen)
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(host.screen, BudgetScreen)


async def test_more_than_there_is_is_warned_of() -> None:
    async with dialog() as (host, pilot):
        await pilot.press("9", "9", "G", "enter")
        await pilot.pause()
        assert "! more than is available" in host.shown()


async def test_d_leaves_it_to_the_engine() -> None:
    async with dialog() as (host, pilot):
        await pilot.press("d")
        assert host.asked == [None]


async def test_a_click_moves_the_slider() -> None:
    async with dialog() as (host, pilot):
        await pilot.click(BudgetSlider, offset=(2, 1))
        await pilot.pause()
        slider = host.screen.query_one(BudgetSlider)
        assert slider.value < 700 * MB


@pytest.mark.parametrize("size", [(40, 15), (80, 24), (120, 40)])
async def test_everything_is_seen_at_any_size(size: tuple[int, int]) -> None:
    async with dialog(size) as (host, pilot):
        await pilot.press("right")
        await pilot.pause()
        for words in ("Memory budget", "Big␛[2J", "●", "▲", "disk now  ", "disk then  ", "Esc back"):
            assert words in host.shown(), host.shown()


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [(EngineSnapshot(), "No model is loaded"), (replace(SNAPSHOT, tiers=None), "All of it is in memory")],
)
async def test_there_are_no_dead_controls(snapshot: EngineSnapshot, words: str) -> None:
    async with dialog(snapshot=snapshot) as (host, pilot):
        assert words in host.shown()
        assert "●" not in host.shown()
        await pilot.press("right", "enter", "d", "escape")
        assert not host.asked


# -- with a GPU

SPLIT = replace(
    TIERS,
    blocks=tuple(
        replace(block, tier=Tier.VRAM, executor=Executor.GPU) if number % 2 else block
        for number, block in enumerate(TIERS.blocks)
    ),
    pass_read_bytes=0,
    vram_bytes=1000 * MB,
    vram_used_bytes=1700 * MB,
    vram_budget_bytes=1800 * MB,
    vram_ring_bytes=200 * MB,
    gpu=GPU,
)
ON_BOTH = replace(SNAPSHOT, tiers=SPLIT)


def test_memory_and_gpu_have_ranges_of_their_own() -> None:
    ram, vram = ram_range(ON_BOTH, 8000 * MB), vram_range(ON_BOTH)
    assert ram is not None and vram is not None
    # The cache is on the card; of the weights only those that are not there count for memory.
    assert (ram.least, ram.in_effect, ram.whole) == (200 * MB, 1000 * MB, 1200 * MB)
    assert (vram.beside, vram.in_effect, vram.whole) == (500 * MB, 1800 * MB, 2700 * MB)
    assert (vram.outside_now, vram.pass_bytes) == (1000 * MB, 2000 * MB)
    assert vram.available == GPU.free_bytes
    assert vram.outside(vram.whole) == 0
    assert vram_range(SNAPSHOT) is None


def test_of_a_model_that_is_on_the_card_only_the_card_has_a_range() -> None:
    whole = replace(SNAPSHOT, tiers=gpu_tiers())
    assert ram_range(whole, 8000 * MB) is None
    vram = vram_range(whole)
    assert vram is not None and vram.outside_now == 0


@pytest.mark.parametrize("size", [(40, 15), (80, 24), (120, 40)])
async def test_two_budgets_are_chosen_one_beside_the_other(size: tuple[int, int]) -> None:
    async with dialog(size, ON_BOTH) as (host, pilot):
        assert "RAM   1.0 GB" in host.shown()
        assert size[1] < 24 or "VRAM  1.8 GB" in host.shown()
        await until(pilot, lambda: pilot.app.screen.focused is not None)  # or the key is nobody's
        await pilot.press("up")  # to the GPU's
        await until(pilot, lambda: "VRAM  1.8 GB" in host.shown())  # it scrolls there
        await pilot.press("end")
        await pilot.pause()
        if size[1] >= 24:
            assert "beside the card now  1.0 GB a token" in host.shown()
            assert "beside the card then  nothing: all is on the card" in host.shown()
        await pilot.press("enter")
        await pilot.pause()
        await pilot.press("down", "6", "0", "0", "M", "enter")
        await pilot.pause()
        assert host.of == ["vram_budget", "ram_budget"]
        assert host.asked[1] == parse_budget("600M")
        assert host.shown().count("…  when the engine has taken it") == 2 or size[1] < 24
        await pilot.press("up", "d")
        assert host.asked[2] is None and host.of[2] == "vram_budget"


async def test_a_budget_that_was_taken_waits_no_longer_while_the_other_does() -> None:
    async with dialog((80, 24), ON_BOTH) as (host, pilot):
        await pilot.press("9", "G", "enter", "up", "1", "9", "G", "enter")
        await pilot.pause()
        host.snapshot = replace(host.snapshot, seq=9, vram_budget=parse_budget("19G"))
        waiting = "when the engine has taken it"
        await until(pilot, lambda: host.shown().count(waiting) == 1)
        assert [" RAM" in line for line in host.shown().splitlines() if waiting in line] == [True]


async def test_a_model_on_the_card_has_the_budget_of_the_card_alone() -> None:
    async with dialog((80, 24), replace(SNAPSHOT, tiers=gpu_tiers())) as (host, pilot):
        assert "VRAM  20.0 GB" in host.shown()
        assert "RAM  whole" not in host.shown().replace("VRAM", "")
        await pilot.press("1", "9", "G", "enter")
        assert host.of == ["vram_budget"]
