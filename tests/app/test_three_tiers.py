"""A model larger than the card in the running application: two budgets, and blocks placed by hand."""

from __future__ import annotations

from pathlib import Path

from app.screens.tiers import TiersScreen
from app.widgets.tier_map import TierMap
from engine import Budget, Tier
from tests.app.driving import Driver, running
from tests.app.tiers.models import mixed_tiers, tiers
from tests.fakes import Script

MIXED = Script(tiers=mixed_tiers(active=None, in_flight=()), backend="cuda sm_86", threads=4)


async def _command(driver: Driver, text: str) -> None:
    driver.prompt.text = text
    await driver.pilot.press("enter")


async def test_a_budget_of_the_gpu_is_taken_and_remembered_for_the_model(home: Path) -> None:
    async with running(MIXED) as driver:
        await driver.ready()
        await _command(driver, "/vram 3G")
        path = str(Path("/models/fake.gguf"))
        await driver.until(lambda: path in driver.chat.settings.models, "it is remembered")
        assert driver.engine.vram_budgets == [Budget(3_000_000_000)]
        own = driver.chat.settings.models[path]
        assert (own.vram_budget, own.ram_budget) == (Budget(3_000_000_000), None)
        await _command(driver, "/vram much")
        await driver.until(lambda: "is no size" in driver.screen_text(), "what is wrong")


async def test_where_the_processor_computes_the_gpu_has_no_budget(home: Path) -> None:
    async with running(Script(tiers=tiers())) as driver:
        await driver.ready()
        for text in ("/vram 3G", "/vram"):
            driver.chat.notice("hint", "")
            await _command(driver, text)
            await driver.until(
                lambda: "no GPU computes: there is no video memory" in driver.screen_text(), "why"
            )
            assert not driver.app.in_dialog
        assert driver.engine.vram_budgets == []


async def test_what_was_wrong_goes_when_a_budget_is_taken(home: Path) -> None:
    async with running(MIXED) as driver:
        await driver.ready()
        await _command(driver, "/vram much")
        await driver.until(lambda: "is no size" in driver.screen_text(), "what is wrong")
        await _command(driver, "/vram 3G")
        await driver.until(lambda: "is no size" not in driver.screen_text(), "nothing is wrong")
        assert driver.engine.vram_budgets == [Budget(3_000_000_000)]


async def test_a_block_is_placed_from_the_map_and_the_map_follows(home: Path) -> None:
    async with running(MIXED, size=(120, 40)) as driver:
        await driver.ready()
        while not isinstance(driver.app.screen, TiersScreen):
            driver.app.action_tiers()
            await driver.settled()
        await driver.pilot.press("down", "right", "right")
        tier_map = driver.app.screen.query_one(TierMap)
        index = tier_map.chosen
        assert index is not None and mixed_tiers().blocks[index].name == "blk.2 feed_forward"
        await driver.pilot.press("v")
        await driver.until(lambda: "blk.2 feed_forward as asked" in driver.screen_text(), "the event")
        await driver.until(lambda: "stays in video memory" in driver.screen_text(), "where it is")
        await driver.pilot.press("u")
        await driver.until(lambda: len(driver.engine.pins) == 2, "it is left to the plan")
        assert driver.engine.pins == [(index, Tier.VRAM), (index, None)]


async def test_a_refusal_is_an_event_and_the_block_stays(home: Path) -> None:
    script = Script(tiers=MIXED.tiers, refuse_pin="blk.0 needs 1.2 GB and 0.3 GB are free")
    async with running(script, size=(120, 40)) as driver:
        await driver.ready()
        while not isinstance(driver.app.screen, TiersScreen):
            driver.app.action_tiers()
            await driver.settled()
        await driver.pilot.press("down", "right", "v")
        await driver.until(lambda: "0.3 GB are free" in driver.screen_text(), "why not")
        await driver.until(lambda: "is asked for" not in driver.screen_text(), "nothing is waited for")
        assert "computed by the processor in place" in driver.screen_text()
