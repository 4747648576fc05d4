"""The line below the message box: what gives way where room is short, and whose numbers it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from app.conversation import Conversation, TurnStatus
from app.live_reply import in_our_words
from app.plain_words import plain_words
from app.widgets.status import StatusBar
from engine import GenerationStats
from tests.app.driving import running
from tests.app.tiers.models import gpu_tiers, mixed_tiers
from tests.fakes import Script

LONG = "word " * 3000


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (200, ("50.0 tok/s · first 0.06 s · ", "  Esc stops", "context ")),
        (80, ("50.0 tok/s · ", "  Esc stops", "context ")),
        (60, ("50.0 tok/s", "  Esc stops", "context ")),
        (40, ("● 50.0 tok/s ", "/ 2,048")),
    ],
)
async def test_a_narrow_line_leaves_out_whole_parts(home: Path, width: int, shown: tuple[str, ...]) -> None:
    async with running(Script(replies=(LONG,), token_s=0.005, piece=5), size=(width, 24)) as driver:
        await driver.ready()
        await driver.say("go")
        await driver.until(lambda: "tok/s" in _line(driver.screen_text()), "the speed")
        line = _line(driver.screen_text())
        assert all(part in line for part in shown), line
        assert "…" not in line


async def test_the_context_is_that_of_the_open_conversation(home: Path) -> None:
    async with running(Script(replies=("four" * 5,))) as driver:
        await driver.ready()
        await driver.say("first")
        await driver.answered()
        assert " 15 / 2,048" in driver.screen_text()
        await driver.pilot.press("ctrl+n")
        await driver.until(lambda: " 0 / 2,048" in driver.screen_text(), "nothing yet")
        await driver.say("second")
        await driver.answered()
        assert " 25 / 2,048" in driver.screen_text()
        await driver.pilot.press("f2", "down", "enter")
        await driver.until(lambda: " 15 / 2,048" in driver.screen_text(), "the first again")


async def test_a_message_that_waits_leaves_the_way_to_a_model_on_the_screen(home: Path) -> None:
    async with running(Script(load_error="broken")) as driver:
        await driver.say("hello")
        await driver.until(lambda: "F3 chooses another" in driver.screen_text(), "the way out")
        assert driver.chat.query_one(StatusBar)._live is not None


async def test_a_gpu_that_is_ready_is_named_where_there_is_room(home: Path) -> None:
    script = Script(tiers=gpu_tiers(), backend="cuda sm_86", threads=0)
    for width, shown in ((200, True), (80, True), (40, False)):
        async with running(script, size=(width, 24)) as driver:
            await driver.ready()
            (line,) = (each for each in driver.screen_text().splitlines() if "● ready" in each)
            assert ("cuda sm_86 · NVIDIA RTX 0000" in line) == shown


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (200, "━━━━────── answers while it loads: 43%"),
        (80, "ready  answers while it loads: 43%"),
        (60, "ready  loading 43%"),
        (40, "ready 43%"),
    ],
)
async def test_a_model_that_answers_while_it_loads_says_how_far_it_is(
    home: Path, width: int, words: str
) -> None:
    script = Script(
        replies=(LONG,), token_s=0.005, tiers=mixed_tiers(settled=False), load_progress=0.43, threads=0
    )
    async with running(script, size=(width, 24)) as driver:
        await driver.ready()
        await driver.until(lambda: "● ready" in driver.screen_text(), "ready")
        (line,) = (each for each in driver.screen_text().splitlines() if "● ready" in each)
        assert words in line
        await driver.say("go")
        await driver.until(lambda: "tok/s" in _line(driver.screen_text()), "the speed")
        assert ("answers while it loads: 43%" in _line(driver.screen_text())) == (width == 200)


async def test_blocks_that_go_elsewhere_are_told_of_until_they_are_there(home: Path) -> None:
    script = Script(tiers=mixed_tiers(settled=False))
    async with running(script, size=(100, 24)) as driver:
        await driver.ready()
        await driver.until(lambda: "ready  blocks move" in driver.screen_text(), "the moves")
        driver.engine._set(tiers=mixed_tiers())
        await driver.until(lambda: "blocks move" not in driver.screen_text(), "the end of it")


@pytest.mark.parametrize("shown", [in_our_words, plain_words])
def test_no_option_of_the_command_line_is_named_to_who_has_none(shown: Callable[[str], str]) -> None:
    told = shown(
        "it would fit with a context of 64 or less (-c), or a cache of 8 bits (--kv-type q8_0), or a budget "
        "of 900M or more (--vram-budget); or let the CPU compute (--device cpu)"
    )
    assert "--" not in told
    assert "(-c)" not in told


def test_what_a_failed_or_taken_back_message_took_of_the_context_is_not_counted() -> None:
    conversation = Conversation()
    assert conversation.context_used == 0
    conversation.add("user", "a")
    conversation.add("assistant", "b").stats = GenerationStats(prompt_tokens=7, completion_tokens=3)
    conversation.add("user", "c")
    conversation.add("assistant", status=TurnStatus.CANCELLED).stats = GenerationStats(prompt_tokens=90)
    assert conversation.context_used == 10
    conversation.add("user", "d")
    conversation.add("assistant", status=TurnStatus.STREAMING)
    assert conversation.context_used == 10
    conversation.turns[-1].stats = GenerationStats(prompt_tokens=14)
    assert conversation.context_used == 14


def _line(screen: str) -> str:
    return screen.splitlines()[-3 if len(screen.splitlines()) > 29 else -2]
