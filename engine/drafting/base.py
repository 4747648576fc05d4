"""What a drafter does for the loop: propose ids that may follow, cheaply.

Knows ids; does not know how they are verified. What a drafter proposes changes no reply, only its speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.cancel import CancelToken
from engine.logits import Logits


class Draw(Protocol):
    """The id that follows, from the logits [V] after all ids so far: a `Sampler`, or a script."""

    def __call__(self, logits: Logits, history: Sequence[int], /) -> int:
        """Draw the id that follows `history`."""
        ...

    def peek(self, logits: Logits, history: Sequence[int], ahead: int, /) -> int:
        """The id that would be drawn from these logits as the `ahead`-th draw from now, 0 being the next one.

        Draws nothing: what is drawn later is the same as without it. A drafter's logits are drawn from with
        the random number that the verified ones will be drawn with, so that alike distributions give the same
        id.
        """
        ...


class Drafter(Protocol):
    """One way to propose ids."""

    @property
    def computes(self) -> bool:
        """Whether a draft costs passes; one that only looks ids up costs next to nothing."""
        ...

    def draft(self, ids: Sequence[int], n_most: int, draw: Draw, cancel: CancelToken) -> list[int]:
        """Propose up to `n_most` ids to follow `ids`, which are the session's and the one drawn last.

        Its own state follows `ids`, whatever was accepted of earlier drafts. Raises CancelledError.
        """
        ...
