"""The switches as a column and as a line: whole notes where there is room, else what says most."""

from __future__ import annotations

import pytest

from app.widgets.switches import Switch, Switches, SwitchLine
from tests.app.hosting import hosting, screen_text

SKIP = Switch(
    "layer skip", "F5", True, note="approximate, +2.1 % perplexity [+1.5, +2.7]", how="kl=0.05 · 6 blocks"
)
DRAFTS = Switch("drafts", "F6", True, True, note="75% taken · 1.80x plain", how="n-gram k=4")
GREEDY = Switch("greedy", "F7", False)


async def test_notes_stand_below_their_switch_and_a_short_one_behind_it() -> None:
    column = Switches()
    async with hosting(column, size=(30, 20)) as (host, pilot):
        column.show([SKIP, DRAFTS, Switch("greedy", "F7", True, note="first")])
        await pilot.pause()
        lines = [line.rstrip() for line in screen_text(host).splitlines() if line.strip()]
    assert lines == [
        "SWITCHES",
        "[x] F5 layer skip",
        "    kl=0.05 · 6 blocks",
        "    approximate, +2.1 %",
        "    perplexity [+1.5, +2.7]",
        "[x] F6 drafts…",
        "    n-gram k=4",
        "    75% taken · 1.80x plain",
        "[x] F7 greedy  first",
    ]


async def test_without_a_switch_there_is_no_column() -> None:
    column = Switches()
    async with hosting(column, size=(30, 20)) as (host, pilot):
        column.show([SKIP])
        column.show([])
        await pilot.pause()
        assert not screen_text(host).strip()


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (
            150,
            [
                "F5 layer skip: kl=0.05 · 6 blocks · approximate, +2.1 % perplexity [+1.5, +2.7]"
                "  F6 drafts…: n-gram k=4 · 75% taken · 1.80x plain"
            ],
        ),
        (
            84,
            [
                "F5 layer skip: kl=0.05 · 6 blocks · approximate, +2.1 % perplexity [+1.5, +2.7]",
                "F6 drafts…: n-gram k=4 · 75% taken · 1.80x plain",
            ],
        ),
        (
            78,
            [
                "F5 layer skip: approximate, +2.1 % perplexity [+1.5, +2.7]",
                "F6 drafts…: 75% taken · 1.80x plain",
            ],
        ),
        (40, ["F5 layer skip  F6 drafts…"]),
        (12, ["F5 layer sk…", "F6 drafts…"]),
    ],
)
async def test_the_line_gives_up_what_says_least(width: int, lines: list[str]) -> None:
    line = SwitchLine()
    async with hosting(line, size=(width + 2, 20)) as (host, pilot):
        line.styles.display = "block"
        line.show([SKIP, DRAFTS, GREEDY])
        await pilot.pause()
        shown = [each.strip() for each in screen_text(host).splitlines() if each.strip()]
    assert shown == lines


async def test_the_line_is_there_only_for_what_is_on_or_waits() -> None:
    line = SwitchLine()
    async with hosting(line) as (_host, _pilot):
        line.show([Switch("a", "F5", False), GREEDY])
        assert not line.has_class("-any")
        line.show([Switch("a", "F5", False, pending=True)])
        assert line.has_class("-any")
        line.show([GREEDY])
        assert not line.has_class("-any")
