"""The model on a GPU: whole passes where all of it is in its memory, else passes that it shares.

Knows which pass a row of hidden states or logits belongs to, and when a step that was begun ahead is the one
that is asked for. What a pass computes is the business of `cuda_step` and `cuda_prompt`, and of `cuda_mixed`
where blocks are elsewhere that it does not leave out.

Where the GPU holds all that a pass needs the host's work for a reply costs no time, because the GPU has work
meanwhile: when an id is drawn, the step that follows it is put on the GPU before the id is known here, if the
caller has said what that step will leave out. `layers` then finds its step under way. Where another id comes,
another position or other blocks, that step was in vain: what it wrote lies where the next pass writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np

from engine import errors
from engine.backends.base import Float32Array, TokenIds
from engine.backends.cuda_drawing import is_plain
from engine.backends.cuda_mixed import MixedPasses, TieredKV
from engine.backends.cuda_model import DeviceModel
from engine.backends.cuda_pass import DeviceHidden, DeviceLogits, DevicePass
from engine.backends.cuda_weights import BlockMatrices
from engine.cancel import CancelToken
from engine.config import SamplingParams
from engine.errors import CancelledError
from engine.kv_cache import KVCache
from engine.logits import DrawRequest, HostLogits, Logits, Penalties, checked, not_numbers
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.tiers.gpu_tiers import GpuTiers
from kernels.cuda.device import Array, Device, Event, Kernel
from kernels.cuda.sampling import MOST_IDS, begin_step, continue_step
from kernels.errors import DeviceError, DeviceMemoryError

P = ParamSpec("P")
R = TypeVar("R")


def _told(call: Callable[P, R]) -> Callable[P, R]:
    """Turn what the GPU refuses or fails at into the engine's own error."""

    @wraps(call)
    def calling(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except DeviceMemoryError as error:
            raise errors.DeviceError(
                f"the GPU's memory is full: {error}; close the program that has taken it, or load the model "
                "with less of it (--vram-budget)"
            ) from error
        except DeviceError as error:
            raise errors.DeviceError(
                f"the GPU failed: {error}; start Tiercel again, or let the CPU compute (--device cpu)"
            ) from error

    return calling


class _Ahead(NamedTuple):
    """A step that was begun before it was asked for."""

    token_id: int
    position: int
    kv: TieredKV
    skip: SkipSet


class OwnedDevice(Device, Protocol):
    """A device that is given back in the end."""

    def close(self) -> None:
        """Free what it has beside arrays and graphs, which went before."""
        ...


class GpuTimes:
    """What steps and draws took on the GPU."""

    def __init__(self) -> None:
        """Begin with none."""
        self.spans: list[tuple[Event, Event]] = []
        """Before and after each, in order; `end.since(start)` waits and tells the seconds."""


class CudaBackend:
    """`Backend` over kernels/cuda, and over the C kernels for blocks that the processor computes."""

    def __init__(
        self,
        device: OwnedDevice,
        model: DeviceModel,
        tiers: GpuTiers[BlockMatrices],
        mixed: MixedPasses | None,
        kv: TieredKV,
        *,
        threads: int,
        reason: str,
    ) -> None:
        """Compute `model`, whose weights `tiers` brings; closes `device` in the end.

        Without `mixed` all weights are to stay on the GPU. `kv` is reserved with the rest, for the first who
        asks.
        """
        self.name = f"cuda sm_{device.compute_capability}"
        if not tiers.where.wants_whole:
            self.name += " + cpu"
        self.reason = reason
        self.threads = threads
        self.tiers = tiers
        self.chunk = model.layout.chunk
        self.device, self._model, self._mixed = device, model, mixed
        self._new_kv: TieredKV | None = kv
        self._pass: DevicePass | None = None
        """The last one, as long as its rows are there."""
        self._kv = kv
        """Of the last pass."""
        self._ahead: _Ahead | None = None
        self._times: GpuTimes | None = None
        """None while nobody asks."""

    @_told
    def new_kv(self, max_context: int) -> TieredKV:
        """Reserve a cache for this many positions. Raises DeviceError where there is no room."""
        first, self._new_kv = self._new_kv, None
        if first is not None and first.max_context == max_context:
            return first
        kv = self._model.attention.new_kv(max_context)
        kv.fill(self.device)
        if self._mixed is None:
            return TieredKV(kv, None, 0)
        return self._mixed.with_host(kv, max_context)

    def embed(self, token_ids: TokenIds) -> DeviceHidden:
        """Take the ids, [T]; they are looked up on the GPU when their pass runs."""
        return DeviceHidden(DevicePass(token_ids), 0, len(token_ids))

    @_told
    def layers(
        self,
        first: int,
        last: int,
        x: DeviceHidden,
        start_pos: int,
        kv: TieredKV,
        cancel: CancelToken,
        skip: SkipSet = NOTHING,
    ) -> None:
        """Run all layers over x but for `skip`, see `Backend.layers`; runs of fewer are not supported."""
        model, ids = self._model, x.of.token_ids
        if (first, last) != (0, model.n_layers):
            raise ValueError(f"layers {first} to {last} of {model.n_layers}: on a GPU all run together")
        if cancel.cancelled:
            raise CancelledError("stopped")
        ahead, self._ahead, self._pass = self._ahead, None, None
        runs = self.tiers.begin_pass(len(ids), skip)
        x.of.end = start_pos + len(ids)
        if self._mixed is None:  # all are to come: there is nobody else to compute
            self.tiers.ready(self.tiers.where.blocks, cancel)
        if self._mixed is not None and not self.tiers.where.holds_all_but(skip):
            with self._timed():
                x.of.states, x.of.on_host = self._mixed.run(runs, ids, start_pos, kv, cancel, skip)
        elif len(ids) > MOST_IDS:
            begin_step(self.device, model.state, start_pos, ids[:1].tolist())
            assert model.prompt is not None, "chunks are no longer than planned for"
            x.of.states = model.prompt.run(ids, kv.device, cancel, skip)
        else:
            if len(ids) > 1 or ahead != _Ahead(int(ids[0]), start_pos, kv, skip):
                begin_step(self.device, model.state, start_pos, ids.tolist())
                with self._timed():
                    model.step.run(len(ids), kv.device, skip)
            x.of.with_logits = range(len(ids))
        self._pass, self._kv = x.of, kv

    @_told
    def states(self, x: DeviceHidden) -> Float32Array:
        """Hidden states [T, D] on the host, after all layers."""
        self._check_present(x)
        if x.of.on_host is not None:
            return x.of.on_host[x.first : x.last].copy()  # the next pass writes there
        states = self._model.step.x if x.of.states is None else x.of.states
        return self._download(states[x.first : x.last])

    @_told
    def head(self, x: DeviceHidden, cancel: CancelToken) -> Float32Array:
        """Final norm and output projection, [R, D] -> [R, V]."""
        self._check_present(x)
        if x.of.on_host is not None:
            return self._host_head(x.of.on_host[x.first : x.last], cancel)
        parts = []
        for first in range(0, len(x), MOST_IDS):
            if cancel.cancelled:
                raise CancelledError("stopped")
            rows = x[first : first + MOST_IDS]
            parts.append(self._download(self._logits(rows, len(rows))))
        return np.concatenate(parts)

    @_told
    def next_logits(self, x: DeviceHidden, cancel: CancelToken, ahead: SkipSet | None = None) -> Logits:
        """Logits [V] of the last row of x; they stay on the GPU where the head is there."""
        self._check_present(x)
        last = x[len(x) - 1 :]
        if x.of.on_host is not None:
            return HostLogits(self._host_head(x.of.on_host[last.first : last.last], cancel)[0])
        self._logits(last, 1)
        return DeviceLogits(self, last, ahead)

    @_told
    def each_logits(self, x: DeviceHidden, cancel: CancelToken) -> Sequence[Logits]:
        """Logits [V] of every row of x; where the head is on the GPU they are computed a few rows at a time.

        Those rows wait for the first of them to be drawn from or read: a reply that goes another way before
        costs nothing for the others.
        """
        self._check_present(x)
        if x.of.on_host is not None:
            return [HostLogits(row) for row in self._host_head(x.of.on_host[x.first : x.last], cancel)]
        return [DeviceLogits(self, x[row:], None) for row in range(len(x))]

    def _logits(self, rows: DeviceHidden, n_rows: int) -> Array:
        """Logits [n_rows, V] of the first of these rows, up to 8, in the GPU's memory.

        Where they are not there, up to 8 of `rows` take the place of those that are.
        """
        of, step = rows.of, self._model.step
        if not (rows.first in of.with_logits and rows.first + n_rows <= of.with_logits.stop):
            assert of.states is not None, "a step has logits of all its rows"
            of.with_logits = range(rows.first, min(rows.first + MOST_IDS, rows.last))
            step.head(of.states[of.with_logits.start : of.with_logits.stop])
        first = rows.first - of.with_logits.start
        return step.logits[first : first + n_rows]

    def _host_head(self, x: Float32Array, cancel: CancelToken) -> Float32Array:
        assert self._mixed is not None, "hidden states are on the host only where the processor computes"
        logits = np.empty((len(x), self._model.step.logits.shape[1]), np.float32)
        self._mixed.head(x, logits, cancel)
        return logits

    def close(self) -> None:
        """Let go of everything on the GPU; the backend cannot be used afterwards."""
        if "_model" not in self.__dict__:
            return
        self.tiers.close()
        with suppress(DeviceError):  # one that has failed gives everything back, too
            self.device.synchronize()
        for name in ("_model", "_mixed", "_new_kv", "_kv", "_pass", "_ahead"):
            del self.__dict__[name]
        with suppress(DeviceError):
            self.device.close()

    # -- for the benchmark

    @contextmanager
    def timed(self) -> Iterator[GpuTimes]:
        """Have steps and draws timed on the GPU meanwhile; passes of prompts are not."""
        self._times = GpuTimes()
        try:
            yield self._times
        finally:
            self._times = None

    def step_launches(
        self, kv: KVCache, start_pos: int, n_tokens: int = 1
    ) -> list[tuple[Kernel, Callable[[], None]]]:
        """A step of so many tokens from there on, to an id drawn: each kernel, and what launches it."""
        assert isinstance(kv, TieredKV), "it came from `new_kv`"
        model = self._model
        begin_step(self.device, model.state, start_pos, [0] * n_tokens)
        greedy = DrawRequest(SamplingParams(temperature=0), Penalties(_NO_IDS, _NO_IDS), 0.0)
        launches = [
            *model.step.launches(n_tokens, kv.device),
            *model.drawing.launches(model.step.logits[0], greedy),
        ]
        return [(launch.kernel, partial(launch.on, self.device)) for launch in launches]

    # -- for `DeviceLogits`

    @_told
    def read(self, rows: DeviceHidden) -> Float32Array:
        """Logits [V] of the first of these rows."""
        self._check_present(rows)
        return checked(self._download(self._logits(rows, 1)[0]))

    @_told
    def draw(self, rows: DeviceHidden, request: DrawRequest, ahead: SkipSet | None) -> int | None:
        """Draw from the logits of the first of these rows, and begin the step that leaves `ahead` out."""
        self._check_present(rows)
        model, of = self._model, rows.of
        if not model.drawing.possible(request):
            return None
        if ahead is None and is_plain(request):
            return self._best(rows)
        logits = self._logits(rows, 1)[0]
        with self._timed():
            drawn = model.drawing.begin(logits, request)
        position = of.position(rows.first)
        # Behind a row in the middle lies what the pass has computed of the rows after it.
        if ahead is None or not position == of.end < self._kv.max_context:
            return model.drawing.finish(drawn)
        if not self.tiers.where.holds_all_but(ahead):
            return model.drawing.finish(drawn)
        self._pass = None  # the step that follows writes where its logits are
        with self._timed():
            continue_step(self.device, model.state, position)
            model.step.run(1, self._kv.device, ahead)
        token_id = model.drawing.finish(drawn)
        self._ahead = _Ahead(token_id, position, self._kv, ahead)
        return token_id

    def _best(self, rows: DeviceHidden) -> int:
        """The id of the best logit of the first of these rows; that of the next ones is found meanwhile."""
        of, drawing = rows.of, self._model.drawing
        if rows.first not in of.best:
            self._logits(rows, 1)
            found = rows[: of.with_logits.stop - rows.first]
            with self._timed():
                drawn = drawing.begin_best(self._logits(found, len(found)))
            of.best |= zip(
                range(found.first, found.last), drawing.finish_best(drawn, len(found)), strict=True
            )
        if of.best[rows.first] < 0:
            raise not_numbers()
        return of.best[rows.first]

    def _check_present(self, x: DeviceHidden) -> None:
        if x.of is not self._pass:
            raise RuntimeError("these rows were computed in an earlier pass and are no longer there")

    def _download(self, array: Array) -> Float32Array:
        host: Float32Array = self.device.download(array)
        return host

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Measure what is put on the GPU meanwhile, where somebody asks."""
        if self._times is None:
            yield
            return
        start = self.device.record(timing=True)
        yield
        self._times.spans.append((start, self.device.record(timing=True)))


_NO_IDS = np.empty(0, np.int32)
