"""The line of tabs and the line that finds words."""

from __future__ import annotations

from textual.widgets import Input

from app.widgets.find_bar import FindBar
from app.widgets.tab_bar import Tab, TabBar
from tests.app.hosting import hosting, screen_text

TABS = [Tab("Streaming", busy=True), Tab("[b]Other\x1b", draft=True), Tab("")]


async def test_tabs_show_the_active_one_in_brackets_and_what_goes_on() -> None:
    bar = TabBar()
    async with hosting(bar) as (host, pilot):
        bar.show(TABS, 0)
        await pilot.pause()
        line = screen_text(host).splitlines()[0]
        assert line.rstrip() == "[1 Streaming ●] 2 [b]Other␛ ✎  3 New conversation"
        bar.show(TABS, 1)
        await pilot.pause()
        assert "[2 [b]Other␛ ✎]" in screen_text(host)


async def test_a_click_on_a_tab_goes_there() -> None:
    bar = TabBar()
    async with hosting(bar) as (host, pilot):
        bar.show(TABS, 0)
        await pilot.pause()
        for column in (3, 18, 40, 79):
            await pilot.click(bar, offset=(column, 0))
        assert [message.index for message in host.heard_of(TabBar.Chosen)] == [1, 2]


async def test_where_room_is_short_titles_are_cut_and_then_only_one_is_shown() -> None:
    bar = TabBar()
    tabs = [Tab("A conversation with a long title", busy=n == 3) for n in range(5)]
    async with hosting(bar, size=(120, 5)) as (host, pilot):
        bar.show(tabs, 1)
        for width, start in ((120, " 1 A"), (80, " 1 A"), (40, "2/5 A")):
            await pilot.resize_terminal(width, 5)
            await pilot.pause()
            line = screen_text(host).splitlines()[0]
            assert line.startswith(start)
            assert "●" in line
            assert len(line) == width
        await pilot.click(bar, offset=(0, 0))
        assert [message.index for message in host.heard_of(TabBar.Chosen)] == [2]


async def test_words_are_searched_for_as_they_are_typed() -> None:
    bar = FindBar()
    async with hosting(bar) as (host, pilot):
        assert not bar.display
        bar.open()
        await pilot.press("a", "b")
        assert [message.words for message in host.heard_of(FindBar.Changed)] == ["a", "ab"]
        bar.show_count(3, 12)
        await pilot.pause()
        assert "3/12" in screen_text(host)
        bar.show_count(0, 0)
        await pilot.pause()
        assert "nothing found" in screen_text(host)
        await pilot.press("enter", "shift+enter", "up", "down")
        assert [message.step for message in host.heard_of(FindBar.Next)] == [1, -1, -1, 1]
        await pilot.press("escape")
        assert not bar.display
        assert len(host.heard_of(FindBar.Closed)) == 1


async def test_opened_again_it_searches_for_the_same_words() -> None:
    bar = FindBar()
    async with hosting(bar) as (host, pilot):
        bar.open("first\nwords")
        await pilot.press("escape")
        bar.open()
        await pilot.pause()
        assert bar.query_one(Input).value == "first words"
        assert [message.words for message in host.heard_of(FindBar.Changed)] == ["first words"] * 2
        await pilot.press("!")
        assert bar.query_one(Input).value == "first words!"
