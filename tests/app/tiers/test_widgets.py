"""The map, the panel, the strip and the screen in a small application of their own, at many widths."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget

from app.screens.tiers import TiersScreen
from app.themes import TOKENS, load_themes
from app.tiers.layout import strip_groups
from app.tiers.report import TierWatch
from app.widgets.event_log import EventLog
from app.widgets.lanes import Lanes
from app.widgets.tier_bars import TierBars
from app.widgets.tier_map import TierMap
from app.widgets.tier_panel import TierPanel, TierStrip
from engine import EngineSnapshot, EngineState, Tier, TierEvent, TierEventKind
from tests.app.tiers.models import (
    REASON,
    blocks,
    gpu_tiers,
    loading_to_gpu,
    mixed,
    mixed_tiers,
    model,
    on_gpu,
    running,
    snapshot,
    tiers,
)

REPLY = running(60)


class Host(App[None]):
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (40, "-narrow"), (100, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (15, "-short"), (30, "-tall")]  # noqa: RUF012

    def __init__(self, *widgets: Widget, theme: str = "kestrel") -> None:
        super().__init__()
        self._widgets = widgets
        for each in load_themes(Path("no themes of one's own"))[0]:
            self.register_theme(each)
        self.theme = theme

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return TOKENS

    def compose(self) -> ComposeResult:
        yield from self._widgets


@asynccontextmanager
async def hosted(
    *widgets: Widget, size: tuple[int, int], theme: str = "kestrel"
) -> AsyncIterator[Pilot[None]]:
    async with Host(*widgets, theme=theme).run_test(size=size) as pilot:
        await pilot.pause()
        yield pilot


def seen(pilot: Pilot[None]) -> list[str]:
    strips = pilot.app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


def drawn(widget: Widget) -> list[str]:
    """What a widget draws itself, without its surroundings."""
    return [widget.render_line(y).text for y in range(widget.size.height)]


@pytest.mark.parametrize("width", [20, 37, 64, 80, 120, 200])
@pytest.mark.parametrize("layers", [1, 32, 126])
async def test_no_line_is_longer_than_the_width(width: int, layers: int) -> None:
    report = TierWatch().feed(snapshot(tiers(blocks(layers))))
    widgets = (TierBars(detailed=True), TierMap(widest_cell=5), TierMap("strip"), Lanes())
    async with hosted(*widgets, size=(width, 120)) as pilot:
        for widget in widgets:
            widget.show(report)
        await pilot.pause()
        for widget in widgets:
            for y in range(widget.size.height):
                assert widget.render_line(y).cell_length <= width
        bars, _, strip, lanes = widgets
        assert (bars.size.height, strip.size.height, lanes.size.height) == (2, 1, 8)  # nothing is wrapped
        whole = "".join(drawn(widgets[1]))
        letters = [one for one in whole.replace("head", "").replace("emb", "") if one in "RN•▶↑▁▂▃▄▅▆▇"]
        assert len(letters) >= len(report.blocks)


async def test_only_lines_that_changed_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, tier_map = TierWatch(), TierMap()
    first = snapshot(tiers(active=1, in_flight=()))
    second = replace(first, tiers=replace(first.tiers, active=3), at=100.1)  # type: ignore[type-var]
    async with hosted(tier_map, size=(37, 30)) as pilot:
        tier_map.show(watch.feed(first))
        await pilot.pause()
        refreshed: list[object] = []
        monkeypatch.setattr(tier_map, "refresh", lambda *regions, **_: refreshed.extend(regions))
        tier_map.show(watch.feed(replace(first, at=100.05)))
        assert refreshed == []
        tier_map.show(watch.feed(second))
        assert [region.y for region in refreshed] == [1]  # type: ignore[attr-defined]


async def test_another_theme_draws_the_map_in_its_colours() -> None:
    tier_map = TierMap()
    async with hosted(tier_map, size=(37, 30)) as pilot:
        tier_map.show(TierWatch().feed(snapshot(tiers())))
        await pilot.pause()
        before = list(tier_map.render_line(1))
        pilot.app.theme = "chalk"
        await pilot.pause()
        after = list(tier_map.render_line(1))
        assert [s.text for s in before] == [s.text for s in after]
        assert [s.style for s in before] != [s.style for s in after]


async def test_colours_of_the_terminal_itself_leave_letters_readable() -> None:
    tier_map = TierMap(cursor=True)
    async with hosted(tier_map, size=(60, 30), theme="terminal") as pilot:
        tier_map.show(TierWatch().feed(snapshot(tiers())))
        await pilot.pause()
        for y in range(tier_map.size.height):
            for segment in tier_map.render_line(y):
                style = segment.style
                assert style is not None
                assert not segment.text.strip() or style.reverse or style.color != style.bgcolor


@pytest.mark.parametrize("size", [(120, 40), (120, 24)])
async def test_the_panel_tells_everything(size: tuple[int, int]) -> None:
    panel = TierPanel()
    async with hosted(panel, size=size) as pilot:
        for each in REPLY:
            panel.show(each, each.at)
        await pilot.pause()
        text = "\n".join(seen(pilot))
        for words in (
            "TIERS",
            "● live",
            "RAM",
            "NVMe",
            "0  a",
            "head",
            "▶ now",
            "NVMe→RAM",
            "cores",
            "tok/s",
        ):
            assert words in text
        if size[1] >= 40:
            for words in (
                "planned 1.1",
                "hit 6",
                "stall",
                "the disk: waiting 60%",
                "EVENTS",
                "memory is short",
            ):
                assert words in text


@pytest.mark.parametrize(
    ("given_snapshot", "words"),
    [
        (EngineSnapshot(), "no model is loaded"),
        (EngineSnapshot(state=EngineState.READY, model=model()), "NumPy computes this model"),
    ],
)
@pytest.mark.parametrize("make", [TierPanel, TierStrip])
async def test_without_tiers_it_says_why_and_shows_no_map(
    make: Callable[[], TierPanel | TierStrip], given_snapshot: EngineSnapshot, words: str
) -> None:
    widget = make()
    async with hosted(widget, size=(80, 40)) as pilot:
        widget.show(given_snapshot)
        await pilot.pause()
        text = "\n".join(seen(pilot))
        assert words in text
        assert "NVMe→RAM" not in text
        widget.show(REPLY[-1], REPLY[-1].at)
        await pilot.pause()
        assert words not in "\n".join(seen(pilot))


async def test_an_old_report_says_its_age_and_a_new_one_does_not() -> None:
    panel = TierPanel()
    async with hosted(panel, size=(120, 40)) as pilot:
        panel.show(REPLY[-1], REPLY[-1].at + 7.2)
        await pilot.pause()
        assert "x 7 s old" in "\n".join(seen(pilot))
        assert panel.query_one(TierMap).has_class("-stale")
        panel.show(REPLY[-1], REPLY[-1].at + 0.2)
        await pilot.pause()
        assert "old" not in "\n".join(seen(pilot))
        assert not panel.query_one(TierMap).has_class("-stale")


@pytest.mark.parametrize("width", [40, 80, 99])
async def test_the_strip_is_two_lines_with_the_whole_model(width: int) -> None:
    strip = TierStrip()
    async with hosted(strip, size=(width, 24)) as pilot:
        for each in REPLY:
            strip.show(each, each.at)
        await pilot.pause()
        assert strip.size.height == 2
        lines = seen(pilot)[:2]
        assert len(lines[0].strip()) == len(strip_groups(blocks(), width - 2))
        assert "R 3.02/3.62 GB" in lines[1]
        assert ("waits 60%" in lines[1]) == (width >= 80)
        strip.show(replace(REPLY[-1], state=EngineState.READY, seq=999))
        await pilot.pause()
        assert "wait" not in seen(pilot)[1]


@pytest.mark.parametrize("make", [TierPanel, TierStrip])
async def test_what_was_shown_while_hidden_is_there_when_seen(
    make: Callable[[], TierPanel | TierStrip],
) -> None:
    widget = make()
    widget.display = False
    async with hosted(widget, size=(80, 40)) as pilot:
        widget.show(REPLY[-1], REPLY[-1].at)
        widget.display = True
        await pilot.pause()
        text = "\n".join(seen(pilot))
        assert "3.02/3.62 GB" in text
        assert make is TierStrip or "● live" in text.splitlines()[1].rstrip()[-7:]


async def test_events_are_filtered_and_their_escapes_shown() -> None:
    log = EventLog()
    events = (
        TierEvent(0.0, "one moved \x1b[2J"),
        TierEvent(1.0, "memory is short: two went", TierEventKind.WARNING),
    )
    report = TierWatch().feed(snapshot(tiers(events=events, events_dropped=3)))
    async with hosted(log, size=(60, 20)) as pilot:
        log.show(report)
        await pilot.pause()
        text = "\n".join(seen(pilot))
        assert text.index("two went") < text.index("one moved")
        assert "\x1b" not in text
        assert "3 earlier events are gone" in text


# -- on a GPU


@pytest.mark.parametrize("width", [20, 37, 80, 120])
async def test_with_a_gpu_no_line_is_longer_than_the_width(width: int) -> None:
    report = TierWatch().feed(loading_to_gpu(8)[-1])
    widgets = (TierBars(detailed=True), TierMap(widest_cell=5), TierMap("strip"), Lanes())
    async with hosted(*widgets, size=(width, 120)) as pilot:
        for widget in widgets:
            widget.show(report)
        await pilot.pause()
        for widget in widgets:
            for y in range(widget.size.height):
                assert widget.render_line(y).cell_length <= width
        bars, _, strip, lanes = widgets
        assert (bars.size.height, strip.size.height, lanes.size.height) == (2, 1, 7)


@pytest.mark.parametrize("size", [(120, 40), (120, 24)])
async def test_the_panel_shows_the_gpu_while_a_model_comes_and_when_it_is_there(
    size: tuple[int, int],
) -> None:
    panel = TierPanel()
    async with hosted(panel, size=size) as pilot:
        panel.show(snapshot(tiers()), 100.0)
        await pilot.pause()
        assert "VRAM" not in "\n".join(seen(pilot))
        for each in loading_to_gpu(12):
            panel.show(each, each.at)
        await pilot.pause()
        text = "\n".join(seen(pilot))
        for words in ("◐ loading", "VRAM", "6.00/20.00 GB", "RAM→VRAM", "2.00/25.00 GB/s", "V vram", "↑"):
            assert words in text
        panel.show(on_gpu(at=103.0), 103.0)
        await pilot.pause()
        text = "\n".join(seen(pilot))
        assert "● live" in text
        assert "69V" in text
        assert "idle" in text  # the link


@pytest.mark.parametrize("width", [40, 80])
async def test_the_strip_tells_what_the_gpu_holds(width: int) -> None:
    strip = TierStrip()
    async with hosted(strip, size=(width, 24)) as pilot:
        for each in loading_to_gpu(8):
            strip.show(each, each.at)
        await pilot.pause()
        lines = seen(pilot)[:2]
        assert "V 6.00/20.00 GB" in lines[1]
        assert ("r→v 2.00 GB/s" in lines[1]) == (width >= 80)
        assert {"V", "N"} <= set(lines[0])


async def test_a_gpu_reads_without_colour_in_the_colours_of_the_terminal() -> None:
    tier_map = TierMap()
    async with hosted(tier_map, size=(60, 30), theme="terminal") as pilot:
        tier_map.show(TierWatch().feed(loading_to_gpu(8)[-1]))
        await pilot.pause()
        text = "".join(drawn(tier_map))
        assert {"V", "N"} <= set(text)
        for segment in tier_map.render_line(1):
            style = segment.style
            assert style is not None
            assert not segment.text.strip() or style.reverse or style.color != style.bgcolor


async def test_folded_cells_of_memory_and_gpu_have_a_colour_of_their_own() -> None:
    places = tuple(
        replace(block, tier=Tier.RAM if block.kind == "feed_forward" else Tier.VRAM)
        for block in gpu_tiers(layers=126).blocks
    )
    strip = TierMap("strip")
    async with hosted(strip, size=(60, 10)) as pilot:
        strip.show(TierWatch().feed(on_gpu(gpu_tiers(blocks=places))))
        await pilot.pause()
        assert "r" in drawn(strip)[0]
        styles = {segment.style for segment in strip.render_line(0) if "r" in segment.text}
        assert styles == {strip.get_component_rich_style("tier-map--mixed-vram")}


async def test_what_is_left_out_has_a_shape_and_a_colour_of_its_own() -> None:
    left_out = frozenset({3, 4, 5})
    placed = tiers(active=None, in_flight=(), skipped=left_out)
    for theme in ("kestrel", "terminal"):
        async with hosted(tier_map := TierMap(widest_cell=2), size=(80, 30), theme=theme) as pilot:
            tier_map.show(TierWatch().feed(snapshot(placed)))
            await pilot.pause()
            assert "".join(drawn(tier_map)).count("·") == len(left_out)
            segments = [each for y in range(tier_map.size.height) for each in tier_map.render_line(y)]
            marked = {each.style for each in segments if "·" in each.text}
            assert marked == {tier_map.get_component_rich_style("tier-map--skipped")}


async def test_panel_and_strip_say_how_much_is_left_out() -> None:
    placed = tiers(active=None, in_flight=(), skipped=frozenset({3, 4}))
    panel, strip = TierPanel(), TierStrip()
    async with hosted(strip, panel, size=(100, 40)) as pilot:
        for widget in (panel, strip):
            widget.show(snapshot(placed, state=EngineState.READY))
        await pilot.pause()
        text = "\n".join(seen(pilot))
        assert "· skipped 2 of 64, " in text
        assert "skip 2" in seen(pilot)[1]
        for widget in (panel, strip):
            widget.show(snapshot(replace(placed, skipped=frozenset()), state=EngineState.READY))
        await pilot.pause()
        assert "skip" not in "\n".join(seen(pilot))


async def test_a_cell_of_several_blocks_of_which_some_are_left_out_keeps_its_letter() -> None:
    placed = tiers(blocks(126), active=None, in_flight=(), skipped=frozenset({1}))
    async with hosted(strip := TierMap("strip"), size=(60, 10)) as pilot:
        strip.show(TierWatch().feed(snapshot(placed)))
        await pilot.pause()
        segments = list(strip.render_line(0))
        (part,) = (s for s in segments if s.style == strip.get_component_rich_style("tier-map--skipped"))
        assert part.text.strip().lower() in "rn"


# -- three tiers


@pytest.mark.parametrize("width", [20, 37, 80, 120])
async def test_with_three_tiers_no_line_is_longer_than_the_width(width: int) -> None:
    watch = TierWatch()
    for each in mixed(30):
        report = watch.feed(each)
    widgets = (TierBars(detailed=True), TierMap(widest_cell=5), TierMap("strip"), Lanes())
    async with hosted(*widgets, size=(width, 120)) as pilot:
        for widget in widgets:
            widget.show(report)
        await pilot.pause()
        for widget in widgets:
            for y in range(widget.size.height):
                assert widget.render_line(y).cell_length <= width
        bars, tier_map, strip, _lanes = widgets
        assert (bars.size.height, strip.size.height) == (3, 1)
        assert set("VRSN▶•") <= set("".join(drawn(tier_map)))
        if width >= 80:
            assert "17R 5S" in drawn(bars)[1]


async def test_copied_blocks_have_the_colour_of_what_moves_and_others_of_their_tier() -> None:
    tier_map = TierMap()
    async with hosted(tier_map, size=(60, 30)) as pilot:
        tier_map.show(TierWatch().feed(on_gpu(mixed_tiers(active=None, in_flight=()))))
        await pilot.pause()
        styles = {segment.text.strip(): segment.style for segment in tier_map.render_line(2)}
        move = tier_map.get_component_rich_style("tier-map--moving").color
        ram = tier_map.get_component_rich_style("tier-map--ram").color
        assert styles["S"] is not None and styles["S"].color == move
        assert styles["RR"] is not None and styles["RR"].color == ram


@pytest.mark.parametrize("size", [(120, 40), (120, 24)])
async def test_the_panel_tells_of_three_tiers(size: tuple[int, int]) -> None:
    panel = TierPanel()
    async with hosted(panel, size=size) as pilot:
        for each in mixed(30):
            panel.show(each, each.at)
        await pilot.pause()
        text = "\n".join(seen(pilot))
        for words in ("VRAM", "NVMe→RAM", "RAM→VRAM", "S ram→gpu", "R ram", "● live"):
            assert words in text
        if size[1] >= 40:
            for words in (
                "planned 6.2",
                "prompt of 512 planned 1,170",
                "a token: 490 MB →gpu",
                "on the GPU",
            ):
                assert words in text


@pytest.mark.parametrize(
    ("progress", "generating", "words"),
    [(0.43, True, "● live 43%"), (0.43, False, "◐ 43%"), (1.0, False, "◐ moving")],
)
async def test_the_panel_says_that_blocks_are_on_their_way(
    progress: float, generating: bool, words: str
) -> None:
    panel = TierPanel()
    state = EngineState.GENERATING if generating else EngineState.READY
    shown = on_gpu(mixed_tiers(settled=False), load_progress=progress, state=state)
    async with hosted(panel, size=(120, 40)) as pilot:
        panel.show(shown, shown.at)
        await pilot.pause()
        assert words in "\n".join(seen(pilot))


async def test_the_strip_tells_of_three_tiers() -> None:
    strip = TierStrip()
    async with hosted(strip, size=(120, 24)) as pilot:
        for each in mixed(30):
            strip.show(each, each.at)
        await pilot.pause()
        for words in ("V 2.66/4.00 GB 42", "R 2.64/4.00 GB 22", "N 490 MB 5", "r→v 2.", "waits 3"):
            assert words in seen(pilot)[1]


# -- the screen


@asynccontextmanager
async def screened(
    size: tuple[int, int],
    look: Callable[[], EngineSnapshot],
    pin: Callable[[int, Tier | None], None] = lambda _index, _tier: None,
) -> AsyncIterator[Pilot[None]]:
    async with hosted(size=size) as pilot:
        await pilot.app.push_screen(TiersScreen(look, pin=pin))
        await pilot.pause()
        yield pilot


def now(base: EngineSnapshot) -> EngineSnapshot:
    return replace(base, at=time.monotonic())


@pytest.mark.parametrize("size", [(40, 15), (80, 24), (120, 40), (200, 60)])
async def test_the_screen_works_at_every_size(size: tuple[int, int]) -> None:
    shown = now(REPLY[-1])
    async with screened(size, lambda: shown) as pilot:
        text = "\n".join(seen(pilot))
        assert "Tiers" in text
        assert "0  a" in text
        for _ in range(12):
            await pilot.press("pagedown")
        await pilot.pause()
        assert "is short" in "\n".join(seen(pilot))


async def test_the_cursor_walks_over_all_blocks_and_tells_about_each() -> None:
    shown = now(REPLY[-1])
    async with screened((80, 40), lambda: shown) as pilot:
        tier_map = pilot.app.screen.query_one(TierMap)
        assert tier_map.chosen == 1  # after the embedding, the first layer's attention
        assert "blk.0 attention" in "\n".join(seen(pilot))
        await pilot.press("right")
        assert tier_map.chosen == 3
        await pilot.press("j")
        assert tier_map.chosen == 4
        await pilot.pause()
        text = "\n".join(seen(pilot))
        assert "blk.1 feed_forward" in text
        assert "98 MB" in text
        await pilot.press("down")
        assert tier_map.chosen == 0
        await pilot.pause()
        assert "reads only the rows of its tokens" in "\n".join(seen(pilot))
        await pilot.press("down", "l", "l", "l", "l", "l")
        assert tier_map.chosen == len(blocks()) - 1
        await pilot.press("k", "k", "h", "up", "up", "up", "up")
        assert tier_map.chosen == 1


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_screen_names_the_gpu_and_why_it_computes(size: tuple[int, int]) -> None:
    shown = now(on_gpu())
    async with screened(size, lambda: shown) as pilot:
        text = " ".join("\n".join(seen(pilot)).replace("│", " ").split())
        assert REASON in text
        assert "V vram" in text
        assert ("card 24.00 GB" in text) == (size[0] >= 100)
        assert "stays in video memory" in text


async def test_sideways_the_cursor_goes_on_in_the_next_run() -> None:
    shown = now(snapshot(tiers(blocks(80))))
    async with screened((40, 40), lambda: shown) as pilot:
        tier_map = pilot.app.screen.query_one(TierMap)
        layers = []
        for _ in range(31):
            assert tier_map.chosen is not None
            layers.append(blocks(80)[tier_map.chosen].layer)
            await pilot.press("right")
        assert layers == list(range(31))
        for _ in range(31):
            await pilot.press("left")
        assert tier_map.chosen == 1


async def test_a_click_chooses_a_block() -> None:
    shown = now(REPLY[-1])
    async with screened((80, 40), lambda: shown) as pilot:
        tier_map = pilot.app.screen.query_one(TierMap)
        await pilot.click(TierMap, offset=(5 + 2 * 5, 1))
        assert tier_map.chosen == 11  # cells are two columns wide here


async def test_the_events_can_be_filtered() -> None:
    shown = now(REPLY[-1])
    async with screened((120, 40), lambda: shown) as pilot:
        for filtered, short, kept in (("[moves]", 0, 1), ("[warnings]", 1, 0), ("[all]", 1, 1)):
            await pilot.press("e")
            await pilot.pause()
            text = "\n".join(seen(pilot))
            assert filtered in text
            assert text.count("memory is short") == short
            assert text.count("41 of 69 blocks") == kept


@pytest.mark.parametrize("key", ["escape", "f4", "q"])
async def test_it_follows_the_engine_and_closes(key: str) -> None:
    looks = iter(REPLY)
    last = [next(looks)]

    def look() -> EngineSnapshot:
        last[0] = next(looks, last[0])
        return now(last[0])

    async with screened((120, 40), look) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, TiersScreen)
        end = time.monotonic() + 10
        while "ring" not in "\n".join(seen(pilot)) or "tok/s" not in "\n".join(seen(pilot)):
            assert time.monotonic() < end
            await pilot.pause(0.05)
        await pilot.press(key)
        await pilot.pause()
        assert not screen.is_current


async def test_another_size_of_the_window_leaves_no_gaps() -> None:
    # Always of this moment: an old one is told as such.
    async with screened((120, 40), lambda: now(mixed(30)[-1])) as pilot:
        whole = seen(pilot)
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert seen(pilot) == whole


async def test_the_arrows_move_the_cursor_where_the_screen_scrolls() -> None:
    shown = now(REPLY[-1])
    async with screened((80, 20), lambda: shown) as pilot:
        tier_map = pilot.app.screen.query_one(TierMap)
        await pilot.press("down", "right")
        assert tier_map.chosen == 4
        await pilot.press("up", "left")
        assert tier_map.chosen == 1


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_screen_tells_how_a_block_comes_to_who_computes_it(size: tuple[int, int]) -> None:
    shown = now(mixed(30)[-1])
    async with screened(size, lambda: shown) as pilot:
        await pilot.press("down", "right", "right")
        await pilot.pause()
        text = "\n".join(seen(pilot))
        assert "blk.2 feed_forward" in text
        assert "computed by the processor in place, in memory" in text
        await pilot.press("right", "right", "right")
        await pilot.pause()
        text = " ".join("\n".join(seen(pilot)).replace("│", " ").split())
        assert "page-locked ring, computed there by the processor" in text
        assert "stall 12 ms" in text


async def test_a_block_is_kept_in_a_tier_by_a_key() -> None:
    asked: list[tuple[int, Tier | None]] = []
    shown = [now(on_gpu(mixed_tiers(active=None, in_flight=())))]
    async with screened(
        (120, 40), lambda: shown[0], lambda index, tier: asked.append((index, tier))
    ) as pilot:
        assert "v r n keep it there" in "\n".join(seen(pilot))
        await pilot.press("down", "right", "v")
        await pilot.pause()
        chosen = pilot.app.screen.query_one(TierMap).chosen
        assert asked == [(chosen, Tier.VRAM)]
        assert "…VRAM is asked for" in "\n".join(seen(pilot))
        await pilot.press("left")
        await pilot.pause()
        assert "is asked for" not in "\n".join(seen(pilot))
        await pilot.press("right")
        tiers = shown[0].tiers
        assert tiers is not None
        refusal = TierEvent(0.0, "no room for it", TierEventKind.WARNING)
        shown[0] = replace(shown[0], tiers=replace(tiers, events=(*tiers.events, refusal)), seq=99)
        pilot.app.screen.show(shown[0])  # type: ignore[attr-defined]
        await pilot.pause()
        text = "\n".join(seen(pilot))
        assert "is asked for" not in text
        assert "no room for it" in text
        await pilot.press("n", "r", "u")
        await pilot.pause()
        assert asked[1:] == [(chosen, Tier.NVME), (chosen, Tier.RAM), (chosen, None)]
        assert "…left to the plan" in "\n".join(seen(pilot))


async def test_without_a_gpu_there_are_no_keys_for_moving_blocks() -> None:
    asked: list[int] = []
    shown = now(REPLY[-1])
    async with screened((120, 40), lambda: shown, lambda index, _tier: asked.append(index)) as pilot:
        assert "v r n" not in "\n".join(seen(pilot))
        await pilot.press("v", "r", "n", "u")
        assert asked == []


async def test_a_model_that_goes_takes_its_map_along() -> None:
    shown = [now(REPLY[-1])]
    async with screened((80, 24), lambda: shown[0]) as pilot:
        await pilot.press("right")
        shown[0] = EngineSnapshot(seq=9)
        pilot.app.screen.show(shown[0])  # type: ignore[attr-defined]
        await pilot.pause()
        text = "\n".join(seen(pilot))
        assert "no model is loaded" in text
        await pilot.press("right", "down", "e")
        shown[0] = now(snapshot(tiers(blocks(4))))
        pilot.app.screen.show(shown[0])  # type: ignore[attr-defined]
        await pilot.pause()
        assert "0  a" in "\n".join(seen(pilot))
