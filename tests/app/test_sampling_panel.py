"""The side panel of the sampling parameters under keys and mouse."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual.pilot import Pilot

from app.widgets.sampling_panel import SamplingPanel
from app.widgets.sampling_table import SamplingTable
from engine import SamplingParams
from tests.app.bare_host import Host

START = SamplingParams()


class PanelHost(Host):
    """Takes every change, as the engine does with the next token."""

    def __init__(self) -> None:
        super().__init__(SamplingPanel)
        self.changes: list[SamplingParams] = []
        self.left = 0

    def on_sampling_panel_changed(self, event: SamplingPanel.Changed) -> None:
        self.changes.append(event.params)

    def on_sampling_panel_left(self) -> None:
        self.left += 1


@asynccontextmanager
async def panel(
    size: tuple[int, int] = (60, 30),
) -> AsyncIterator[tuple[PanelHost, Pilot[None], SamplingPanel]]:
    host = PanelHost()
    async with host.run_test(size=size) as pilot:
        shown = host.query_one(SamplingPanel)
        shown.show(START, False)
        shown.focus_rows()
        await pilot.pause()
        yield host, pilot, shown


def row(host: Host, name: str) -> str:
    return next(line for line in host.shown().splitlines() if name in line)


async def test_arrows_choose_and_change() -> None:
    async with panel() as (host, pilot, _):
        await pilot.press("right", "shift+right", "down", "left")
        assert [change.temperature for change in host.changes] == [0.75, 1.0, 1.0]
        assert host.changes[-1] == replace(START, temperature=1.0, top_k=39)
        assert "▌top-k" in row(host, "top-k")
        assert row(host, "top-k").rstrip().endswith("39")


async def test_a_typed_number_counts_when_it_is_accepted() -> None:
    async with panel() as (host, pilot, _):
        await pilot.press("1", ".", "2")
        assert not host.changes
        assert "1.2▏" in row(host, "temperature")
        await pilot.press("5", "backspace", "enter")
        assert host.changes == [replace(START, temperature=1.2)]
        await pilot.press("0", "down")  # leaving the row accepts too
        assert host.changes[-1].temperature == 0
        assert "greedy" in row(host, "temperature")


async def test_what_is_out_of_range_is_said_and_the_value_kept() -> None:
    async with panel() as (host, pilot, _):
        await pilot.press("5", "9", "down")
        assert not host.changes
        assert "✗ 59 is not between 0 and 5" in host.shown()
        assert "0.70" in row(host, "▌temperature")
        await pilot.press("right")
        assert "✗" not in host.shown()


async def test_r_resets_the_row_and_shift_r_all() -> None:
    async with panel() as (host, pilot, shown):
        shown.show(SamplingParams(temperature=1.5, top_k=9, presence_penalty=1), False)
        await pilot.press("r")
        assert host.changes[-1] == SamplingParams(top_k=9, presence_penalty=1)
        await pilot.press("R")
        assert host.changes[-1] == START
        await pilot.press("R")
        assert len(host.changes) == 2, "nothing changed, nothing is told"


async def test_the_seed_is_random_or_fixed_at_that_of_the_newest_reply() -> None:
    async with panel() as (host, pilot, shown):
        shown.show(START, False, last_seed=1234567890)
        await pilot.press("end", "space")
        assert host.changes[-1].seed == 1234567890
        assert "1234567890" in row(host, "seed")
        await pilot.press("space")
        assert host.changes[-1].seed is None
        await pilot.press("4", "2", "enter", "right", "r")
        assert [change.seed for change in host.changes[-3:]] == [42, 43, None]


async def test_a_change_is_marked_until_it_is_in_effect() -> None:
    async with panel() as (host, pilot, shown):
        await pilot.press("right")
        wanted = host.changes[-1]
        shown.show(START, True)
        await pilot.pause()
        assert "0.75…" in row(host, "temperature")
        assert "from the next token…" in host.shown()
        shown.show(wanted, False)
        await pilot.pause()
        assert "…" not in host.shown()
        assert "0.75" in row(host, "temperature")


async def test_news_from_before_a_change_does_not_take_it_back() -> None:
    async with panel() as (host, pilot, shown):
        await pilot.press("right")
        shown.show(START, False)  # said before the change was heard
        await pilot.press("right")
        assert host.changes[-1].temperature == 0.8
        shown.show(SamplingParams(top_k=7), False)  # another conversation
        await pilot.pause()
        assert "0.70" in row(host, "temperature")


async def test_what_is_off_looks_off() -> None:
    async with panel() as (host, pilot, shown):
        assert "○" in row(host, "repetition")
        assert "off" in row(host, "repetition")
        shown.show(SamplingParams(repeat_penalty=1.2), False)
        await pilot.pause()
        assert "●" in row(host, "repetition")
        assert "1.20" in row(host, "repetition")


async def test_escape_drops_what_is_typed_and_then_leaves() -> None:
    async with panel() as (host, pilot, _):
        await pilot.press("7", "escape")
        assert (host.left, host.changes) == (0, [])
        assert "▏" not in host.shown()
        await pilot.press("escape")
        assert host.left == 1


async def test_a_click_on_a_slider_sets_it() -> None:
    async with panel() as (host, pilot, _):
        line = host.shown().splitlines().index(row(host, "top-p"))
        table = host.query_one(SamplingTable)
        await pilot.click(SamplingTable, offset=(13, line - table.region.y))
        assert host.changes[-1].top_p < 0.2
        await pilot.click(SamplingTable, offset=(2, line - table.region.y + 1))
        assert "▌min-p" in host.shown()
        assert len(host.changes) == 1


@pytest.mark.parametrize("height", [2, 5, 9, 12, 14, 18, 24, 60])
async def test_the_chosen_row_is_seen_at_any_height(height: int) -> None:
    async with panel((40, height)) as (host, pilot, _):
        for name in ("temperature", "looks back"):
            await pilot.press(
                "home" if name == "temperature" else "end", *(["up"] if name != "temperature" else [])
            )
            assert f"▌{name}" in host.shown(), host.shown()
