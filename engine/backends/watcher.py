"""Who follows a load and may stop it."""

from __future__ import annotations

from collections.abc import Callable, Set
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
    on_plan: Callable[[Set[int]], None] = lambda indices: None
    """Called once it is known which blocks come from the file to stay, by index."""
    on_taken: Callable[[int], None] = lambda n_bytes: None
    """Called when so many bytes of them have come."""
    on_measure: Callable[[], None] = lambda: None
    """Called before the machine is measured, which nothing else should work then."""

    def check(self) -> None:
        """Raise CancelledError when the load is to stop."""
        if self.cancel.cancelled:
            raise CancelledError("loading was stopped")
