"""Ctrl+c while native code computes: the work runs in a thread, and the main thread waits for either."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from engine import CancelToken

T = TypeVar("T")

_STOP_S = 2.0
"""How long stopping may take; the thread is a daemon and ends with the process."""


def run_interruptible(work: Callable[[CancelToken], T]) -> T:
    """Return or raise what `work` does; on ctrl+c cancel it and raise KeyboardInterrupt."""
    token = CancelToken()
    results: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(work(token))
        except BaseException as error:  # noqa: BLE001  raised again in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        token.cancel()
        thread.join(_STOP_S)
        raise
    if errors:
        raise errors[0]
    return results[0]
