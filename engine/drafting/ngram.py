"""Drafts by looking up: what followed the same ids earlier in prompt or reply may follow again.

Knows ids only; needs no model and no memory but an index of the ids. The place whose ids before it agree
longest with the last ones is taken, the most recent of equals: where a text is repeated with changes, that is
where the copy goes on. The idea is https://github.com/apoorvumang/prompt-lookup-decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.cancel import CancelToken
from engine.drafting.base import Draw
from engine.drafting.following import n_alike

_SHORTEST, _LONGEST = 2, 4
"""Ids that are indexed together. One alone says too little: it is followed by the same id too seldom."""
_MOST_PLACES = 16
"""Earlier places of the same ids that are compared; texts full of one phrase have thousands."""
_FAR = 32
"""Ids that are compared at most before a place."""
_ENOUGH_ALIKE = 64
"""Ids at the end that stand for all those before them."""

_Key = tuple[int, ...]


class NgramDrafter:
    """Proposes the continuation of the best earlier place."""

    computes = False

    def __init__(self) -> None:
        """Know no ids yet."""
        self._ids: list[int] = []
        self._last: dict[_Key, int] = {}
        """Ids in a row -> the position after their latest occurrence that something follows."""
        self._before: dict[int, list[int]] = {n: [] for n in range(_SHORTEST, _LONGEST + 1)}
        """By length and position after ids in a row: the position after the occurrence before, 0 if none."""

    def draft(self, ids: Sequence[int], n_most: int, draw: Draw, cancel: CancelToken) -> list[int]:
        """Propose up to `n_most` ids; none where the last ids have not been seen before."""
        self._follow(ids)
        place, n_agreeing = self._best_place()
        if not place:
            return []
        # Two ids alike say little, eight that a copy will go on. On prose 4 % of proposals were right where
        # there were always eight of them, and 18 % this way; of a copy with a change, 99 %.
        n = min(n_most, n_agreeing**2 // 4)
        proposed = self._ids[place : place + n]
        while len(proposed) < n:  # they reach the end: a period, which goes on
            proposed += proposed[: n - len(proposed)]
        return proposed

    def _follow(self, ids: Sequence[int]) -> None:
        """Forget what is not in `ids` any more, and take the rest in."""
        n_kept = self._n_kept(ids)
        self._forget(n_kept)
        for token_id in ids[n_kept:]:
            self._note_end()
            self._ids.append(token_id)

    def _n_kept(self, ids: Sequence[int]) -> int:
        """How many of the known ids are in `ids`, too.

        Where the last ones are at their places, so are those before them, or drafts are poorer: comparing all
        would be most of the work.
        """
        end = len(self._ids)
        if end > _ENOUGH_ALIKE and self._ids[-_ENOUGH_ALIKE:] == list(ids[end - _ENOUGH_ALIKE : end]):
            return end
        return n_alike(self._ids, ids)

    def _note_end(self) -> None:
        """The ids at the end are followed by another one now: they can be found from now on."""
        end = len(self._ids)
        for n, before in self._before.items():
            key = tuple(self._ids[-n:])
            before.append(self._last.get(key, 0) if end >= n else 0)
            if end >= n:
                self._last[key] = end

    def _forget(self, n_kept: int) -> None:
        """Undo `_note_end`, latest first, until `n_kept` ids are left."""
        while len(self._ids) > n_kept:
            self._ids.pop()
            end = len(self._ids)
            for n, before in self._before.items():
                earlier = before.pop()
                key = tuple(self._ids[-n:])
                if earlier:
                    self._last[key] = earlier
                elif end >= n:
                    del self._last[key]

    def _best_place(self) -> tuple[int, int]:
        """Position after the earlier ids that agree longest with the last ones, and how many do.

        (0, 0) where there are none.
        """
        for n in range(min(_LONGEST, len(self._ids)), _SHORTEST - 1, -1):
            place = self._last.get(tuple(self._ids[-n:]), 0)
            if place:
                return (place, n) if n < _LONGEST else self._longest_from(place)
        return 0, 0

    def _longest_from(self, place: int) -> tuple[int, int]:
        """Of this place and those before it, the one that agrees longest, and how many ids do."""
        best, most = place, 0
        for _ in range(_MOST_PLACES):
            n_agreeing = self._n_agreeing(place)
            if n_agreeing > most:
                best, most = place, n_agreeing
            place = self._before[_LONGEST][place]
            if not place or most == _FAR:
                break
        return best, most

    def _n_agreeing(self, place: int) -> int:
        """How many ids before `place` are the last ones, `_LONGEST` to `_FAR`."""
        ids, n = self._ids, _LONGEST
        while n < min(_FAR, place) and ids[place - 1 - n] == ids[-1 - n]:
            n += 1
        return n
