"""Loops that give way hand out everything, and rest only while the main thread is at work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from engine import giving_way as module
from engine.giving_way import giving_way


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 5000])
def test_every_item_comes_once_and_in_order(count: int) -> None:
    assert list(giving_way(range(count))) == list(range(count))


def _rests(monkeypatch: pytest.MonkeyPatch, cpu_s: Callable[[], float]) -> int:
    """How often a thread rests in a loop of 4 looks, while the main thread's clock says `cpu_s`."""
    rests: list[float] = []
    monkeypatch.setattr(module, "_clock_of_main", lambda: cpu_s)
    monkeypatch.setattr(time, "sleep", rests.append)
    assert len(list(giving_way(range(4096)))) == 4096
    return len(rests)


def test_it_rests_at_every_look_while_the_main_thread_works(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    assert _rests(monkeypatch, lambda: float(next(ticks))) == 4


def test_it_does_not_rest_while_the_main_thread_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _rests(monkeypatch, lambda: 1.0) == 0


def test_the_main_thread_does_not_wait_for_itself() -> None:
    clock = module._clock_of_main()
    sum(range(1_000_000))
    assert clock() == 0.0


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no such clock here")
def test_another_thread_sees_the_main_thread_work() -> None:
    seen: list[float] = []

    def look() -> None:
        clock = module._clock_of_main()
        begun.set()
        before = clock()
        done.wait(60)
        seen.append(clock() - before)

    begun, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=look)
    thread.start()
    begun.wait(60)
    sum(range(1_000_000))
    done.set()
    thread.join()
    assert seen[0] > 0
