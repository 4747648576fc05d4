"""What a backend does for the model: three steps over arrays, and room for keys and values.

Knows shapes; does not know tokens as text, sampling or sessions. A backend owns arithmetic, never policy.
Letters: T tokens of this call, D hidden size, V vocabulary, R rows asked for.

A backend is opened by `select`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from engine.cancel import CancelToken
from engine.kv_cache import KVCache
from engine.logits import Logits
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.tiers.placement import Placement

Float32Array = npt.NDArray[np.float32]
TokenIds = npt.NDArray[np.int32]
CancelFlag = npt.NDArray[np.int32]
"""One element: 0 goes on, anything else stops the running call within a tile. Any thread may write it."""


def cancel_flag(token: CancelToken) -> CancelFlag:
    """The token's number as an array over the same memory."""
    return np.frombuffer(token.flag, np.int32)


class Hidden(Protocol):
    """Hidden states [T, D], wherever they are; what is in a GPU's memory holds until the next `embed`."""

    def __len__(self) -> int:
        """T."""
        ...

    def __getitem__(self, rows: slice, /) -> Hidden:
        """Some of the rows."""
        ...


X = TypeVar("X")
"""The backend's own kind of hidden states: an array, or `Hidden` on a GPU."""
C = TypeVar("C", bound=KVCache)
"""The backend's own kind of cache."""


class Backend(Protocol[X, C]):
    """The arithmetic of one loaded model. One thread calls it."""

    @property
    def name(self) -> str:
        """Backend and variant, such as 'cpu avx512' or 'numpy'."""
        ...

    @property
    def reason(self) -> str:
        """Why this backend and variant computes, in words."""
        ...

    @property
    def threads(self) -> int:
        """Threads it computes on."""
        ...

    @property
    def chunk(self) -> int:
        """Most tokens of one pass."""
        ...

    @property
    def tiers(self) -> Placement | None:
        """Where its weights are; None when they are mapped from the file."""
        ...

    def new_kv(self, max_context: int) -> C:
        """Reserve a cache for this many positions."""
        ...

    def embed(self, token_ids: TokenIds) -> X:
        """Look up the ids, [T] int32 -> [T, D], the embedding scale applied."""
        ...

    def layers(
        self,
        first: int,
        last: int,
        x: X,
        start_pos: int,
        kv: C,
        cancel: CancelToken,
        skip: SkipSet = NOTHING,
    ) -> None:
        """Run layers first..last-1 over x [T, D] in place (C-contiguous), at positions start_pos onwards.

        Blocks in `skip` are left out (x stays as it is there), and what they weigh is not moved. Writes keys
        and values of those positions into kv, for layers whose attention is not skipped; what kv held after
        them is lost. Raises CancelledError when told to stop, StreamError when weights cannot be read: x and
        the cache from start_pos on are then undefined.
        """
        ...

    def states(self, x: X) -> Float32Array:
        """Hidden states [T, D] on the host, as the last `layers` left them."""
        ...

    def head(self, x: X, cancel: CancelToken) -> Float32Array:
        """Final norm and output projection of the rows given, [R, D] -> logits [R, V]; x is left alone.

        Raises as `layers`.
        """
        ...

    def next_logits(self, x: X, cancel: CancelToken, ahead: SkipSet | None = None) -> Logits:
        """Logits [V] of the last row of x, left where they were computed. Raises as `layers`.

        With a set the caller is going to run the id that it draws from them with that set left out, as the
        next pass: a GPU may begin it. None: what follows is not known.
        """
        ...

    def each_logits(self, x: X, cancel: CancelToken) -> Sequence[Logits]:
        """Logits [V] of every row of x, to be drawn from in that order, before the next pass.

        Raises as `layers`.
        """
        ...

    def close(self) -> None:
        """Stop its threads and let go of the weights; idempotent."""
        ...


AnyBackend: TypeAlias = Backend[Any, Any]
"""A backend to those who hand its hidden states and caches back to it and do not look inside."""
