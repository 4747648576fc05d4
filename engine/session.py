"""What need not be computed again: the ids in the KV cache, and the texts whose ids are known.

Keys and values that were computed with blocks left out serve only passes that leave out at least those: the
others would find none where attention was skipped, and approximate ones everywhere.

The next prompt starts with the last one in nearly every turn. Its text is matched against the texts seen, so
that ids drawn by the model are kept as they were (encoding their text again may give others); its ids are
matched against the cache. Texts only ever find ids: what is reused is decided by comparing ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.drafting.following import n_alike
from engine.kv_cache import KVCache
from engine.skipping.skip_choice import NOTHING, SkipSet


class KnownText(NamedTuple):
    """The beginning of a prompt whose ids are known."""

    text: str
    ids: tuple[int, ...]


@dataclass(slots=True)
class Session:
    """One KV cache and the ids in it."""

    kv: KVCache
    ids: list[int] = field(default_factory=list)
    """What the cache holds at positions 0 onwards; `extend` and `cut` change it."""
    _left_out: list[tuple[int, SkipSet]] = field(default_factory=list)
    """Positions from which on blocks were left out, and which, until the next entry; ascending."""
    _known: deque[KnownText] = field(default_factory=lambda: deque(maxlen=64))

    def extend(self, token_ids: Sequence[int], skip: SkipSet = NOTHING) -> None:
        """Note that the next positions hold these ids, computed with blocks left out."""
        if token_ids and skip != (self._left_out[-1][1] if self._left_out else NOTHING):
            self._left_out.append((len(self.ids), skip))
        self.ids.extend(token_ids)

    def cut(self, n_ids: int) -> None:
        """Keep the first `n_ids` ids only."""
        del self.ids[n_ids:]
        while self._left_out and self._left_out[-1][0] >= len(self.ids):
            self._left_out.pop()

    def serving(self, skip: SkipSet) -> int:
        """How many ids from the beginning are right for passes that leave `skip` out."""
        wrong = (start for start, skipped in self._left_out if not skipped <= skip)
        return next(wrong, len(self.ids))

    def common(self, token_ids: Sequence[int]) -> int:
        """Length of the longest common beginning of these ids and what the cache holds."""
        return n_alike(self.ids, token_ids)

    def rewind(self, token_ids: Sequence[int], skip: SkipSet = NOTHING) -> int:
        """Keep the longest common beginning with the next prompt that serves, and return its length.

        The prompt's last id is never kept: computing it again gives the logits to draw from.
        """
        n_kept = min(self.common(token_ids), self.serving(skip), len(token_ids) - 1)
        self.cut(n_kept)
        return n_kept

    def remember(self, text: str, token_ids: Sequence[int]) -> None:
        """Keep the ids of a text (a prompt and the reply to it) for prompts that start with it."""
        self._known.append(KnownText(text, tuple(token_ids)))

    def recall(self, text: str) -> KnownText:
        """The longest known beginning of `text`; an empty one when there is none."""
        matches = (known for known in self._known if text.startswith(known.text))
        return max(matches, key=lambda known: len(known.text), default=KnownText("", ()))
