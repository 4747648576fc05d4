"""How far two lists of ids are alike, quickly: sessions and drafters so find out what of theirs holds."""

from __future__ import annotations

from collections.abc import Sequence


def n_alike(ids: list[int], others: Sequence[int]) -> int:
    """Length of the longest common beginning.

    Whole stretches are compared, five times as quick as id by id: this is done for every draft, and nearly
    all ids of a long conversation are alike.
    """
    low, high = 0, min(len(ids), len(others))
    if not isinstance(others, list):
        others = list(others)
    if ids[:high] == others[:high]:
        return high
    while high - low > 1:  # alike before `low`, not all alike before `high`
        middle = (low + high) // 2
        if ids[low:middle] == others[low:middle]:
            low = middle
        else:
            high = middle
    return low
