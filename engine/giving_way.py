"""Long loops that give way: Python lets one thread run at a time, and the one that draws must not wait.

Python itself would let the two take turns, and a frame would take two or three times as long. Knows threads;
does not know what the loops do. Called by what reads vocabularies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

T = TypeVar("T")

_ITEMS: Final = 1024
"""Items between two looks; about a millisecond."""
_BUSY_S: Final = 0.0001
"""Processor time from which on the main thread counts as at work."""
_REST_S: Final = 0.004
"""How long it is left alone then; a frame takes a few times as long."""


def giving_way(items: Iterable[T]) -> Iterator[T]:
    """Hand out `items`, resting now and then while the main thread is at work."""
    iterator, main_cpu_s = iter(items), _clock_of_main()
    seen = main_cpu_s()
    while some := tuple(islice(iterator, _ITEMS)):
        yield from some
        if main_cpu_s() - seen > _BUSY_S:
            time.sleep(_REST_S)
        seen = main_cpu_s()


def _clock_of_main() -> Callable[[], float]:
    """Return what tells the processor seconds of the main thread; 0 in that thread, or without a clock."""
    main = threading.main_thread()
    if main is threading.current_thread() or main.ident is None or not hasattr(time, "pthread_getcpuclockid"):
        return lambda: 0.0
    clock = time.pthread_getcpuclockid(main.ident)
    return lambda: time.clock_gettime(clock)
