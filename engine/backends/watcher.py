"""Who follows a load and may stop it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.cancel import CancelToken
from engine.errors import CancelledError
from engine.events import TierSnapshot


@dataclass(frozen=True, slots=True)
class LoadWatcher:
    """What the steps of a load tell, and ask."""

    on_progress: Callable[[str, float], None]
    """Called with what loading is doing, in words, and how far it is, 0 to 1."""
    on_tiers: Callable[[TierSnapshot], None]
    """Called when a weight block was read or moved, also while the model runs."""
    cancel: CancelToken

    def check(self) -> None:
        """Raise CancelledError when the load is to stop."""
        if self.cancel.cancelled:
            raise CancelledError("loading was stopped")
