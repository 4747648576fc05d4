"""One turn on the screen: head, raw text, attachments; and streaming for any split of the text."""

from __future__ import annotations

import asyncio
import contextvars

from hypothesis import given, settings
from hypothesis import strategies as st
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Markdown

from app.background import in_thread
from app.conversation import Attachment, Conversation, Turn, TurnStatus
from app.widgets.turn import SHOWN_LINES, TurnView
from engine import SamplingParams
from tests.app.hosting import Host, hosting, screen_text
from tests.app.test_markdown import cut, documents


def reply(text: str, **changes: object) -> Turn:
    turn = Conversation().add("assistant", text)
    for name, value in changes.items():
        setattr(turn, name, value)
    return turn


def kinds(view: TurnView) -> list[str]:
    return [" ".join(sorted(child.classes)) for child in view.children]


async def test_the_head_says_what_was_not_as_usual() -> None:
    greedy = SamplingParams(temperature=0.0)
    turn = reply("hi", model="[b]model", sampling=greedy, made_by={"changes": [[3, {}]]})
    usual = reply("ho", sampling=SamplingParams())
    async with hosting(TurnView(turn, place="‹2/3›"), TurnView(usual)) as (host, _pilot):
        heads = [
            line.strip() for line in screen_text(host).splitlines() if "·" in line or "Assistant" in line
        ]
        assert heads == ["[b]model · greedy · changed on the way · ‹2/3›", "Assistant"]


async def test_raw_is_the_text_as_generated_and_goes_back() -> None:
    view = TurnView(reply("# Title\n\n**bold** [b]x[/b] \x1b[2J"))
    async with hosting(view) as (host, pilot):
        before = kinds(view)
        assert await view.toggle_raw()
        await pilot.pause()
        assert "# Title" in screen_text(host)
        assert "**bold** [b]x[/b] ␛[2J" in screen_text(host)
        await view.fold()
        assert "# Title" in screen_text(host), "raw stays raw"
        assert await view.toggle_raw()
        await pilot.pause()
        assert "bold [b]x[/b]" in screen_text(host)
        assert kinds(view)[0] == before[0] == "head"
        await view.unfold()
        assert view.query_one(Markdown).source.startswith("# Title")


async def test_what_grows_or_was_typed_has_no_raw_form() -> None:
    growing = reply("x", status=TurnStatus.STREAMING)
    typed = Conversation().add("user", "**x**")
    views = [TurnView(growing), TurnView(typed)]
    async with hosting(*views):
        assert [await view.toggle_raw() for view in views] == [False, False]


async def test_attachments_are_folded_below_the_message_and_open() -> None:
    turn = Conversation().add("user", "see @n.txt")
    long = "".join(f"row {number}\n" for number in range(SHOWN_LINES + 5))
    turn.attachments = (
        Attachment("file", "@n.txt", "one\n[b]two\x1b"),
        Attachment("paste", "[paste 205 lines]", long),
    )
    view = TurnView(turn)
    async with hosting(VerticalScroll(view)) as (host, pilot):
        assert "▸ @n.txt · 2 lines · 11 bytes" in screen_text(host)
        assert "▸ [paste 205 lines] · 205 lines · 1." in screen_text(host)
        assert "[b]two" not in screen_text(host)
        assert view.toggle_attachments()
        await pilot.pause()
        assert "[b]two␛" in screen_text(host)
        height = view.query_one(".chips").size.height
        assert height == 2 + 2 + SHOWN_LINES + 1
        await pilot.click(view.query_one(".chips"))
        await pilot.pause()
        assert "[b]two" not in screen_text(host)
    assert not TurnView(reply("x")).toggle_attachments()


async def test_the_cursor_is_a_mark_as_well_as_a_colour() -> None:
    view = TurnView(reply("x"))
    async with hosting(view) as (host, pilot):
        view.mark(True)
        await pilot.pause()
        assert "▸ Assistant" in screen_text(host)
        view.mark(False)
        await pilot.pause()
        assert "▸" not in screen_text(host)


async def test_streamed_equals_opened_for_any_document_and_any_split() -> None:
    async with hosting(size=(60, 30)) as (host, _pilot):
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()

        @settings(max_examples=25, deadline=None)
        @given(documents, st.lists(st.integers(0, 10_000), max_size=12))
        def check(text: str, places: list[int]) -> None:
            # In a thread, for Hypothesis cannot await; in our context, where Textual keeps the application.
            both = _both(host, cut(text, places))
            streamed, opened = context.run(asyncio.run_coroutine_threadsafe, both, loop).result(30)
            assert streamed == opened

        await in_thread(check)


async def _both(host: Host, pieces: list[str]) -> tuple[object, object]:
    """Return what is drawn of a text that came in `pieces`, and of the same text opened."""
    streamed = TurnView(Conversation().add("assistant", status=TurnStatus.STREAMING))
    await host.mount(streamed)
    for piece in pieces:
        streamed.turn.text += piece
        streamed.grow("")
        await asyncio.sleep(0)
    streamed.turn.status = TurnStatus.DONE
    streamed.end()
    opened = TurnView(reply("".join(pieces)))
    await host.mount(opened)
    while streamed._appending:
        await asyncio.sleep(0.001)
    result = _blocks(streamed), _blocks(opened)
    await streamed.remove()
    await opened.remove()
    return result


def _blocks(view: TurnView) -> list[tuple[str, str]]:
    """Class and text of every block, in order."""
    blocks = []
    for block in view.query_one(Markdown).query("*"):
        content = block.render()
        blocks.append((type(block).__name__, content.markup if isinstance(content, Content) else ""))
    return blocks
