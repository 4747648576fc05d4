"""A reply that streamed looks like the same reply opened later, whatever it is made of."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Markdown

from app.conversation import Conversation, TurnStatus
from app.widgets.stream_tail import StreamTail
from app.widgets.turn import TurnView
from tests.app.driving import Driver, running
from tests.app.test_markdown import BLOCKS

EVERYTHING = "\n".join(BLOCKS)
LATE_DEFINITION = "See [the page].\n\nMore.\n\n[the page]: http://example.org\n"


@pytest.mark.parametrize(
    ("text", "piece"),
    [(EVERYTHING, 60), (EVERYTHING, 400), (LATE_DEFINITION, 5), ("one line", 1)],
    ids=["everything-60", "everything-400", "late-definition", "one-line"],
)
async def test_streamed_equals_opened(home: Path, text: str, piece: int) -> None:
    async with running(size=(100, 30)) as driver:
        streamed = await _stream(driver, text, piece)
        opened = Conversation()
        opened.add("assistant", text)
        view = TurnView(opened.turns[0])
        await driver.chat.query_one("#main", Vertical).mount(view)
        await driver.settled()
        assert _drawn(streamed) == _drawn(view)


async def test_an_open_list_is_plain_text_and_bounded(home: Path) -> None:
    async with running(size=(100, 30)) as driver:
        view = await _mount(driver)
        view.turn.text = "".join(f"- item {number}\n" for number in range(500))
        view.grow("")
        await driver.settled()
        assert len(view.query_one(Markdown).children) == 0
        assert view.query_one(StreamTail).size.height <= 42


@pytest.mark.parametrize("line", ["- item {}\n", "| {} | b |\n", "Paragraph {}.\n\n"])
async def test_a_very_long_reply_ends_as_a_few_widgets_streamed_or_opened(home: Path, line: str) -> None:
    text = "| a | b |\n|---|---|\n" * line.startswith("|") + "".join(line.format(n) for n in range(400))
    async with running(size=(100, 30)) as driver:
        streamed = await _stream(driver, text, 400)
        opened = TurnView(Conversation().add("assistant", text))
        await driver.chat.query_one("#main", Vertical).mount(opened)
        for view in (streamed, opened):
            await driver.until(lambda view=view: view.query(".-folded"), "folded")
            assert len(view.query("*")) == 3
        assert [c.size for c in streamed.children] == [c.size for c in opened.children]


async def test_control_characters_of_a_reply_are_shown_not_sent(home: Path) -> None:
    async with running() as driver:
        streamed = await _stream(driver, "a\x1b]52;c;aGk=\x07b\n\n```\n\x9b2J\n```\n[b]x[/b]", 2)
        text = driver.screen_text()
        assert "a␛]52;c;aGk=␇b" in text
        assert "\ufffd2J" in text
        assert "[b]x[/b]" in text
        assert streamed.turn.text.startswith("a\x1b")


async def _mount(driver: Driver) -> TurnView:
    conversation = Conversation()
    view = TurnView(conversation.add("assistant", status=TurnStatus.STREAMING))
    await driver.chat.query_one("#main", Vertical).mount(view)
    return view


async def _stream(driver: Driver, text: str, piece: int) -> TurnView:
    view = await _mount(driver)
    for start in range(0, len(text), piece):
        view.turn.text += text[start : start + piece]
        view.grow("")
        await driver.pilot._wait_for_screen()
    view.turn.status = TurnStatus.DONE
    view.end()
    await driver.settled()
    return view


def _drawn(view: TurnView) -> list[tuple[str, tuple[int, int], str]]:
    """Class, size and text of every block, in order."""
    blocks = []
    for block in view.query_one(Markdown).query("*"):
        content = block.render()
        text = content.markup if isinstance(content, Content) else ""
        blocks.append((type(block).__name__, (block.size.width, block.size.height), text))
    return blocks
