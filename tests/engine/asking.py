"""What tests of the engine's thread share: waiting for it, and conversations to ask it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from engine import LoadOptions, Message, Reply, SamplingParams
from tests.engine.budgets import budget_for

GREEDY = SamplingParams(temperature=0)


def wait(reply: Reply) -> Reply:
    deadline = time.monotonic() + 30
    while not reply.done:
        reply.wait(1 << 60, 0.05)
        assert time.monotonic() < deadline
    return reply


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        time.sleep(0.005)
        assert time.monotonic() < deadline


def user(*texts: str) -> tuple[Message, ...]:
    """User and assistant in turns, the user first."""
    return tuple(Message(("user", "assistant")[i % 2], text) for i, text in enumerate(texts))


def streamed(path: Path, share: float = 0.3) -> LoadOptions:
    """With so much of the weights in memory."""
    return LoadOptions(path, context=256, threads=1, ram_budget=budget_for(path, 256, share))
