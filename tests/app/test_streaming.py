"""A reply that streamed looks like the same reply opened later, whatever it is made of."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.widget import Widget
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownFence

from app.conversation import Conversation, TurnStatus
from app.sanitize import sanitize
from app.widgets.stream_tail import LAYOUT_S, StreamTail
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


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("".join(f"- item {number}\n" for number in range(500)), 500),
        ("```py\n" + "".join(f"x = {number}\n" for number in range(500)), 500),
        ("word " * 20_000, 1000),
        ("x" * 50_000, 500),
        ("文" * 50_000, 1000),
    ],
    ids=["list", "code", "words", "letters", "chinese"],
)
async def test_all_of_an_open_block_is_shown_by_a_few_widgets(home: Path, text: str, lines: int) -> None:
    async with running(size=(110, 30)) as driver:
        view = await _mount(driver)
        for start in range(0, len(text), 777):
            view.turn.text += text[start : start + 777]
            view.grow("")
        await asyncio.sleep(LAYOUT_S)
        view.grow("")
        await driver.settled()
        assert len(view.query_one(Markdown).children) == 0
        tail = view.query_one(StreamTail)
        assert tail.size.height >= lines
        assert "".join(_visible(tail).replace("▌", "").split()) == "".join(text.removeprefix("```py").split())
        assert len(tail.children) < 15
        assert tail.children[-1].size.height < 200


async def test_a_long_reply_hides_nothing_while_it_grows(home: Path) -> None:
    paragraphs = [f"Paragraph {number}." for number in range(300)]
    async with running(size=(100, 30)) as driver:
        view = await _mount(driver)
        for start in range(0, len(paragraphs), 3):
            view.turn.text += "".join(f"{paragraph}\n\n" for paragraph in paragraphs[start : start + 3])
            view.grow("")
            await driver.pilot._wait_for_screen()
        await asyncio.sleep(LAYOUT_S)
        view.grow("")
        await driver.settled()
        words = [line.strip(" ▌") for line in _visible(view).splitlines()]
        assert [word for word in words if word.startswith("Paragraph")] == paragraphs
        assert len(view.query("*")) < 200


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


async def test_code_is_coloured_once_and_very_long_code_never(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coloured: list[int] = []
    highlight = MarkdownFence.highlight

    def count(code: str, *arguments: Any) -> Content:
        coloured.append(code.count("\n"))
        return highlight(code, *arguments)

    monkeypatch.setattr(MarkdownFence, "highlight", count)
    async with running(size=(100, 30)) as driver:
        view = await _stream(
            driver, "```py\n" + "x = 1\n" * 30 + "```\n\n```py\n" + "y = 2\n" * 1200 + "```\n", 500
        )
        await driver.pilot.resize_terminal(80, 24)
        await driver.settled()
        assert coloured == [29]
        assert _visible(view).count("y = 2") == 1200


async def test_control_characters_of_a_reply_are_shown_not_sent(home: Path) -> None:
    async with running() as driver:
        streamed = await _stream(driver, "a\x1b]52;c;aGk=\x07b\n\n```\n\x9b2J\n```\n[b]x[/b]", 2)
        text = driver.screen_text()
        assert "a␛]52;c;aGk=␇b" in text
        assert "\ufffd2J" in text
        assert "[b]x[/b]" in text
        assert streamed.turn.text.startswith("a\x1b")


@pytest.mark.parametrize("folded", [False, True])
async def test_what_markdown_decodes_is_clean_as_well(home: Path, folded: bool) -> None:
    text = (
        "http://e.org/%1b%5d52;c;aGk=%07 <http://e.org/%c2%9b2J> www.e.org/%e2%80%ae\n\n"
        "&#27;[2J &#x9b;2J &#x202e;txet &#7;\n\n![&#x202e;alt](x.png) [&#x202e;a](http://b/%1b)\n\n"
        "# http://e.org/%1b[2J\n\n- http://e.org/%1b[2J\n\n> http://e.org/%1b[2J\n\n"
        "| http://e.org/%1b[2J | <http://e.org/%1b> |\n|---|---|\n| http://e.org/%1b[2J | &#x202e; |\n"
    )
    async with running(size=(100, 40)) as driver:
        view = TurnView(Conversation().add("assistant", text), folded=folded)
        await driver.chat.query_one("#main", Vertical).mount(view)
        await driver.settled()
        shown = _visible(view)
        assert "e.org" in shown
        assert "txet" in shown
        assert sanitize(shown) == shown


async def test_a_folded_reply_keeps_its_line_breaks(home: Path) -> None:
    async with running(size=(100, 30)) as driver:
        view = TurnView(Conversation().add("assistant", "roses are red\nviolets are blue"), folded=True)
        await driver.chat.query_one("#main", Vertical).mount(view)
        await driver.settled()
        lines = [line.strip() for line in _visible(view).splitlines()]
        assert "roses are red" in lines
        assert "violets are blue" in lines


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


def _visible(view: Widget) -> str:
    """Return the lines of all widgets of `view` that hold text, in order."""
    leaves = [widget for widget in view.query("*") if not widget.children]
    strips = [strip for leaf in leaves for strip in leaf.render_lines(Region(0, 0, *leaf.outer_size))]
    return "\n".join(strip.text for strip in strips)


def _drawn(view: TurnView) -> list[tuple[str, tuple[int, int], str]]:
    """Class, size and text of every block, in order."""
    blocks = []
    for block in view.query_one(Markdown).query("*"):
        content = block.render()
        text = content.markup if isinstance(content, Content) else ""
        blocks.append((type(block).__name__, (block.size.width, block.size.height), text))
    return blocks
