"""What need not be computed again: the ids in the KV cache, and the texts whose ids are known.

The next prompt starts with the last one in nearly every turn. Its text is matched against the texts seen, so
that ids drawn by the model are kept as they were (encoding their text again may give others); its ids are
matched against the cache. Texts only ever find ids: what is reused is decided by comparing ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.kv_cache import KVCache


class KnownText(NamedTuple):
    """The beginning of a prompt whose ids are known."""

    text: str
    ids: tuple[int, ...]


@dataclass(slots=True)
class Session:
    """One KV cache and the ids in it."""

    kv: KVCache
    ids: list[int] = field(default_factory=list)
    """What the cache holds at positions 0 onwards."""
    _known: deque[KnownText] = field(default_factory=lambda: deque(maxlen=64))

    def rewind(self, token_ids: Sequence[int]) -> int:
        """Keep the longest common beginning with the next prompt, and return its length.

        The prompt's last id is never kept: computing it again gives the logits to draw from.
        """
        limit = min(len(self.ids), len(token_ids) - 1)
        n_common = next((i for i in range(limit) if self.ids[i] != token_ids[i]), limit)
        del self.ids[n_common:]
        return n_common

    def remember(self, text: str, token_ids: Sequence[int]) -> None:
        """Keep the ids of a text (a prompt and the reply to it) for prompts that start with it."""
        self._known.append(KnownText(text, tuple(token_ids)))

    def recall(self, text: str) -> KnownText:
        """The longest known beginning of `text`; an empty one when there is none."""
        matches = (known for known in self._known if text.startswith(known.text))
        return max(matches, key=lambda known: len(known.text), default=KnownText("", ()))
