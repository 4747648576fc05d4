"""Stop strings in text that arrives in pieces.

Knows text only. Whatever might be the beginning of a stop string is held back until it is decided.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on up to the first stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Watch for any of `stops`; empty strings are ignored."""
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.met = False
        """Whether a stop string was met; nothing passes from then on."""

    def push(self, text: str) -> str:
        """Add text and return what may be shown now."""
        if self.met:
            return ""
        text = self._held + text
        starts = [start for start in (text.find(stop) for stop in self._stops) if start >= 0]
        if starts:
            self.met = True
            self._held = ""
            return text[: min(starts)]
        split = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[split:]
        return text[:split]

    def flush(self) -> str:
        """Return what was held back: no more text comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
