"""Draws for tests of drafters: greedy, none at all, or ids from a script."""

from __future__ import annotations

from collections.abc import Sequence

from engine.logits import Logits


class NoDraw:
    """Nobody may draw."""

    def __call__(self, logits: Logits, history: Sequence[int], /) -> int:
        raise AssertionError("a draft draws nothing")

    def peek(self, logits: Logits, history: Sequence[int], ahead: int, /) -> int:
        raise AssertionError("looking up peeks at nothing")


class Greedy(NoDraw):
    """Guesses the most probable id, and notes what it was asked with."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], int]] = []
        """History and how far ahead, of each peek."""

    def peek(self, logits: Logits, history: Sequence[int], ahead: int, /) -> int:
        self.asked.append((list(history), ahead))
        return int(logits.all().argmax())


class Scripted(NoDraw):
    """Guesses these ids, whatever the logits."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = token_ids

    def peek(self, logits: Logits, history: Sequence[int], ahead: int, /) -> int:
        return self._token_ids[ahead]
