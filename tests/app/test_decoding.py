"""Switches for skipping and drafting: live, acknowledged, measured first, kept for the model, in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from textual.widget import Widget

from app.conversation import Turn
from app.model_settings import ModelSettings
from app.models.options import Chosen
from app.request import ORDINARY
from app.settings import SettingsFile
from app.widgets.sidebar import Sidebar
from app.widgets.status import NoticeBar
from app.widgets.switches import SwitchLine
from engine import DecodingOptions, DraftKind, SkipChoice, SkipRule, parse_skip
from tests.app.calibrations import calibration
from tests.app.driving import Driver, running
from tests.app.tiers.models import blocks, tiers
from tests.fakes import Script

SIZES = [(80, 24), (120, 40)]
SKIP = SkipChoice(SkipRule.KL, 0.05)
LONG = "word " * 400
SCRIPT = Script(calibration=calibration(), plain_step_s=0.036, tiers=tiers(blocks(30)))
APPROXIMATE = "+3.2 % perplexity [+2.6, +3.8]"
MODEL = "/models/fake.gguf"


def script(*replies: str, **changes: object) -> Script:
    return Script(**{**vars(SCRIPT), "replies": replies or ("An answer.",), **changes})


def kept(home: Path) -> ModelSettings | None:
    return SettingsFile(home / "tiercel" / "config" / "settings.toml").values.models.get(MODEL)


def words_of(driver: Driver) -> str:
    """What is on the screen, in one line: what is wrapped there is whole here."""
    return " ".join(driver.screen_text().split())


def said(driver: Driver, widget: Widget) -> str:
    """What stands where a widget is, in one line."""
    x, y, width, height = widget.region
    lines = driver.screen_text().splitlines()[y : y + height]
    return " ".join(" ".join(line[x : x + width] for line in lines).split())


def reply_of(driver: Driver) -> str:
    """What the newest turn says."""
    return said(driver, driver.turns[-1])


async def command(driver: Driver, text: str) -> None:
    driver.prompt.text = text
    await driver.pilot.press("enter")
    await driver.settled()


@pytest.mark.parametrize("size", SIZES)
async def test_a_switch_turned_while_a_reply_grows_waits_until_the_engine_has_it(
    home: Path, size: tuple[int, int]
) -> None:
    async with running(script(LONG, token_s=0.4), size=size) as driver:
        await driver.ready()
        await driver.say("go")
        await driver.until(lambda: driver.turns[1].turn.text, "text")
        await driver.pilot.press("f6")
        await driver.until(lambda: "drafts…" in driver.screen_text(), "it waits")
        await driver.until(lambda: "drafts…" not in driver.screen_text(), "the engine has it")
        live = driver.chat.bridge.live(driver.chat.workspace.current)
        assert live is not None
        assert live.reply is not None
        assert live.reply.decoding == DecodingOptions(draft=DraftKind.NGRAM)
        assert "changed on the way" in reply_of(driver)


async def test_what_the_model_cannot_do_is_told_and_taken_back(home: Path) -> None:
    async with running(script(LONG, token_s=0.2), size=(120, 40)) as driver:
        await driver.ready()
        await driver.say("go")
        await driver.until(lambda: driver.turns[1].turn.text, "text")
        await driver.pilot.press("f6")
        live = driver.chat.bridge.live(driver.chat.workspace.current)
        assert live is not None
        reply = live.reply
        assert reply is not None
        await driver.until(lambda: reply.decoding.draft is DraftKind.NGRAM, "the engine has it")
        reply.refuse_decoding(ORDINARY, "this model cannot draft (--draft)")
        await driver.until(lambda: "this model cannot draft" in driver.screen_text(), "why not")
        assert driver.chat.decoding == ORDINARY
        assert not reply.done


@pytest.mark.parametrize(("size", "shows"), list(zip(SIZES, (SwitchLine, Sidebar), strict=True)))
async def test_what_leaving_blocks_out_does_is_measured_then_told(
    home: Path, size: tuple[int, int], shows: type[Widget]
) -> None:
    # Its end is far: what is told must be seen.
    async with running(script(LONG, token_s=0.01, calibrate_steps=60), size=size) as driver:
        await driver.ready()
        await driver.pilot.press("f5")
        await driver.until(lambda: "kl=0.05" in driver.screen_text(), "the rule")
        await driver.say("go")
        await driver.until(lambda: "measuring what leaving blocks out does:" in reply_of(driver), "progress")
        await driver.until(lambda: " s left" in reply_of(driver), "when it ends")
        await driver.until(lambda: driver.turns[1].turn.text, "text")
        await driver.until(lambda: "approximate" in words_of(driver), "what it does")
        await driver.until(lambda: "····" in driver.screen_text() or "skip 4" in words_of(driver), "the map")
        await driver.pilot.press("escape")
        await driver.answered()
        assert f"approximate, {APPROXIMATE}" in reply_of(driver)
        assert f"approximate, {APPROXIMATE}" in said(driver, driver.chat.query_one(shows))
        assert driver.turns[1].turn.stats.skipped_blocks == 4


async def test_drafts_say_how_many_are_taken_and_what_they_bring(home: Path) -> None:
    async with running(script(LONG, token_s=0.01), size=(120, 40)) as driver:
        await driver.ready()
        await driver.pilot.press("f6")
        await driver.say("go")
        told, words = driver.chat.query_one(Sidebar), "n-gram k=4 exact · 75% taken · 1.80x plain"
        await driver.until(lambda: words in said(driver, told), "who drafts, and what came of it")
        await driver.pilot.press("escape")
        await driver.answered()
        assert "75% taken · 1.80x plain · exact" in reply_of(driver)


async def test_switches_are_kept_for_the_model_and_off_again(home: Path) -> None:
    async with running(script()) as driver:
        await driver.ready()
        await driver.pilot.press("f5", "f6")
        await driver.settled()
        assert driver.chat.decoding == DecodingOptions(SKIP, DraftKind.NGRAM)
    assert (own := kept(home)) is not None
    assert (own.skip, own.draft) == (SKIP, DraftKind.NGRAM)
    async with running(script()) as driver:
        await driver.ready()
        await driver.say("hi")
        await driver.answered()
        assert driver.engine.requests[0].decoding == DecodingOptions(SKIP, DraftKind.NGRAM)
        await driver.pilot.press("f5", "f6")
        await driver.settled()
        await driver.say("again")
        await driver.answered()
        assert driver.engine.requests[1].decoding == ORDINARY


async def test_the_command_line_goes_first_until_something_is_chosen(home: Path) -> None:
    async with running(script()) as driver:
        await driver.ready()
        driver.chat.chosen = Chosen(decoding={"draft": DraftKind.SELF, "draft_k": 3})
        await driver.say("hi")
        await driver.answered()
        assert driver.engine.requests[0].decoding == DecodingOptions(draft=DraftKind.SELF, draft_k=3)
        await driver.pilot.press("f6")
        await driver.settled()
        assert driver.chat.decoding == DecodingOptions(draft_k=3)
        await driver.pilot.press("f6")
        assert driver.chat.decoding == DecodingOptions(draft=DraftKind.SELF, draft_k=3), "what it was before"


async def test_without_a_model_there_is_nothing_to_switch(home: Path) -> None:
    async with running(script(), model=None) as driver:
        await driver.until(lambda: len(driver.app.screen_stack) > 1, "the picker")
        await driver.pilot.press("escape")
        await driver.settled()
        await driver.pilot.press("f5")
        await driver.until(lambda: "no model is loaded" in driver.screen_text(), "why not")


async def test_a_rule_that_leaves_nothing_out_says_so(home: Path) -> None:
    async with running(script(calibrated=True), size=(120, 40)) as driver:
        await driver.ready()
        await command(driver, "/skip kl=0.001")
        told = driver.chat.query_one(Sidebar)
        await driver.until(lambda: "kl=0.001 leaves nothing out: exact" in said(driver, told), "that it does")


# -- /skip


@pytest.mark.parametrize("size", [(40, 15), *SIZES])
async def test_the_table_shows_what_was_measured_and_enter_takes_a_row(
    home: Path, size: tuple[int, int]
) -> None:
    async with running(script(calibrated=True), size=size) as driver:
        await driver.ready()
        await command(driver, "/skip")
        await driver.until(lambda: "Layer skip" in driver.screen_text(), "the dialog")
        if size[0] >= 80:
            about = driver.app.screen.query_one("#skip-about")
            measured = "Measured on 512 tokens: a text of ours."
            await driver.until(lambda: measured in said(driver, about), "what it was measured on")
            assert "kl=0.016 3/60" in words_of(driver)
            assert "+1.6 [+1.3, +1.9]" in driver.screen_text()
        assert "▸ off" in driver.screen_text()
        await driver.pilot.press("down", "down")
        await driver.until(lambda: "▸ kl=0.008" in driver.screen_text(), "the row")
        assert "approximate, +0.8 % perplexity" in words_of(driver)
        await driver.pilot.press("enter")
        await driver.until(lambda: len(driver.app.screen_stack) == 1, "closed")
        assert driver.chat.decoding.skip == parse_skip("kl=0.008")


async def test_a_rule_is_typed_and_found_in_the_table(home: Path) -> None:
    async with running(script(calibrated=True), size=(100, 40)) as driver:
        await driver.ready()
        await command(driver, "/skip")
        await driver.pilot.press(*["backspace"] * 3, *"kl=0.02")
        await driver.until(lambda: "▸ kl=0.016" in driver.screen_text(), "the set that it means")
        await driver.pilot.press("2", "x")
        await driver.until(lambda: "is no threshold for kl" in words_of(driver), "why not")
        await driver.pilot.press("enter")
        await driver.settled()
        assert "Layer skip" in driver.screen_text(), "what cannot be used is not taken"
        await driver.pilot.press(*["backspace"] * 10, *"kl=0")
        await driver.until(lambda: "nothing is left out" in words_of(driver), "no such set")
        await driver.pilot.press("escape")
        await driver.until(lambda: len(driver.app.screen_stack) == 1, "closed")
        assert driver.chat.decoding.skip is None


async def test_before_it_was_measured_the_table_says_so_and_it_fills_while_open(home: Path) -> None:
    async with running(script(), size=(100, 40)) as driver:
        await driver.ready()
        await command(driver, "/skip")
        await driver.until(lambda: "Not measured yet" in words_of(driver), "that it is not known")
        await driver.pilot.press(*["backspace"] * 3, *"kl=0.05")
        await driver.until(lambda: "is measured with the next reply" in words_of(driver), "when it is")
        driver.engine._set(calibration=calibration())
        await driver.until(lambda: "▸ kl=0.032" in driver.screen_text(), "the rows")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/skip blk.10-12", "blocks are left out (blk.10,blk.11,blk.12)"),
        ("/skip off", "all blocks are used"),
        ("/skip much", "'much' says nothing that can be skipped"),
        ("/draft self 4", "drafts: self; each is verified"),
        ("/draft off", "no drafts"),
        ("/draft ngram 99", "does not say who drafts"),
        ("/draft nobody", "off, ngram, model, self, resident, exit"),
        ("/draft model", "no draft model is chosen: F3, then ^O"),
        ("/compare everything", "there is no switch everything"),
        ("/compare skip", "there is no turn to do that with"),
        ("/compare", "there is no turn to do that with"),
    ],
)
async def test_commands_say_what_they_did_or_what_they_take(home: Path, text: str, shown: str) -> None:
    async with running(script(), size=(100, 40)) as driver:
        await driver.ready()
        await command(driver, text)
        await driver.until(lambda: shown in said(driver, driver.chat.query_one(NoticeBar)), shown)


# -- /draft


@pytest.mark.parametrize("size", SIZES)
async def test_who_drafts_and_how_much_is_chosen_from_a_list(home: Path, size: tuple[int, int]) -> None:
    async with running(script(), size=size) as driver:
        await driver.ready()
        await command(driver, "/draft")
        await driver.until(lambda: "● off" in driver.screen_text(), "the dialog")
        assert "◂ automatic" in driver.screen_text()
        await driver.pilot.press("right", "right", "right", "left", *["down"] * 3)
        await driver.until(lambda: "◂ 2 ▸" in driver.screen_text(), "how many")
        await driver.pilot.press("enter")
        await driver.until(lambda: len(driver.app.screen_stack) == 1, "closed")
        assert driver.chat.decoding == DecodingOptions(draft=DraftKind.SELF, draft_k=2)
        await command(driver, "/draft")
        await driver.pilot.press("escape")
        await driver.until(lambda: len(driver.app.screen_stack) == 1, "closed")
        assert driver.chat.decoding.draft is DraftKind.SELF


async def test_a_draft_model_is_loaded_when_it_is_first_to_draft(home: Path) -> None:
    async with running(script(draft_model="Draft-1M")) as driver:
        await driver.ready()
        driver.engine._set(draft_model=None)
        driver.chat.change_settings(models={MODEL: ModelSettings(draft_model=Path("/models/small.gguf"))})
        loads = len(driver.engine.loaded)
        await driver.until(lambda: driver.chat.bridge.snapshot.draft_model is None, "none yet")
        await command(driver, "/draft model 3")
        await driver.until(lambda: len(driver.engine.loaded) == loads + 1, "the model is loaded with it")
        await driver.ready()
        await driver.say("hi")
        await driver.answered()
        assert driver.engine.requests[0].decoding == DecodingOptions(draft=DraftKind.MODEL, draft_k=3)
        assert driver.turns[1].turn.made_by["draft_model"] == "Draft-1M"
        await driver.pilot.press("f6", "f6")
        await driver.settled()
        assert len(driver.engine.loaded) == loads + 1, "it is there already"


# -- comparing


async def compared(driver: Driver, text: str = "/compare skip") -> None:
    await command(driver, text)
    await driver.until(lambda: "a b keep one, the other" in driver.screen_text(), "both are there")


def texts(turns: Sequence[Turn]) -> list[str]:
    return [turn.text for turn in turns]


@pytest.mark.parametrize("size", SIZES)
async def test_a_reply_is_compared_with_one_that_differs_by_a_switch(
    home: Path, size: tuple[int, int]
) -> None:
    replies = script("the sea is blue", "the sea is green", calibrated=True)
    async with running(replies, size=size) as driver:
        await driver.ready()
        await driver.say("tell me")
        await driver.answered()
        await compared(driver)
        text = words_of(driver)
        assert "all blocks" in text
        assert "skip kl=0.05" in text
        assert f"approximate, {APPROXIMATE}" in text
        assert "exact" in text
        assert "the same text for 11 characters, then not" in text
        side_by_side = any("blue" in line and "green" in line for line in driver.screen_text().splitlines())
        assert side_by_side == (size[0] >= 100)
        first, second = driver.engine.requests
        assert second.sampling.seed == 7, "the seed of the first"
        assert second.messages == first.messages
        assert second.decoding == DecodingOptions(skip=SKIP)
        await driver.pilot.press("b")
        await driver.until(lambda: len(driver.app.screen_stack) == 1, "closed")
        await driver.until(lambda: "B is the reply now" in driver.screen_text(), "what was kept")
        turns = driver.chat.workspace.current.turns
        assert texts(turns) == ["tell me", "the sea is green"]
        assert texts(driver.chat.workspace.current.siblings(turns[1])) == [
            "the sea is blue",
            "the sea is green",
        ]
        assert driver.chat.decoding.skip is None, "the switch itself stays as it was"
    async with running(replies) as driver:
        await driver.ready()
        await driver.pilot.press("f2", "enter")
        await driver.until(lambda: len(driver.turns) == 2, "the conversation is open")
        assert driver.turns[1].turn.text == "the sea is green"
        assert driver.turns[1].turn.decoding == DecodingOptions(skip=SKIP)


async def test_leaving_keeps_the_first_one(home: Path) -> None:
    async with running(script("one", "two"), size=(120, 40)) as driver:
        await driver.ready()
        await driver.say("tell me")
        await driver.answered()
        await driver.pilot.press("alt+up", "a")
        await driver.until(lambda: "no drafts → drafts: n-gram" in words_of(driver), "the choice")
        await driver.pilot.press("down", "enter")
        await driver.until(lambda: "a b keep one, the other" in driver.screen_text(), "both are there")
        assert driver.engine.requests[1].decoding == DecodingOptions(draft=DraftKind.NGRAM)
        await driver.pilot.press("escape")
        await driver.until(lambda: len(driver.app.screen_stack) == 1, "closed")
        await driver.until(
            lambda: texts(driver.chat.workspace.current.turns) == ["tell me", "one"], "the first"
        )


async def test_a_message_without_a_whole_reply_is_answered_twice_with_one_seed(home: Path) -> None:
    async with running(script(LONG, "a", "b", token_s=0.01), size=(120, 40)) as driver:
        await driver.ready()
        await driver.say("tell me")
        await driver.until(lambda: driver.turns[1].turn.text, "text")
        await driver.pilot.press("escape")
        await driver.answered()
        await compared(driver, "/compare greedy")
        _first, one, other = driver.engine.requests
        assert one.sampling.seed == other.sampling.seed is not None
        assert (one.sampling.temperature, other.sampling.temperature) == (0.7, 0.0)
        assert "different from the first character on" in words_of(driver)
        await driver.pilot.press("a")
        await driver.until(lambda: len(driver.app.screen_stack) == 1, "closed")
        conversation = driver.chat.workspace.current
        await driver.until(lambda: texts(conversation.turns) == ["tell me", "a"], "the first")
        assert len(conversation.siblings(conversation.turns[1])) == 3


async def test_escape_stops_what_grows_and_asks_for_no_other(home: Path) -> None:
    async with running(script(LONG, token_s=0.01), size=(120, 40)) as driver:
        await driver.ready()
        driver.chat.workspace.current.add("user", "tell me")
        await driver.chat.show_conversation()
        await command(driver, "/compare draft")
        await driver.until(lambda: "comes after the other one" in driver.screen_text(), "the second waits")
        await driver.until(lambda: "word word" in driver.screen_text(), "text")
        await driver.pilot.press("escape")
        await driver.until(
            lambda: "■ stopped" in words_of(driver) or "stopped" in words_of(driver), "stopped"
        )
        await driver.until(lambda: "a b keep one, the other" in driver.screen_text(), "it is over")
        assert len(driver.engine.requests) == 1
        await driver.pilot.press("b")
        await driver.settled()
        assert len(driver.app.screen_stack) == 2, "there is no second one"
        await driver.pilot.press("down", "pagedown", "up", "escape")
        await driver.until(lambda: len(driver.app.screen_stack) == 1, "closed")


async def test_one_is_kept_while_the_other_grows(home: Path) -> None:
    async with running(script("short", LONG, token_s=0.01), size=(80, 24)) as driver:
        await driver.ready()
        await driver.say("tell me")
        await driver.answered()
        await command(driver, "/compare draft")
        await driver.until(lambda: "word word" in driver.screen_text(), "the second grows")
        await driver.pilot.press("a")
        await driver.until(lambda: len(driver.app.screen_stack) == 1, "closed")
        await driver.until(lambda: not driver.chat.bridge.busy, "nothing grows")
        assert texts(driver.chat.workspace.current.turns) == ["tell me", "short"]
        await driver.say("and now")
        await driver.answered()


async def test_a_reply_that_fails_says_why_in_its_column(home: Path) -> None:
    async with running(script("fine", "!blk.99 is no block of this model"), size=(120, 40)) as driver:
        await driver.ready()
        await driver.say("tell me")
        await driver.answered()
        await compared(driver)
        assert "blk.99 is no block of this model" in words_of(driver)


async def test_while_a_reply_grows_nothing_is_compared(home: Path) -> None:
    async with running(script(LONG, token_s=0.01), size=(100, 30)) as driver:
        await driver.ready()
        await driver.say("go")
        await driver.until(lambda: driver.turns[1].turn.text, "text")
        await command(driver, "/compare skip")
        assert "a reply is still coming: Esc stops it" in words_of(driver)


# -- details


async def test_the_details_tell_how_a_reply_was_computed(home: Path) -> None:
    async with running(script(calibrated=True), size=(100, 50)) as driver:
        await driver.ready()
        await driver.pilot.press("f5", "f6")
        await driver.say("tell me")
        await driver.answered()
        driver.chat.action_turn_details()
        await driver.until(lambda: "written" in driver.screen_text(), "the details")
        text = words_of(driver)
        for words in (
            "computed with skip kl=0.05, drafts: n-gram",
            "left out 4 blocks",
            "blk.15.ffn blk.16.ffn blk.17.ffn blk.18.ffn",
            f"text approximate, {APPROXIMATE}",
            "tokens taken, 75%",
            "against plain steps 1.80x, a plain one took 0.036 s",
        ):
            assert words in text, words
