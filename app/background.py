"""Run a blocking function beside the event loop, in a daemon thread.

Not the loop's own executor: Python waits for that at exit, so a slow disk would keep the program alive
after the person has quit. Knows threads and loops, nothing of Textual.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Return what `function` returns, or raise what it raises; the event loop runs on meanwhile."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # T itself may be None

    def run() -> None:
        result: T | None = None
        error: Exception | None = None
        try:
            result = function()
        except Exception as caught:  # noqa: BLE001  # handed to the caller, whatever it is
            error = caught
        with suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=run, name="tiercel-background", daemon=True).start()
    return await future
