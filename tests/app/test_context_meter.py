"""The context meter and the switches as a person reads them, colours aside."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.context_use import ContextUse
from app.widgets.context_meter import ContextMeter, context_bar, context_line, legend, shares, when_full
from app.widgets.switches import Switch, Switches, switch_line, switch_lines
from engine import Overflow
from tests.app.bare_host import Host

FULL = ContextUse(system=212, history=5391, attachments=800, reply=209, reserve=400, total=8192)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8), st.integers(1, 80))
def test_cells_are_shared_out_and_nobody_is_forgotten(amounts: list[int], cells: int) -> None:
    given_out = shares(amounts, cells)
    assert sum(given_out) == cells
    present = [amount for amount in amounts if amount]
    for amount, n in zip(amounts, given_out, strict=True):
        assert n >= 0
        if amount and len(present) <= cells:
            assert n >= 1
        if not amount and present:
            assert n == 0


@given(st.tuples(*[st.integers(0, 9000)] * 5), st.integers(0, 9000), st.integers(6, 60))
def test_the_bar_fills_its_width_whatever_is_in_it(
    parts: tuple[int, int, int, int, int], total: int, width: int
) -> None:
    system, history, attachments, reply, reserve = parts
    use = ContextUse(system, history, attachments, reply, reserve, total)
    assert context_bar(use, width).cell_length == width


def test_each_part_has_a_pattern_of_its_own() -> None:
    bar = context_bar(FULL, 30).plain
    assert [glyph for glyph in dict.fromkeys(bar)] == ["▓", "━", "═", "▪", "╌", "·"]
    for glyph in "▓━═▪╌":
        assert glyph in legend(FULL, 30).plain


def test_the_legend_names_what_is_there_and_breaks_between_parts() -> None:
    use = ContextUse(system=212, history=5391, total=8192)
    assert legend(use, 80).plain == "▓ sys 212 · ━ hist 5,391 · free 2,589"
    lines = legend(FULL, 28).plain.splitlines()
    assert all(len(line) <= 28 for line in lines)
    assert "═ files 800" in " · ".join(lines)


def test_an_estimate_says_so_and_a_full_context_is_named() -> None:
    assert "68% 5,603 / 8,192" in context_line(ContextUse(212, 5391, total=8192), 80).plain
    assert "~" in context_line(ContextUse(1, 2, total=10, exact=False), 80).plain
    assert context_line(ContextUse(0, 9, total=0), 40).plain  # a model without a context cannot divide by it
    line = context_line(FULL, 40)
    assert line.cell_length <= 30


def test_what_happens_when_it_is_full_is_said() -> None:
    use = ContextUse(total=10)
    assert when_full(Overflow.STOP, use) == "full: the reply stops"
    assert when_full(Overflow.DROP_OLDEST, use) == "full: drops the oldest turns"
    assert when_full(Overflow.DROP_OLDEST, ContextUse(total=10, dropped=6)) == "6 oldest messages left out"


async def test_the_meter_fits_a_sidebar() -> None:
    host = Host(ContextMeter)
    async with host.run_test(size=(30, 10)) as pilot:
        meter = host.query_one(ContextMeter)
        assert "no model" in host.shown()
        meter.show(FULL, Overflow.DROP_OLDEST)
        await pilot.pause()
        lines = host.shown().splitlines()
        assert lines[0].startswith("CONTEXT") and lines[0].endswith("6,612 / 8,192")
        assert set(lines[1]) == set("▓━═▪╌·")
        assert "full: drops the oldest turns" in host.shown()


def test_a_switch_shows_its_state_without_colour() -> None:
    assert switch_line(Switch("greedy", "F7", on=True)).plain == "[x] F7 greedy"
    assert switch_line(Switch("greedy", "F7", on=False, pending=True)).plain == "[ ] F7 greedy…"
    (line,) = switch_lines(Switch("skip", "F5", True, note="approximate"), 40)
    assert line.plain == "[x] F5 skip  approximate"


async def test_switches_that_the_engine_lacks_are_absent() -> None:
    host = Host(Switches)
    async with host.run_test(size=(40, 6)) as pilot:
        switches = host.query_one(Switches)
        switches.show([Switch("greedy", "F7", on=False)])
        await pilot.pause()
        assert [line.strip() for line in host.shown().splitlines() if line.strip()] == [
            "SWITCHES",
            "[ ] F7 greedy",
        ]
        switches.show([])
        await pilot.pause()
        assert not host.shown().strip()
