"""How fast the interface answers: from a key to its letter, and from Enter to a long conversation."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from app.conversation import Conversation
from app.store import Store
from tests.app.measure_first_paint import BARE, OURS, first_paint_s
from tests.app.measuring import (
    MODEL,
    OTHER_MODEL,
    READY,
    Result,
    home,
    newest,
    percentile,
    spread,
    start,
)
from tests.app.pseudo_terminal import Terminal

KEY_MS = 50.0
OPEN_MS = 1000.0
FIRST_PAINT_MS = 250.0
MESSAGES = 500
_LETTERS = [chr(code) for code in range(0x410, 0x450)]
"""Cyrillic: nothing else on the screen has them, so one that is seen is the one that was typed."""
_FIRST_S = 6.0
"""In which both models are loaded."""
_LINE = 30
"""Letters before the message box is emptied."""
_QUIET_S = 0.5
"""A screen to which nothing is added for so long is drawn."""
_FRAME = b"no model"
"""In the first frame."""
_BLINK = 500
"""Bytes: the cursor blinks with fewer."""
_LOADING = """
import sys
from pathlib import Path
import app.app as application
from engine import EngineState

loading, pause_s, models = Path(sys.argv[1]), float(sys.argv[2]), [Path(path) for path in sys.argv[3:]]

class Loading(application.TiercelApp):
    n_loads = 0

    def on_mount(self):
        self.set_interval(0.02, self.look)

    def look(self):
        if self.chat.bridge.snapshot.state is EngineState.READY and loading.exists():
            loading.unlink()
            self.n_loads += 1
            if pause_s == 0 or self.n_loads < len(models):
                self.set_timer(max(pause_s, 0.01), self.load_next)

    def load_next(self):
        self.load_model(models[self.n_loads % len(models)])
        loading.touch()

