"""What a pass on a GPU leaves behind: rows of hidden states, and the logits that follow them.

Knows which rows belong to which pass; where they are computed, and how an id is drawn, is the backend's
business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.backends.base import Float32Array, TokenIds
from engine.logits import DrawRequest
from engine.skipping.skip_choice import SkipSet
from kernels.cuda.device import Array


@dataclass(slots=True, eq=False)
class DevicePass:
    """What one call of `layers` computed."""

    token_ids: TokenIds
    end: int = 0
    """Position after it."""
    states: Array | None = None
    """[T, D] f32; None where the logits of its rows are there instead."""
    on_host: Float32Array | None = None
    """The same where the processor has the head."""
    with_logits: range = range(0)
    """Rows whose logits are in the first rows of the GPU's logits."""
    best: dict[int, int] = field(default_factory=dict)
    """By row: the id of its best logit, as far as it was looked for; negative where there is none."""

    def position(self, row: int) -> int:
        """After this row."""
        return self.end - len(self.token_ids) + row + 1


class DeviceHidden:
    """Rows of the hidden states of one pass; they hold until the next one."""

    def __init__(self, of: DevicePass, first: int, last: int) -> None:
        """Rows first..last-1."""
        self.of, self.first, self.last = of, first, last

    def __len__(self) -> int:
        """How many rows."""
        return self.last - self.first

    def __getitem__(self, rows: slice) -> DeviceHidden:
        """Some of them, next to each other."""
        first, last, _ = rows.indices(len(self))
        return DeviceHidden(self.of, self.first + first, self.first + max(first, last))


class Holder(Protocol):
    """Who has the rows, and the logits that follow them."""

    def read(self, rows: DeviceHidden) -> Float32Array:
        """Logits [V] of the first of these rows."""
        ...

    def draw(self, rows: DeviceHidden, request: DrawRequest, ahead: SkipSet | None) -> int | None:
        """Draw from them; None where that is not possible there."""
        ...


class DeviceLogits:
    """`Logits` [V] after the first of some rows of hidden states; they hold until the next pass."""

    def __init__(self, holder: Holder, rows: DeviceHidden, ahead: SkipSet | None) -> None:
        """Of the first of `rows`; those behind it will be asked for next. `ahead` is as in `next_logits`."""
        self._holder, self._rows, self._ahead = holder, rows, ahead

    def all(self) -> Float32Array:
        """Give them on the host. Raises KernelError when they are not numbers."""
        return self._holder.read(self._rows)

    def draw(self, request: DrawRequest) -> int | None:
        """Draw an id, and begin the step that follows it where it is known; None where the kernels cannot."""
        return self._holder.draw(self._rows, request, self._ahead)
