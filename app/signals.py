"""End on SIGTERM and SIGHUP, also while nobody reads what the terminal is sent.

Textual writes its frames through a bounded queue. When the terminal takes no more (a stalled connection),
the event loop stands still in it, and with it every handler that the loop would run. Knows signals and the
loop, not the application.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

GRACE_S: Final = 4.0
"""Seconds that the ordinary way to end may take."""


def end_on_signals(end: Callable[[int], None], save: Callable[[], object]) -> None:
    """On a signal call `end` with its number, in the running loop.

    Where the process still lives GRACE_S later, call `save` in a thread of its own and leave.
    """
    loop = asyncio.get_running_loop()

    def leave(number: int) -> None:
        with suppress(Exception):  # whatever it is, the process must go
            save()
        os._exit(128 + number)

    def obey(number: int, _: object) -> None:
        deadline = threading.Timer(GRACE_S, leave, (number,))
        deadline.daemon = True
        deadline.start()
        with suppress(RuntimeError):  # the loop has ended: the rest is on its way
            loop.call_soon_threadsafe(end, number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, obey)
