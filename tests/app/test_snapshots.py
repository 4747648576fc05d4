"""How the screens look at the two sizes of the wireframes; `pytest --snapshot-update` accepts a change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from textual.pilot import Pilot

from app.app import TiercelApp
from tests.app.driving import Driver
from tests.fakes import FakeEngine, Script

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


class SnapCompare(Protocol):
    def __call__(self, app: TiercelApp, **options: object) -> bool: ...


@pytest.fixture
def app(home: Path) -> Iterator[TiercelApp]:
    script = Script(replies=(REPLY,), token_s=0, piece=16, model_name="SmolLM2-135M-Instruct")
    app = TiercelApp(lambda: FakeEngine(script), Path("/models/smollm2.gguf"))
    yield app
    app.shut_down()


async def _chat(pilot: Pilot[int | None]) -> None:
    driver = Driver(pilot)
    await driver.ready()
    driver.prompt.cursor_blink = False
    await driver.say("Where do the layers go?")
    await driver.answered()


async def _drawer(pilot: Pilot[int | None]) -> None:
    await _chat(pilot)
    await pilot.press("f2")
    await Driver(pilot).settled()


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80x24", "120x40"])
def test_a_conversation(app: TiercelApp, snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    assert snap_compare(app, terminal_size=size, run_before=_chat)


def test_the_light_theme(app: TiercelApp, snap_compare: SnapCompare) -> None:
    app.theme = "chalk"
    assert snap_compare(app, terminal_size=(120, 40), run_before=_chat)


def test_the_drawer_of_a_narrow_terminal(app: TiercelApp, snap_compare: SnapCompare) -> None:
    assert snap_compare(app, terminal_size=(80, 24), run_before=_drawer)
