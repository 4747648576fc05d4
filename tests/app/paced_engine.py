"""The application on an engine that only speaks, at a steady rate, and says what it cost to speak.

    python -m tests.app.paced_engine MATERIAL REPORT [BETWEEN]

A child of the measurements. MATERIAL is a name of `MATERIAL`; at its end the JSON file REPORT holds the
engine's own processor seconds. With BETWEEN the first reply fills the screen, for an empty one costs less;
the second is 100 tokens, BETWEEN tokens as fast as they are taken and 100 tokens more, and when it has ended
the report also says what its first and last 100 cost, and the application ends by itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import ClassVar

import app.app as application
from app.live_reply import LiveReply
from engine import EngineState, FinishReason, GenerationStats, Reply, ReplyStatus
from tests.app.tiers import models
from tests.fakes import FakeEngine, Script

TOK_S = 40
PIECE = 4
"""Characters of a token."""
WINDOW = 100
"""Tokens whose cost is compared."""
WINDOWS = 5
"""So many at either end: in one there are no more than 6 to 20 looks."""
SCREEN = 40
"""Lines that fill it."""
BEAT_S = 0.02
SETTLE_S = 3.0
"""Time in which what came fast is drawn."""
FAST_TOK_S = 500
_PROSE = "The river bends twice below the mill, and where it slows the old ferry lies on the bank. "
_LIST = "- first, the **name** of the thing\n- then `what it does` and why\n- and a remark\n"
_TABLE = "| river {n} | {n} km | in *the north*, slow and deep |\n"
_CODE = "    for place in range(10):\n        total += weights[place] * rates[place]  # bytes\n"
_MIXED = (
    "- first, the **name** of it\n- then `what it does`\n- and a remark on both\n- the last one\n\n"
    "| river | length |\n|---|---|\n| Elbe | 1,094 km |\n| Main | 527 km |\n| Isar | 292 km |\n\n"
    "```python\ntotal = 0\nfor place in range(10):\n    total += weights[place] * rates[place]\n```\n\n"
)


def _prose() -> Iterator[str]:
    for number in range(1 << 20):
        yield _PROSE * 5 + ("\n\n" if number else "")


def _table() -> Iterator[str]:
    yield "| name | length | where |\n|---|---|---|\n"
    for number in range(1 << 20):
        yield _TABLE.format(n=number)


def _code() -> Iterator[str]:
    yield "```python\ndef total(weights, rates):\n"
    yield from cycle((_CODE,))


MATERIAL = {
    "prose": _prose,
    "lists": lambda: cycle((_LIST,)),
    "tables": _table,
    "code": _code,
    # Whole in 100 tokens, so that any 100 are as much work as any other.
    "mixed": lambda: cycle((_MIXED.ljust(WINDOW * PIECE - 2, "x") + "\n\n",)),
}
"""Texts without an end, in parts."""


def tokens(material: str) -> Iterator[str]:
    """Return the text of `MATERIAL`, PIECE characters at a time."""
    left = ""
    for part in MATERIAL[material]():
        left += part
        whole = len(left) // PIECE * PIECE
        yield from (left[start : start + PIECE] for start in range(0, whole, PIECE))
        left = left[whole:]


@dataclass
class Cost:
    """What WINDOW tokens cost the event loop."""

    cpu_s: float
    """Processor seconds of its thread."""
    looks: int
    """How often the reply was looked at and drawn: the more seldom, the dearer that is."""
    lags: list[float]
    """By how much each beat came late, in seconds."""


class PacedEngine(FakeEngine):
    """Replies with a text without an end, TOK_S tokens a second."""

    def __init__(self, material: str, between: int) -> None:
        tiers = models.tiers(models.blocks(30, 1, tied=True, kept=1000), in_flight=(), active=None)
        super().__init__(Script(model_name="Paced", max_context=1 << 20, tiers=tiers))
        self._material = material
        self._between = between
        self.spoken = 0
        self.phase = ""
        """first 0 and so on, between, last 0 and so on, or done, of a reply in windows."""
        self.cpu_s = 0.0

    def _generate(self, reply: Reply, number: int) -> None:
        started = time.thread_time()
        stats = GenerationStats(prompt_tokens=10, seed=7, ttft_s=0.06)
        self._set(state=EngineState.GENERATING)
        reply.update(ReplyStatus.PREFILL, stats)
        text = tokens(self._material)
        if self._between and number == 1:
            reply.append("\n\n".join(f"Line {line} of many." for line in range(SCREEN)), [1], stats)
        elif self._between:
            self._speak_windows(reply, text, "first")
            self.phase = "between"
            self._speak(reply, text, self._between, FAST_TOK_S)
            self._closing.wait(SETTLE_S)
            self._speak_windows(reply, text, "last")
            self.phase = "done"
            self._closing.wait(2 * BEAT_S)  # so that drawing the end is no part of the last window
        else:
            self._speak(reply, text, 1 << 30, TOK_S)
        self._set(state=EngineState.READY)
        reply.finish(FinishReason.STOP, reply.stats)
        self.cpu_s += time.thread_time() - started

    def _speak_windows(self, reply: Reply, text: Iterator[str], name: str) -> None:
        for number in range(WINDOWS):
            self.phase = f"{name} {number}"
            self._speak(reply, text, WINDOW, TOK_S)

    def _speak(self, reply: Reply, text: Iterator[str], count: int, rate: float) -> None:
        started = time.monotonic()
        for index in range(count):
            self._closing.wait(max(0.0, started + index / rate - time.monotonic()))
            if reply.cancel_token.cancelled or self._closing.is_set():
                break
            self.spoken += 1
            stats = replace(reply.stats, completion_tokens=self.spoken, decode_s=self.spoken / rate)
            reply.append(next(text), [self.spoken], stats)
            tiers = self.snapshot.tiers
            assert tiers is not None, "a model is loaded"
            self._set(
                context_used=10 + self.spoken,
                decode_tok_s=rate,
                tiers=replace(tiers, passes=self.spoken),
                cpu_s=time.process_time(),
                at=time.monotonic(),
            )


class WatchedApp(application.TiercelApp):
    """Notes what the windows of a reply cost, and ends after it."""

    costs: ClassVar[dict[str, Cost]] = {}

    def on_mount(self) -> None:
        self._looks = 0
        self._grew = self.chat.reply_grew
        self.chat.reply_grew = self._count  # type: ignore[method-assign]
        self._watching = asyncio.create_task(self._watch())

    def _count(self, live: LiveReply) -> None:
        self._looks += 1
        self._grew(live)

    async def _watch(self) -> None:
        phase, cpu_s, lags = "", 0.0, [0.0]
        while True:
            due = time.perf_counter() + BEAT_S
            await asyncio.sleep(BEAT_S)
            lags.append(time.perf_counter() - due)
            if phase != engine.phase:
                if phase:
                    self.costs[phase] = Cost(time.thread_time() - cpu_s, self._looks, lags)
                phase, cpu_s, self._looks, lags = engine.phase, time.thread_time(), 0, []
            if phase == "done" and len(lags) * BEAT_S > SETTLE_S:
                self.costs[phase] = Cost(time.thread_time() - cpu_s, self._looks, lags)
                self.exit(0)
                return


if __name__ == "__main__":
    material, report = sys.argv[1:3]
    between = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    engine = PacedEngine(material, between)
    application.Engine = lambda niceness: engine  # type: ignore[assignment, misc]
    if between:
        application.TiercelApp = WatchedApp  # type: ignore[misc]
    code = application.main(Path("/models/paced.gguf"))
    found = {name: asdict(cost) for name, cost in WatchedApp.costs.items()}
    Path(report).write_text(json.dumps({"engine_cpu_s": engine.cpu_s, "costs": found}))
    sys.exit(code)
