"""What is out of sight is left out of layouts, and found when somebody looks for it."""

from __future__ import annotations

import re
from pathlib import Path

from textual.selection import SELECT_ALL
from textual.widgets.markdown import MarkdownBlock

from app.conversation import TurnStatus
from app.widgets.turn import TurnView
from tests.app.driving import Driver, running

LINES = 55
"""So few that none is folded."""


async def _long_reply(driver: Driver) -> TurnView:
    """Stream a reply of many paragraphs, more than a screen above the newest and not yet folded."""
    conversation = driver.chat.workspace.current
    turn = conversation.add("assistant", status=TurnStatus.STREAMING)
    await driver.chat.transcript.add(turn)
    view = driver.chat.transcript.view(turn)
    assert view is not None
    for number in range(LINES):
        turn.text += f"paragraph {number}\n\n"
        view.grow("")
        if number % 10 == 9:
            await driver.settled()
    await driver.settled()
    return view


def _placed(driver: Driver, view: TurnView) -> list[MarkdownBlock]:
    """The blocks that the last whole layout gave a place."""
    places = driver.chat._compositor.full_map
    return [block for block in view.query(MarkdownBlock) if block in places]


async def test_only_blocks_near_the_end_are_placed_while_a_reply_grows(home: Path) -> None:
    async with running(size=(100, 30)) as driver:
        view = await _long_reply(driver)
        blocks = list(view.query(MarkdownBlock))
        placed = _placed(driver, view)
        assert len(blocks) >= LINES - 10  # some are in the tail
        assert 10 < len(placed) < 45
        assert placed[-1] is blocks[-1]
        assert view.size.height >= 2 * (LINES - 5)  # the size is that of all


async def test_scrolling_shows_what_was_left_out(home: Path) -> None:
    async with running(size=(100, 30)) as driver:
        await _long_reply(driver)
        transcript = driver.chat.transcript
        for row in (0, 60, 31, transcript.max_scroll_y):
            transcript.release_anchor()
            transcript.scroll_to(y=row, animate=False, immediate=True)
            await driver.settled()
            shown = driver.screen_text()
            numbers = [int(number) for number in re.findall(r"paragraph (\d+)", shown)]
            assert numbers == list(range(numbers[0], numbers[-1] + 1)), shown
            assert abs(2 * numbers[0] - row) <= 3, shown


async def test_words_far_above_are_found_and_selected(home: Path) -> None:
    async with running(size=(100, 30)) as driver:
        await _long_reply(driver)
        transcript = driver.chat.transcript
        transcript.find("paragraph 7")
        await driver.until(driver.chat.get_selected_text, "a selection")
        await driver.settled()
        assert "paragraph 7" in driver.screen_text()


async def test_a_selection_reaches_over_what_is_out_of_sight(home: Path) -> None:
    async with running(size=(100, 30)) as driver:
        view = await _long_reply(driver)
        blocks = list(view.query(MarkdownBlock))
        driver.chat.selections = {blocks[0]: SELECT_ALL}
        view.turn.text += "one more\n\n"
        view.grow("")
        await driver.settled()
        assert set(_placed(driver, view)) >= set(blocks)
