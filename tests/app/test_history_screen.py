"""The history: words and filters find messages, the keys act on the highlighted one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.style import Style
from textual.widgets import Input, OptionList, Static

from app.conversation import Conversation, now_ms
from app.screens.history import HistoryScreen
from app.store import SearchHit, Store
from app.themes import TOKENS

DAY_MS = 86_400_000
EVIL = "evil\x1b]0;x\x07 [bold]title"


class _Host(App[None]):
    def __init__(self, screen: HistoryScreen) -> None:
        super().__init__()
        self.shown = screen
        self.results: list[tuple[int, int] | None] = []

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return TOKENS

    def on_mount(self) -> None:
        self.push_screen(self.shown, self.results.append)


class _Driver:
    def __init__(self, pilot: Pilot[None], host: _Host) -> None:
        self.pilot, self.host, self.screen = pilot, host, host.shown

    @property
    def list(self) -> OptionList:
        return self.screen.query_one("#history-results", OptionList)

    @property
    def rows(self) -> list[str]:
        return [str(option.prompt) for option in self.list.options]

    def text(self, name: str) -> str:
        return str(self.screen.query_one(f"#history-{name}", Static).render())

    async def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end, f"never happened; {self.rows} {self.text('message')}"
            await asyncio.sleep(0.01)

    async def words(self, text: str) -> None:
        self.screen.query_one(Input).value = text

    def screen_text(self) -> str:
        strips = self.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip) for strip in strips)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "c.db")
    store.start()
    yield store
    store.close()


@pytest.fixture
def talks(store: Store) -> list[Conversation]:
    """Three conversations, oldest first: a year and more ago, a month ago, now."""
    made = []
    for title, days, model in (
        (EVIL, 400, "Old-1B"),
        ("About weights", 20, "SmolLM2"),
        ("最新的权重", 0, "SmolLM2"),
    ):
        conversation = Conversation(title)
        message = conversation.add("user", f"Where are the weights? {title}")
        reply = conversation.add("assistant", "In memory, 权重 and all. " + "More words. " * 300)
        message.created_at = reply.created_at = now_ms() - days * DAY_MS
        reply.model = model
        store.add(conversation, message, reply)
        made.append(conversation)
    assert store.flush(5)
    return made


@asynccontextmanager
async def _running(store: Store, query: str = "", size: tuple[int, int] = (80, 24)) -> AsyncIterator[_Driver]:
    host = _Host(HistoryScreen(store, query))
    async with host.run_test(size=size) as pilot:
        driver = _Driver(pilot, host)
        await driver.until(lambda: host.screen is host.shown and driver.text("filters"))
        yield driver


async def test_without_words_the_newest_conversations_are_listed(
    store: Store, talks: list[Conversation]
) -> None:
    async with _running(store) as driver:
        await driver.until(lambda: len(driver.rows) == 3)
        assert "最新的权重" in driver.rows[0] and "About weights" in driver.rows[1]
        assert "3 conversations" in driver.text("filters")


def _marked(prompt: Any) -> list[str]:
    """What stands out in a line of the list."""
    return [
        prompt.plain[span.start : span.end]
        for span in prompt.spans
        if (style := Style.parse(str(span.style)) if isinstance(span.style, str) else span.style).bold
        and style.underline
    ]


async def test_words_are_found_as_they_are_typed_and_stand_out_without_colour(
    store: Store, talks: list[Conversation]
) -> None:
    async with _running(store) as driver:
        await driver.pilot.press(*"weigh")
        await driver.until(lambda: "3 messages in 3 conversations" in driver.text("filters"))
        # The first letters have found as many.
        await driver.until(lambda: [_marked(row.prompt) for row in driver.list.options[:1]] == [["weigh"]])
        await driver.words("权重")
        await driver.until(lambda: "4 messages" in driver.text("filters"))
        await driver.words("zebra")
        await driver.until(lambda: "nothing found" in driver.text("filters"))
        await driver.pilot.press("enter")
        assert driver.host.results == []


async def test_enter_chooses_the_message_and_escape_none(store: Store, talks: list[Conversation]) -> None:
    async with _running(store, "memory") as driver:
        await driver.until(lambda: len(driver.rows) == 3)
        await driver.pilot.press("down", "enter")
        await driver.until(lambda: driver.host.results)
        assert driver.host.results == [(talks[1].id, talks[1].turns[1].id)]
    async with _running(store, "memory") as driver:
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.host.results)
        assert driver.host.results == [None]


async def test_filters_narrow_down_and_come_round_again(store: Store, talks: list[Conversation]) -> None:
    async with _running(store, "we") as driver:  # weights, and no reply has it
        await driver.until(lambda: len(driver.rows) == 3)
        await driver.pilot.press("ctrl+r", "ctrl+r")
        await driver.until(lambda: not driver.rows and "models" in driver.text("filters"))
        await driver.words("memory")
        await driver.until(lambda: len(driver.rows) == 3)
        await driver.pilot.press("ctrl+t")
        await driver.until(lambda: len(driver.rows) == 1 and "last week" in driver.text("filters"))
        await driver.pilot.press("ctrl+t")
        await driver.until(lambda: len(driver.rows) == 2 and "last month" in driver.text("filters"))
        await driver.pilot.press("ctrl+t", "ctrl+t")
        await driver.until(lambda: len(driver.rows) == 3 and "any time" in driver.text("filters"))
        await driver.pilot.press("ctrl+o")
        await driver.until(lambda: len(driver.rows) == 2 and "SmolLM2" in driver.text("filters"))
        await driver.pilot.press("ctrl+o", "ctrl+r")
        await driver.until(lambda: len(driver.rows) == 3 and "any model" in driver.text("filters"))


async def test_a_message_of_the_person_has_no_model_to_filter_by(
    store: Store, talks: list[Conversation]
) -> None:
    async with _running(store, "where") as driver:
        await driver.until(lambda: len(driver.rows) == 3)
        await driver.pilot.press("ctrl+o")
        await driver.until(lambda: "choose a reply first" in driver.text("message"))


async def test_what_is_deleted_goes_at_once_and_comes_back(store: Store, talks: list[Conversation]) -> None:
    async with _running(store) as driver:
        await driver.until(lambda: len(driver.rows) == 3)
        await driver.pilot.press("down", "ctrl+d")
        await driver.until(lambda: len(driver.rows) == 2)
        await driver.until(lambda: "deleted: About weights; ^Z brings it back" in driver.text("message"))
        assert driver.list.highlighted == 1 and driver.screen.deleted == {talks[1].id}
        assert store.flush(5) and len(store.conversations()) == 2
        await driver.pilot.press("ctrl+z")
        await driver.until(lambda: len(driver.rows) == 3)
        await driver.until(lambda: "back again" in driver.text("message"))
        assert not driver.screen.deleted
        assert len(store.conversations()) == 3


async def test_export_writes_a_new_file_where_the_program_was_started(
    store: Store, talks: list[Conversation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with _running(store) as driver:
        await driver.until(lambda: len(driver.rows) == 3)
        await driver.pilot.press("ctrl+e")
        await driver.until(lambda: "exported to" in driver.text("message"))
        assert (tmp_path / "最新的权重.md").read_text("utf-8").startswith("# 最新的权重")

        def full(*_: object) -> Path:
            raise OSError("no space")

        monkeypatch.setattr("app.store.export.export_beside_others", full)
        await driver.pilot.press("ctrl+e")
        await driver.until(lambda: "not exported: no space" in driver.text("message"))


async def test_results_of_earlier_words_never_replace_those_of_later_ones(
    store: Store, talks: list[Conversation], monkeypatch: pytest.MonkeyPatch
) -> None:
    go, began = threading.Event(), threading.Event()
    search = Store.search

    def slow(self: Store, query: str, **how: Any) -> list[SearchHit]:
        if query == "weights":
            began.set()
            assert go.wait(10)
        return search(self, query, **how)

    monkeypatch.setattr(Store, "search", slow)
    async with _running(store) as driver:
        await driver.words("weights")
        await driver.until(began.is_set)
        await driver.words("nosuchword")
        await driver.until(lambda: "nothing found" in driver.text("filters"))
        go.set()
        await asyncio.sleep(0.1)
        await driver.pilot._wait_for_screen()
        assert not driver.rows and "nothing found" in driver.text("filters")


@pytest.mark.parametrize("size", [(40, 15), (80, 24), (120, 40), (200, 60)])
async def test_at_every_size_there_are_results_keys_and_no_control_characters(
    store: Store, talks: list[Conversation], size: tuple[int, int]
) -> None:
    async with _running(store, "weights", size) as driver:
        await driver.until(lambda: len(driver.rows) == 3)
        await driver.pilot.press("end", "down", "down")
        await driver.until(lambda: driver.list.highlighted == 2)
        await driver.pilot._wait_for_screen()
        shown = driver.screen_text()
        assert "evil␛]0;x␇ [bold]" in shown
        assert "Enter open" in shown and "Esc back" in " ".join(shown.replace("│", "").split())
        assert all(line.isprintable() for line in shown.splitlines())


async def test_where_there_is_room_the_highlighted_message_is_read(
    store: Store, talks: list[Conversation]
) -> None:
    async with _running(store, "memory", (120, 40)) as driver:
        await driver.until(lambda: "In memory, 权重 and all" in driver.text("preview"))
        assert driver.screen.query_one("#history-side").display
        await driver.pilot.press("down")
        await driver.until(lambda: "About weights" in driver.text("preview"))
    async with _running(store, "memory", (80, 24)) as driver:
        assert not driver.screen.query_one("#history-side").display


async def test_a_store_that_cannot_be_read_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import sqlite3

    def fail(*_: object, **__: object) -> list[SearchHit]:
        raise sqlite3.DatabaseError("malformed [x]")

    monkeypatch.setattr(Store, "recent", fail)
    host = _Host(HistoryScreen(store))
    async with host.run_test(size=(80, 24)) as pilot:
        driver = _Driver(pilot, host)
        await driver.until(lambda: host.screen is host.shown)
        await driver.until(lambda: "the search failed: malformed [x]" in driver.text("message"))
