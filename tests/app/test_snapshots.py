"""How every screen looks at four sizes; `pytest --snapshot-update` accepts a change."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol

import pytest
from textual._doc import take_svg_screenshot
from textual.pilot import Pilot
from textual.widgets import Input

import app.conversation as conversation
import app.dialogs as dialogs
import app.screens.chat as chat_screen
import app.screens.conversation_actions as conversation_actions
import app.screens.models as models_screen
from app import locations
from app.app import TiercelApp
from app.settings import SettingsFile
from tests.app.calibrations import calibration
from tests.app.driving import Driver
from tests.app.tiers.models import MIXED_REASON, REASON, gpu_tiers, mixed_tiers, tiers
from tests.fakes import FakeEngine, Script
from tests.tiny_gguf import write_tiny_model

REPLY = """\
Blocks that do not fit are **streamed** for each token:

1. attention and KV stay in VRAM
2. feed-forward blocks sit in RAM
3. the rest stays on `NVMe`

```python
def next_use(layer: int, pos: int) -> int:
    return (layer - pos) % N_LAYERS
```

中文和 emoji 🦅 keep their columns.
"""
SCRIPT = Script(replies=(REPLY,), token_s=0, piece=16, model_name="SmolLM2-135M-Instruct", tiers=tiers())
SIZES = [(40, 15), (80, 24), (120, 40), (200, 60)]
PAIRS = [((40, 15), (80, 24)), ((200, 60), (120, 40))]
"""From one to the other a screen comes to look as if it had begun there; between pairs the sidebar comes."""
DAY = date(2026, 11, 30)
NOON = 1_796_040_000
"""Seconds since 1970 at noon of that day, for everything that is dated."""


Size = tuple[int, int]
Go = Callable[[Driver], Awaitable[None]]


class SnapCompare(Protocol):
    def __call__(self, app: TiercelApp, **options: object) -> bool: ...


class Matches(Protocol):
    def __call__(self, size: Size, go: Go, routes: Iterable[Sequence[Size]] = ()) -> bool: ...


@pytest.fixture
def app(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TiercelApp]:
    """The application on the fake engine, in a world that is the same everywhere and always."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("TIERCEL_HOME", "home")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    seconds = itertools.count(NOON)
    clock = SimpleNamespace(time_ns=lambda: next(seconds) * 1_000_000_000)
    monkeypatch.setattr(conversation, "time", clock)
    monkeypatch.setattr(conversation_actions, "date", SimpleNamespace(today=lambda: DAY))
    for module in (dialogs, models_screen):
        monkeypatch.setattr(module, "available_memory", lambda: 20_000_000_000, raising=False)
    monkeypatch.setattr(models_screen, "memory_for_model", lambda *_arguments: 17_000_000_000)
    monkeypatch.setattr(Input, "cursor_blink", False)
    monkeypatch.setattr(chat_screen, "DRAFT_S", 600.0)  # what a message costs comes late
    settings = SettingsFile(locations.settings_file())
    settings.change(welcomed=True)
    settings.save()
    locations.models_dir().mkdir(parents=True)
    write_tiny_model(locations.models_dir() / "falcon-tiny.gguf")
    app = TiercelApp(lambda: FakeEngine(SCRIPT), Path("home/models/smollm2.gguf"))
    yield app
    app.shut_down()


async def _picture(pilot: Pilot[int | None]) -> str:
    """As `take_svg_screenshot` takes it at the end."""
    for _ in range(2):
        await pilot.pause()
        await pilot.wait_for_scheduled_animations()
    return pilot.app.export_screenshot(title=pilot.app.title, simplify=True)


def _pictures(app: TiercelApp, route: Sequence[Size], go: Go) -> dict[Size, str]:
    """How it looks at each size of a route, to which it is brought one after the other."""
    pictures = {}

    async def along(pilot: Pilot[int | None]) -> None:
        driver = Driver(pilot)
        await go(driver)
        for size, following in itertools.pairwise(route):
            pictures[size] = await _picture(pilot)
            await pilot.resize_terminal(*following)
            await driver.settled(10)

    pictures[route[-1]] = take_svg_screenshot(app=app, terminal_size=route[0], run_before=along)
    return pictures