application.TiercelApp = Loading
loading.touch()
raise SystemExit(application.main(models[0]))
"""
"""Loads models, one after the other or one again and again; a file is there while one is being loaded."""
_PAUSE_S = 1.0
"""Between two models that are loaded for the first time."""
_COUNT = "Write the numbers from 1 to 5000, one on each line. Do not stop before 5000.\r"
_REPLY = (
    "The plan has **three** parts:\n\n- measure what there is, with `numbers`\n- change one thing\n- measure "
    "again\n\nAnd then, in a few words, what was found and what was not: the next person need not ask.\n"
    "\n```python\nfor place in range(10):\n    total += weights[place]\n```\n"
)


def keys(count: int) -> list[Result]:
    """Measure key to paint: idle, and while a reply streams."""
    with home("greedy = true\n") as folder, start(folder, "-m", "app", "-m", str(MODEL)) as terminal:
        terminal.wait_for(READY, 60)
        terminal.read_for(1.0)
        idle = _type(terminal, count, lambda: None)

        def speak() -> None:
            if newest(folder)[0] != "streaming":
                terminal.type("\x0e")  # a new conversation
                terminal.read_for(0.3)
                terminal.type(_COUNT)
                terminal.until(lambda: newest(folder)[0] == "streaming", "a reply")
                terminal.read_for(0.5)

        streaming = _type(terminal, count, speak)
    return [_key_result("idle", idle), _key_result("while a reply streams", streaming)]


def keys_while_loading(count: int) -> list[Result]:
    """Measure key to paint while models are loaded for the first time, and while one is loaded over and over.

    The first time libraries are imported and memory is asked for that are there the second time.
    """
    first: list[float] = []
    models = [str(path) for path in (MODEL, OTHER_MODEL) if path.is_file()]
    n_starts = 0
    while len(first) < count:
        with home() as folder:
            loading = folder / "loading"
            with start(folder, "-c", _LOADING, str(loading), str(_PAUSE_S), *models) as terminal:
                terminal.wait_for(_FRAME)
                first += _type(terminal, _LINE, lambda: None, loading.exists, _FIRST_S)
        n_starts += 1
    results = [
        _key_result("while a model loads first", first),
        Result("  there were", f"{n_starts} starts, each with {len(models)} models", ""),
    ]
    large = Path(os.environ.get("TIERCEL_LARGE", MODEL))
    with home() as folder:
        loading = folder / "loading"
        with start(folder, "-c", _LOADING, str(loading), "0", str(large)) as terminal:
            terminal.wait_for(READY, 60)
            again = _type(terminal, count, lambda: None, loading.exists)
    what = f"{large.stat().st_size / 1e6:,.0f} MB"
    return [*results, _key_result("while one loads again", again), Result("  it has", what, "")]


def _key_result(when: str, times: list[float]) -> Result:
    middle, late, worst = (1e3 * percentile(times, share) for share in (0.5, 0.95, 1.0))
    shown = f"p50 {middle:.1f} ms, p95 {late:.1f} ms, worst {worst:.1f} (n={len(times)})"
    return Result(f"key to paint, {when}", shown, f"p95 under {KEY_MS:.0f} ms", late < KEY_MS)


def _type(
    terminal: Terminal,
    count: int,
    prepare: Callable[[], None],
    counts: Callable[[], bool] = lambda: True,
    seconds: float = 600.0,
) -> list[float]:
    """Type letters at random moments, and return how long each took to be seen, in seconds.

    Ends after `count` letters that were typed while `counts` held, or after `seconds`.
    """
    chance, times, end = random.Random(0), [], time.perf_counter() + seconds
    while len(times) < count and time.perf_counter() < end:
        prepare()
        for letter in chance.sample(_LETTERS, min(_LINE, count - len(times))):
            terminal.read_for(chance.uniform(0.02, 0.15))
            seen, wanted, counted = b"", letter.encode(), counts()
            began = time.perf_counter()
            terminal.type(letter)
            while wanted not in seen:
                seen = seen[-1:] + terminal.read(1.0)
                if time.perf_counter() - began > 10:
                    raise AssertionError(f"a letter was not drawn: {bytes(terminal.written[-500:])!r}")
            if counted:
                times.append(time.perf_counter() - began)
        terminal.type("\x15")  # the message box is emptied
        terminal.read_for(0.5)
    return times


def opening(count: int) -> list[Result]:
    """Measure opening conversations of 500 messages, from Enter to the last byte of the screen."""
    times = []
    with home() as folder:
        _write_conversations(folder / "data", count)
        with start(folder, "-m", "tests.app.paced_engine", "prose", str(folder / "report")) as terminal:
            terminal.wait_for(READY)
            terminal.wait_for(b"conversation 0")
            for number in range(count):
                terminal.type("\x1bOQ")  # the list
                terminal.read_for(1.0)
                if number:
                    terminal.type("\x1b[B")
                    terminal.read_for(0.5)
                times.append(1e3 * _open(terminal, f"the end of {number}".encode()))
                terminal.type("\x1b")
                terminal.read_for(0.5)
    shown = spread(times, "ms", 0)
    return [Result(f"opening {MESSAGES} messages", shown, f"under {OPEN_MS:.0f} ms", max(times) < OPEN_MS)]


def _open(terminal: Terminal, mark: bytes) -> float:
    """Press Enter, and return the seconds to the last byte of a screen that shows `mark`."""
    place = len(terminal.written)
    began = drawn = time.perf_counter()
    terminal.type("\r")
    while (now := time.perf_counter()) - drawn < _QUIET_S or mark not in terminal.written[place:]:
        if now - began > 20:
            raise AssertionError(f"{mark!r} was not drawn")
        if len(terminal.read(0.05)) > _BLINK:
            drawn = time.perf_counter()
    return drawn - began


def _write_conversations(folder: Path, count: int) -> None:
    store = Store(folder / "conversations.db")
    store.start()
    now = time.time_ns() // 1_000_000
    for number in range(count):
        conversation = Conversation(title=f"conversation {number}")
        for place in range(MESSAGES // 2):
            conversation.add("user", f"What comes after step {place}?")
            end = f"\nthe end of {number}\n" if place == MESSAGES // 2 - 1 else ""
            conversation.add("assistant", _REPLY + end)
        conversation.updated_at = now - 1000 * number
        store.add(conversation, *conversation.turns)
        store.save_conversation(conversation)
    assert store.close(60), "the conversations were not written"


def first_paint(count: int) -> list[Result]:
    """Measure the first paint against a bare application of Textual."""
    differences = []
    with home() as folder:
        first_paint_s(OURS, str(folder)), first_paint_s(BARE, str(folder))  # files are cached, code compiled
        for _ in range(count):
            ours = first_paint_s(OURS, str(folder))
            differences.append(1e3 * (ours - first_paint_s(BARE, str(folder))))
    middle = percentile(differences, 0.5)
    shown = spread(differences, "ms", 0)
    mark = f"at most {FIRST_PAINT_MS:.0f} ms"
    return [Result("first paint after a bare Textual's", shown, mark, middle <= FIRST_PAINT_MS)]