@pytest.fixture(scope="module")
def taken() -> dict[object, str]:
    """Pictures of tests that are still to come, by test and size."""
    return {}


@pytest.fixture
def matches(
    app: TiercelApp,
    snap_compare: SnapCompare,
    taken: dict[object, str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Matches:
    """Whether a screen looks as it is stored; one application serves the tests of all sizes of a route.

    What is stored was taken where each size had an application of its own.
    """
    screen = {name: value for name, value in request.node.callspec.params.items() if name != "size"}
    test = (request.node.originalname, *screen.values())

    def matches(size: Size, go: Go, routes: Iterable[Sequence[Size]] = ()) -> bool:
        if (test, size) not in taken:
            route = next((route for route in routes if size in route), (size,))
            taken.update({(test, at): picture for at, picture in _pictures(app, route, go).items()})
        picture = taken.pop((test, size))
        monkeypatch.setattr("textual._doc.take_svg_screenshot", lambda **_options: picture)
        return snap_compare(app)

    return matches


async def _chat(driver: Driver) -> None:
    await driver.ready()
    driver.prompt.cursor_blink = False
    await driver.say("Where do the layers go?")
    await driver.answered()
    await driver.settled(10)  # what lies below a dialog is drawn as it was when the dialog came


async def _fresh(driver: Driver) -> None:
    await driver.ready()
    driver.prompt.cursor_blink = False


async def _versions(driver: Driver) -> None:
    await _chat(driver)
    await driver.pilot.press("alt+up", "r")
    await driver.answered()
    driver.prompt.load_message("and why?", ())
    await driver.settled(10)


def _pressing(*keys: str, shows: str = "") -> Go:
    async def press(driver: Driver) -> None:
        await _chat(driver)
        await driver.pilot.press(*keys)
        await driver.until(lambda: shows in driver.screen_text(), shows)
        await driver.settled(10)

    return press


def _commanding(command: str, shows: str) -> Go:
    async def perform(driver: Driver) -> None:
        await _chat(driver)
        await driver.settled(10)  # where the view stands decides what a search has to scroll
        driver.prompt.text = command
        await driver.pilot.press("enter")
        await driver.until(lambda: shows in driver.screen_text(), shows)
        await driver.settled(10)

    return perform


SCREENS: dict[str, Go] = {
    "new": _fresh,
    "chat": _chat,
    "versions": _versions,
    "conversations": _pressing("f2"),
    "sampling": _pressing("ctrl+r", shows="temperature"),
    "find": _commanding("/find blocks", "1/1"),
    "help": _pressing("f1", shows="Enter"),
    "models": _pressing("f3", shows="fits"),
    "history": _pressing("ctrl+f", shows="any time"),
    "settings": _pressing("f12", shows="Settings"),
    "palette": _pressing("ctrl+p", shows="Stop"),
    "personas": _commanding("/persona", "Personas"),
    "budget": _commanding("/budget", "Memory budget"),
    "details": _pressing("alt+up", "enter", shows="written"),
}


@pytest.mark.parametrize("size", SIZES, ids=[f"{width}x{height}" for width, height in SIZES])
@pytest.mark.parametrize("screen", SCREENS)
def test_every_screen(matches: Matches, screen: str, size: Size) -> None:
    # The lines of the history are cut in another place after another size.
    assert matches(size, SCREENS[screen], PAIRS if screen != "history" else ())


@pytest.mark.parametrize("size", SIZES, ids=[f"{width}x{height}" for width, height in SIZES])
def test_the_map_of_the_tiers(matches: Matches, size: Size) -> None:
    async def go(driver: Driver) -> None:
        await _chat(driver)
        driver.app.action_tiers()
        while len(driver.app.screen_stack) == 1:
            driver.app.action_tiers()
            await driver.settled()
        await driver.settled(10)

    assert matches(size, go, [SIZES])


@pytest.mark.parametrize("size", SIZES, ids=[f"{width}x{height}" for width, height in SIZES])
@pytest.mark.parametrize("whole", [False, True], ids=["chat", "map"])
def test_a_model_on_a_gpu(app: TiercelApp, matches: Matches, size: Size, whole: bool) -> None:
    script = replace(SCRIPT, tiers=gpu_tiers(), backend="cuda sm_86", reason=REASON, threads=0)
    app._make_engine = lambda: FakeEngine(script)

    async def go(driver: Driver) -> None:
        await _chat(driver)
        while whole and len(driver.app.screen_stack) == 1:
            driver.app.action_tiers()
            await driver.settled()
        await driver.settled(10)

    assert matches(size, go, [SIZES] if whole else PAIRS)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
@pytest.mark.parametrize("shown", ["chat", "map", "budget", "loading"])
def test_a_model_in_three_tiers(app: TiercelApp, snap_compare: SnapCompare, size: Size, shown: str) -> None:
    script = replace(SCRIPT, tiers=mixed_tiers(), backend="cuda sm_86", reason=MIXED_REASON, threads=4)
    if shown == "loading":
        script = replace(script, tiers=mixed_tiers(settled=False, active=None), load_progress=0.43)
    app._make_engine = lambda: FakeEngine(script)

    async def go(pilot: Pilot[int | None]) -> None:
        driver = Driver(pilot)
        await _chat(driver)
        if shown == "budget":
            driver.prompt.text = "/vram"
            await pilot.press("enter")
            await driver.until(lambda: "Memory budget" in driver.screen_text(), "the dialog")
        while shown == "map" and len(driver.app.screen_stack) == 1:
            driver.app.action_tiers()
            await driver.settled()
        if shown == "map":
            await pilot.press("down", "right", "right", "right")
        await driver.settled(10)

    assert snap_compare(app, terminal_size=size, run_before=go)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
@pytest.mark.parametrize("shown", ["chat", "skip", "drafts", "compare"])
def test_less_work_for_a_token(app: TiercelApp, snap_compare: SnapCompare, size: Size, shown: str) -> None:
    replies = (REPLY, REPLY[:120] + "and so on.")
    script = replace(
        SCRIPT, replies=replies, calibration=calibration(32), calibrated=True, plain_step_s=0.036
    )
    app._make_engine = lambda: FakeEngine(script)
    commands = {"skip": ("/skip", "Measured on"), "drafts": ("/draft", "last reply: 75% taken")}
    commands["compare"] = ("/compare skip", "the other becomes its sibling")

    async def go(pilot: Pilot[int | None]) -> None:
        driver = Driver(pilot)
        await driver.ready()
        await pilot.press("f5", "f6")
        driver.chat.notice("hint", "")
        await _chat(driver)
        if shown in commands:
            command, words = commands[shown]
            driver.prompt.text = command
            await pilot.press("enter")
            await driver.until(lambda: words in driver.screen_text(), words)
        await driver.settled(10)

    assert snap_compare(app, terminal_size=size, run_before=go)


@pytest.mark.parametrize("size", SIZES, ids=[f"{width}x{height}" for width, height in SIZES])
def test_the_welcome(matches: Matches, size: Size) -> None:
    async def go(driver: Driver) -> None:
        await driver.ready()
        driver.app.welcome(has_model=True)
        await driver.settled(10)

    assert matches(size, go, PAIRS)


@pytest.mark.parametrize("theme", ["amber", "chalk", "contrast", "fjord", "heather", "terminal"])
def test_the_other_themes(app: TiercelApp, snap_compare: SnapCompare, theme: str) -> None:
    async def go(pilot: Pilot[int | None]) -> None:
        await _chat(Driver(pilot))

    app.theme = theme
    assert snap_compare(app, terminal_size=(120, 40), run_before=go)
