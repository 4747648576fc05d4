"""The weights of a model on a GPU: in its memory, in RAM, or in the file, and on their way between them.

Knows where every block is, where the plan wants it, and who computes it now; does not compute, and does not
choose (`gpu_planner`). Loading and moving are one thing: blocks come to where the plan wants them while
passes run. A pass that needs a block before it is there waits for that block only.

One thread uses it, the engine's: it alone gives work to the GPU. Between and during passes it takes in what
reader threads have read. Only between passes (`pump`, `begin_pass`) is anything taken away from where a pass
that is under way would look for it.

    file --readers--> page-locked slot --link--> VRAM        to stay
    file --readers--> RAM, then page-locked                  to stay: for the processor, or the staging ring
    RAM  --link--> slot of the staging ring                  for one use
    file --disk threads--> host ring --link--> landing slot  for one use
    RAM  --link--> VRAM                                      promotion
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from engine.cancel import CancelToken
from engine.errors import BudgetError, CancelledError
from engine.events import BlockPlace, Executor, GpuFacts, Tier, TierEventKind, TierSnapshot
from engine.tiers.blocks import Block, BlockKind, slot_bytes_for
from engine.tiers.budget import shown_bytes
from engine.tiers.link import Link, Located, Sent
from engine.tiers.loader import Arrival, Loader
from engine.tiers.placement import Place, place_of
from engine.tiers.planner import Plan, least_memory, plan
from engine.tiers.pressure import VramPressure
from engine.tiers.route import Run, route
from engine.tiers.staging import Staging
from engine.tiers.store import TieredWeights
from engine.tiers.streamer import StreamStats
from engine.tiers.tier_plan import TierPlan
from engine.tiers.wishes import PlaceRule
from kernels.cuda.device import Device, Event
from kernels.errors import DeviceError, DeviceMemoryError

Bytes = npt.NDArray[np.uint8]
M = TypeVar("M", bound=Located)
"""A layer block's matrices on the GPU."""
M_co = TypeVar("M_co", bound=Located, covariant=True)

_IN_COPY = 2
"""Slots that the GPU copies from: while one copy runs, the next one waits behind it."""
_MOVING_BYTES = 1 << 30
"""Promoted at a time, so that what a pass needs does not wait long behind it on the link."""
_AT_ONCE = 8
"""Arrivals that are taken in at a time: a pass that waits for one block does not wait for all."""
_NO_MEMORY = "memory ran out: some blocks are read from disk instead; close other programs"
_POLL_S = 0.02
_SHOW_S = 0.05


class GpuMemory(Protocol[M_co]):
    """Where a model's blocks go on a GPU."""

    def places(self, block: Block) -> Mapping[str, Place]:
        """Where the tensors of a block that has memory there go."""
        ...

    def matrices(self, block: Block) -> M_co:
        """Those of a layer block that has memory there."""
        ...

    def in_slot(self, slot: int, block: Block) -> M_co:
        """Those of a layer block that is in this slot of the ring; -1 is the landing slot."""
        ...

    def add(self, block: Block) -> None:
        """Reserve memory for a block. Raises DeviceMemoryError."""
        ...

    def drop(self, block: Block) -> None:
        """Give the memory of a block back."""
        ...

    def make_ring(self, slots: int, slot_bytes: int, landing: bool) -> None:
        """Have at least these slots, if they are not there yet. Raises DeviceMemoryError."""
        ...


class Moved(Exception):
    """A pass needs a block for which there is no room before others have left: it has to begin anew."""


class Budgets(NamedTuple):
    """What the model may take; bytes."""

    vram: int
    """Of the GPU, everything counted."""
    ram: int
    """For weights and ring in RAM, and keys and values there."""


@dataclass(slots=True)
class _Coming:
    """A block that is being read."""

    block: Block
    into: list[Bytes] | None
    """Memory in RAM; None where it goes on to the GPU."""
    left: int
    """Bytes that have not arrived."""
    attempt: int
    """In which it was asked for."""
    error: Exception | None = None

    @property
    def failed(self) -> bool:
        """Whether nothing more comes of it, and it is not whole."""
        return self.error is not None and self.left <= 0


@dataclass(slots=True)
class _Copying:
    """A run of rows on the way from a page-locked slot to the GPU."""

    index: int
    n_bytes: int
    slot: int
    ended: Sent


@dataclass(slots=True)
class _Stalls:
    """Of copies."""

    copy_s: float = 0.0
    stall_s: float = 0.0
    last_pass: tuple[tuple[int, float], ...] = ()


class _Shown(NamedTuple):
    """The blocks as they were shown last."""

    version: int
    below: tuple[BlockPlace, ...]
    blocks: tuple[BlockPlace, ...]
    vram_bytes: int
    copied_bytes: int
    """For every decode step."""


class GpuTiers(Generic[M]):
    """`Placement` of a model of which a GPU computes at least a part."""

    def __init__(
        self,
        device: Device,
        gpu: GpuFacts,
        memory: GpuMemory[M],
        link: Link,
        host: TieredWeights,
        loader: Loader,
        plan: TierPlan,
        budgets: Budgets,
        *,
        h2d_rate: float | None,
        host_kv: int,
        rules: tuple[PlaceRule, ...],
        replan: Callable[[Budgets, Sequence[PlaceRule]], TierPlan],
        vram_use: Callable[[], tuple[int, int]],
        on_change: Callable[[TierSnapshot], None],
    ) -> None:
        """Know where everything goes; `begin` lets it come. Closes `host` and `loader` in the end.

        `memory` has room for the blocks of `plan`, `host` has been planned for the others; `host_kv` bytes of
        `budgets.ram` are not for weights. `replan` is asked when budgets or `rules` change, `vram_use` for
        the bytes of the GPU that are free, and that are allocated here. `on_change` is called by the engine's
        thread.
        """
        self._device, self._gpu, self._memory, self._link = device, gpu, memory, link
        self.host, self._loader = host, loader
        self.blocks = host.blocks
        self.head_blocks = [block for block in self.blocks if block.kind is BlockKind.HEAD]
        self.plan, self.budgets = plan, budgets
        self._h2d_rate, self._replan, self._on_change = h2d_rate, replan, on_change
        self._host_kv = host_kv
        self.rules = rules
        self._vram_use = vram_use
        self._pressure = VramPressure(vram_use)
        self._in_vram: set[int] = set()
        """Blocks that are there."""
        self._coming: dict[int, _Coming] = {}
        self._copying: deque[_Copying] = deque()
        self._left_to_copy: dict[int, int] = {}
        """Bytes of blocks on the way to the GPU that are not there yet."""
        self._to_promote: deque[int] = deque()
        self._promoting: deque[tuple[int, Sent]] = deque()
        self._copied: frozenset[int] = frozenset()
        """Blocks that are copied for every step until they have been promoted."""
        self._staging = self._new_staging()
        self._landed: Event | None = None
        """After the last use of the landing slot."""
        host.before_evict = self._wait_for_copies
        self._stalls = _Stalls()
        self._passes = 0
        self._attempts = 0
        """Passes, and whatever else needs what could not be read: each tries it anew."""
        self._version = 0
        """Counts what changes a route."""
        self._routes: dict[bool, tuple[tuple[object, ...], tuple[Run, ...]]] = {}
        self._shown: _Shown | None = None
        self._active: int | None = None
        self._shown_at = 0.0
        self._settled = False
        self._runs: tuple[Run, ...] = ()
        """The way of the pass that is under way."""

    # -- loading and moves

    def begin(self, to_come: Mapping[int, list[Bytes]]) -> None:
        """Let all blocks come in order of use; those in RAM into the memory that `host` has reserved."""
        for block in self.blocks:
            if block.index in self.plan.vram:
                self._ask(block, None)
            elif block.index in to_come:
                self._ask(block, to_come[block.index])
        self._show(now=True)

    def pump(self, wait_s: float) -> bool:
        """Between passes, take in what has been read, waiting for it so long at most, and go on moving.

        False when nothing is to come. What could not be read does not come before the next pass, or `settle`,
        tries it again.
        """
        self._take_arrivals(wait_s)
        self._leave()
        refused = self._promote(wait_s)
        if refused is not None:
            self._stay_below(refused)
        if not self._coming and not self._is_busy() and not self._settled:
            self._settle()  # which may let more come
        self._show()
        return self._is_busy()

    def _take_arrivals(self, wait_s: float) -> None:
        """Take in what has been read and copied; nothing leaves where it is."""
        if self._coming:
            for number in range(_AT_ONCE):
                arrival = self._loader.take(0 if number else min(wait_s, _POLL_S))
                if arrival is None:
                    break
                self._take_in(arrival)
        self._note_copies()

    def settle(self, cancel: CancelToken) -> None:
        """Wait until every block is where it is to stay. Raises CancelledError, StreamError."""
        self._attempts += 1
        self._ask_again()
        while self.pump(_POLL_S) or self._coming:
            if cancel.cancelled:
                raise CancelledError("loading was stopped")
            for coming in list(self._coming.values()):
                if coming.failed:
                    self._ask_once_more(coming)

    @property
    def settled(self) -> bool:
        """Whether every block is where the plan wants it."""
        return self._settled

    @property
    def whole(self) -> bool:
        """Whether all blocks are in the GPU's memory."""
        return len(self._in_vram) == len(self.blocks)

    @property
    def vram_available(self) -> int:
        """Bytes of the GPU's memory that are free, or this model's."""
        return sum(self._vram_use())

    @property
    def wants_whole(self) -> bool:
        """Whether all blocks are to be in the GPU's memory."""
        return len(self.plan.vram) == len(self.blocks)

    @property
    def arrived_share(self) -> float:
        """Of the bytes that are to come, 0 to 1."""
        total = sum(block.n_bytes for block in self.blocks)
        coming = list(self._coming.values())
        left = sum(each.block.n_bytes if each.failed else each.left for each in coming)
        return 1 - left / total

    def change(self, budgets: Budgets, rules: Sequence[PlaceRule] | None = None) -> None:
        """Go over to the plan for other budgets, or rules: blocks move between and beside later passes.

        Raises BudgetError, nothing having changed.
        """
        rules = self.rules if rules is None else tuple(rules)
        self._go_or_stay(self._replan(budgets, rules), budgets)
        self.rules = rules
        self._pressure.forget()
        self.note(
            f"the budgets are {shown_bytes(budgets.vram)} of GPU memory and {shown_bytes(budgets.ram)} of "
            f"memory for weights: {len(self.plan.vram)} of {len(self.blocks)} blocks are to be on the GPU"
        )

    # -- for the backend

    def begin_pass(self, n_tokens: int) -> tuple[Run, ...]:
        """Note that a pass of so many tokens begins -> its way through the layer blocks."""
        self._passes += 1
        self._attempts += 1
        self._ask_again()
        return self.begin_anew(n_tokens)

    def begin_anew(self, n_tokens: int) -> tuple[Run, ...]:
        """Let blocks move before a pass, or before it is run again since they have `Moved` -> its way."""
        if not self._settled:
            self.pump(0)
        self._give_memory_back()
        self._note_times()
        self._yield_memory()
        self._leave()
        self._make_ring()
        self._runs = self.route(n_tokens > self.plan.crossover)
        if self._staging is not None:
            self._staging.follow(self._to_stage(self._runs))
        return self._runs

    def route(self, prefill: bool) -> tuple[Run, ...]:
        """The way of a pass, as blocks lie now."""
        state = (self._version, self.host.plan)
        known = self._routes.get(prefill)
        if known is None or known[0] != state:
            blocks = [block for block in self.blocks if block.layer is not None]
            executors = {block.index: self.executor(block, prefill) for block in blocks}
            known = state, route(blocks, executors)
            self._routes[prefill] = known
        return known[1]

    def executor(self, block: Block, prefill: bool) -> Executor:
        """Who computes a layer block now."""
        index = block.index
        if block.kind is BlockKind.ATTENTION and block.layer in self.plan.cpu_attention:
            return Executor.CPU
        if index in self._in_vram or (index in self.plan.vram and self.host.resident(block) is None):
            return Executor.GPU
        if prefill or block.kind is BlockKind.ATTENTION:
            return Executor.STREAM
        return Executor.STREAM if index in self.plan.streamed | self._copied else Executor.CPU

    @property
    def head_on_gpu(self) -> bool:
        """Whether the output matrix is in the GPU's memory, or is nowhere else and has to be waited for."""
        heads = self.head_blocks
        if all(block.index in self._in_vram for block in heads):
            return True
        return any(block.index in self.plan.vram and self.host.resident(block) is None for block in heads)

    def ready(self, blocks: Iterable[Block], cancel: CancelToken, *, on_gpu: bool = False) -> None:
        """Wait until blocks that are to stay somewhere are there, or all of them `on_gpu`.

        Raises CancelledError, StreamError, Moved.
        """
        for block in blocks:
            while self._is_to_come(block, on_gpu):
                if cancel.cancelled:
                    raise CancelledError("stopped")
                self._active = block.index
                self._take_arrivals(_POLL_S)
                refused = self._promote(0)
                waits_for_room = block.index in self._to_promote
                for coming in list(self._coming.values()):
                    if coming.failed and (waits_for_room or coming.block == block):
                        self._ask_once_more(coming)
                if waits_for_room and (refused is not None or self._can_leave()):
                    raise Moved
        self._active = None

    def _is_to_come(self, block: Block, on_gpu: bool) -> bool:
        """Whether nobody can compute a block, or the GPU cannot, before it has come."""
        index = block.index
        if index in self._in_vram or (not on_gpu and self.host.resident(block) is not None):
            return False
        promoted = index in self._to_promote or any(index == other for other, _ in self._promoting)
        return promoted or index in self._coming or index in self._left_to_copy

    def resident(self, block: Block) -> M:
        """The matrices of a layer block that stays in the GPU's memory and is `ready`."""
        return self._memory.matrices(block)

    def take(self, block: Block, cancel: CancelToken) -> M:
        """Those of a streamed block, in a slot; `release` it once its kernels are on the GPU.

        Raises CancelledError, StreamError, and what the device raises.
        """
        self._active = block.index
        if block.index in self.host.plan.streamed:
            return self._land(block, cancel)
        self.ready([block], cancel)
        assert self._staging is not None, "a plan with streamed blocks has a ring"
        if not self._staging.has(block):
            self._staging.follow(self._to_stage(self._runs), at=block)
        return self._staging.take(block)

    def release(self, block: Block) -> None:
        """Let the slot of a taken block be filled again."""
        self._active = None
        if block.index in self.host.plan.streamed:
            self._landed = self._device.record()
        else:
            assert self._staging is not None, "it was taken from the ring"
            self._staging.release(block)
        self._show()

    # -- for any thread

    @property
    def stats(self) -> StreamStats:
        """What passes have read from disk and copied to the GPU so far, and the waiting for it."""
        return self.host.stats._replace(h2d_bytes=self._link.sent_bytes, copy_stall_s=self._stalls.stall_s)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know about where the weights are."""
        outside = sum(block.n_bytes for block in self.blocks if block.index not in self.plan.vram)
        if not outside:
            return ()
        executors = self.plan.executors()
        streamed = sum(self.blocks[i].n_bytes for i, who in executors.items() if who is Executor.STREAM)
        ways = []
        if streamed:
            ways.append(f"{shown_bytes(streamed)} are copied to the GPU for every token")
        if outside > streamed:
            ways.append(f"the processor computes {shown_bytes(outside - streamed)}")
        text = (
            f"{shown_bytes(outside)} of the weights do not fit the GPU's memory "
            f"({shown_bytes(self.budgets.vram)} for the model): {' and '.join(ways)} (--vram-budget changes "
            "that)"
        )
        return (text, *self.host.notices)

    @property
    def predicted_decode_tok_s(self) -> float | None:
        """Tokens per second that the plan promises from an empty context; None when no rate is known."""
        seconds = self.plan.predicted_decode_s
        return None if seconds is None else 1 / seconds

    def snapshot(self) -> TierSnapshot:
        """Where everything is now."""
        below, plan, prefill = self.host.snapshot(), self.plan, self.plan.predicted_prefill_s
        shown = self._as_shown(below.blocks)
        return replace(
            below,
            blocks=shown.blocks,
            predicted_decode_tok_s=self.predicted_decode_tok_s,
            limited_by=plan.limited_by,
            active=self._active if self._active is not None else below.active,
            in_flight=(*self._arriving(), *below.in_flight),
            passes=self._passes,
            vram_bytes=shown.vram_bytes,
            vram_used_bytes=plan.vram_bytes,
            vram_budget_bytes=self.budgets.vram,
            h2d_bytes=self._link.sent_bytes,
            h2d_rate=self._h2d_rate,
            gpu=self._gpu,
            pass_copy_bytes=shown.copied_bytes,
            copy_s=self._stalls.copy_s,
            copy_stall_s=self._stalls.stall_s,
            pass_stalls=self._stalls.last_pass,
            vram_ring_bytes=plan.slots * plan.slot_bytes,
            predicted_prefill_tok_s=None if prefill is None else PREDICTED_PROMPT / prefill,
            settled=self._settled,
        )

    def _as_shown(self, below: tuple[BlockPlace, ...]) -> _Shown:
        """The blocks with their tiers; made anew only when something has moved."""
        known = self._shown
        if known is not None and known.version == self._version and known.below is below:
            return known
        version, in_vram, places = self._version, frozenset(self._in_vram), []
        copied_bytes = 0
        for block, place in zip(self.blocks, below, strict=True):
            if block.index in in_vram:
                places.append(place_of(block, Tier.VRAM, Executor.GPU))
            elif block.layer is None:
                places.append(place)
            else:
                executor = self.executor(block, prefill=False)
                copied_bytes += block.n_bytes if executor is Executor.STREAM else 0
                places.append(replace(place, executor=executor))
        vram_bytes = sum(self.blocks[index].n_bytes for index in in_vram)
        self._shown = _Shown(version, below, tuple(places), vram_bytes, copied_bytes)
        return self._shown

    def note(self, text: str, kind: TierEventKind = TierEventKind.MOVE) -> None:
        """Tell a person of something that moved, or could not."""
        self.host.note(text, kind)
        self._show(now=True)

    def close(self) -> None:
        """Stop reading and let go of everything; idempotent."""
        self._loader.close()
        with suppress(DeviceError):  # one that has failed copies nothing any more
            self._link.record().wait()
        self.host.before_evict = lambda: None  # it refers to what refers to it, and so does the ring
        self._staging = None
        self.host.close()

    # -- what arrives

    def _ask(self, block: Block, into: list[Bytes] | None) -> None:
        self._settled = False
        self._coming[block.index] = _Coming(block, into, block.n_bytes, self._attempts)
        if into is None:
            self._left_to_copy[block.index] = block.n_bytes
        self._loader.ask(block, into)

    def _ask_again(self) -> None:
        """Try once more what could not be read: the disk may have recovered."""
        for coming in [coming for coming in self._coming.values() if coming.failed]:
            self._finish_copies(coming.block.index)
            self._ask(coming.block, coming.into)

    def _ask_once_more(self, failed: _Coming) -> None:
        """Try once in this attempt what could not be read; raises StreamError when that was done."""
        if failed.error is not None and failed.attempt == self._attempts:
            raise failed.error
        self._ask_again()

    def _is_busy(self) -> bool:
        """Whether anything is on its way."""
        if self._copying or self._promoting or self._to_promote:
            return True
        return not all(coming.failed for coming in self._coming.values())

    def _take_in(self, arrival: Arrival) -> None:
        """A run of rows that has been read, or could not be."""
        coming = self._coming.get(arrival.block.index)
        if coming is None:  # not wanted any more
            if arrival.slot is not None:
                self._loader.free(arrival.slot)
            return
        coming.left -= arrival.n_bytes
        if arrival.error is not None:
            if coming.error is None:
                self.note(f"{coming.block.name} could not be read: {arrival.error}", TierEventKind.WARNING)
            coming.error = arrival.error
            if arrival.slot is not None:
                self._loader.free(arrival.slot)
            return
        if arrival.data is not None and arrival.slot is not None:
            piece = coming.block.pieces[arrival.piece]
            places = self._memory.places(coming.block)
            self._link.send(piece, arrival.data, places[piece.tensor], arrival.first_row)
            sent = self._link.record()
            self._copying.append(_Copying(coming.block.index, arrival.n_bytes, arrival.slot, sent))
            while len(self._copying) > _IN_COPY:
                self._copying[0].ended.wait()
                self._note_copies()
        if coming.left <= 0 and coming.error is None:
            del self._coming[coming.block.index]
            if coming.into is not None:
                self.host.arrived(coming.block.index)
                self._version += 1

    def _note_copies(self) -> None:
        """Free the slots of copies that are done."""
        while self._copying and self._copying[0].ended.done:
            copy = self._copying.popleft()
            self._loader.free(copy.slot)
            self._left_to_copy[copy.index] -= copy.n_bytes
            if not self._left_to_copy[copy.index]:
                del self._left_to_copy[copy.index]
                self._came_to_vram(copy.index)

    def _finish_copies(self, index: int) -> None:
        """Wait for what is being copied of a block."""
        while any(copy.index == index for copy in self._copying):
            self._copying[0].ended.wait()
            self._note_copies()

    def _came_to_vram(self, index: int) -> None:
        self._in_vram.add(index)
        self._version += 1

    def _arriving(self) -> list[tuple[int, float]]:
        return [
            (coming.block.index, 1 - max(0, coming.left) / coming.block.n_bytes)
            for coming in list(self._coming.values())
            if 0 < coming.left < coming.block.n_bytes
        ]

    def _settle(self) -> None:
        """All is where it was wanted; what a promotion has made room for in RAM may come now."""
        self._settled = True
        try:
            self._retarget(self.plan.vram, self.plan.host)
        except MemoryError:
            self.note(_NO_MEMORY, TierEventKind.WARNING)
        if not self._settled:
            return
        in_ram = sum(self.host.resident(block) is not None for block in self.blocks)
        self.note(
            f"{len(self._in_vram)} of {len(self.blocks)} blocks are in the memory of the GPU, {in_ram} in "
            f"RAM, {len(self.blocks) - len(self._in_vram) - in_ram} are read from disk"
        )

    # -- moves

    def _go_or_stay(self, plan: TierPlan, budgets: Budgets) -> None:
        """`_go_to`; raises BudgetError where the GPU has no memory for the ring, and then goes back."""
        before = self.plan, self.budgets
        try:
            self._go_to(plan, budgets)
        except DeviceMemoryError as error:
            self._go_to(*before)
            raise BudgetError(
                f"copies of blocks need {shown_bytes(error.asked)} of GPU memory, and other programs have "
                f"left {shown_bytes(error.free)}: close some"
            ) from None

    def _go_to(self, plan: TierPlan, budgets: Budgets) -> None:
        """Let blocks move to where `plan` wants them. Raises MemoryError, DeviceMemoryError."""
        self._wait_for_copies()
        for index in sorted(self._left_to_copy.keys() - plan.vram):  # what has not arrived is of no use
            self._drop(self.blocks[index])
        entering = plan.vram - self._in_vram - self._left_to_copy.keys()
        # A block leaves RAM once it is in the GPU's memory, and that once it is in RAM.
        in_ram = {index for index in entering if self.host.resident(self.blocks[index]) is not None}
        self._copied = (self._copied | self.plan.streamed).intersection(in_ram)
        self.plan, self.budgets = plan, budgets
        self._to_promote = deque(sorted(entering))
        self._settled = False
        self._version += 1
        self._retarget(plan.vram - in_ram, _with_residents(plan.host, [self.blocks[i] for i in in_ram]))
        self._leave()
        self._make_ring()

    def _retarget(self, apart: Set[int], chosen: Plan) -> None:
        """Let memory hold what `chosen` says, with `apart` on the GPU; what is missing is read."""
        room = self.budgets.ram - self._host_kv
        for index, memory in self.host.retarget(frozenset(apart), room, chosen).items():
            coming = self._coming.get(index)
            if coming is None or coming.into is not memory:
                self._forget({index} & self._coming.keys())
                self._ask(self.blocks[index], memory)
        self._forget_withdrawn()

    def _forget_withdrawn(self) -> None:
        """What `host` has no memory for any more does not come."""
        self._forget(
            {index for index, each in self._coming.items() if each.into is not None} - self.host.coming
        )

    def _forget(self, indices: Set[int]) -> None:
        if indices:
            self._loader.forget(frozenset(indices))
            for index in indices:
                del self._coming[index]

    def _make_ring(self) -> None:
        """Have the slots that the plan wants; where the GPU is full, blocks leave it for them."""
        wanted = self.plan
        if not wanted.slots:
            return
        try:
            self._memory.make_ring(wanted.slots, wanted.slot_bytes, wanted.landing)
        except DeviceMemoryError as error:
            if not self._in_vram - wanted.vram:
                less = self.budgets._replace(vram=wanted.vram_bytes - wanted.ring_bytes)
                try:
                    smaller = self._replan(less, self.rules)
                except BudgetError:
                    raise error from None
                self._go_to(smaller, self.budgets)
                return
            for index in sorted(self._in_vram - wanted.vram):
                self._drop(self.blocks[index])  # before it has come to RAM: a pass waits for it there
            self._make_ring()
            return
        if self._staging is None:
            self._staging = self._new_staging()

    def _new_staging(self) -> Staging[M] | None:
        if not self.plan.slots:
            return None

        def bytes_of(block: Block) -> Sequence[Bytes]:
            native = self.host.resident(block)
            assert native is not None, "only blocks that are in RAM are staged"
            return native

        return Staging(self._device, self._link, self.plan.slots, self._memory.in_slot, bytes_of)

    def _to_stage(self, runs: Iterable[Run]) -> list[Block]:
        """The blocks that pass through the ring in a pass, as far as they are in RAM."""
        return [
            run.blocks[0]
            for run in runs
            if run.executor is Executor.STREAM and self.host.resident(run.blocks[0]) is not None
        ]

    def _can_leave(self) -> set[int]:
        """Blocks that are to leave the GPU, and are in RAM by now or are not to come there."""
        leaving = self._in_vram - self.plan.vram - self._coming.keys()
        heads = {block.index for block in self.head_blocks}
        return leaving - heads if heads & self._coming.keys() else leaving  # they are one matrix

    def _leave(self) -> None:
        """Give back GPU memory of blocks that are not to stay there."""
        for index in sorted(self._can_leave()):
            self._drop(self.blocks[index])

    def _drop(self, block: Block) -> None:
        """Give the memory of a block on the GPU back, also of one that has not arrived."""
        index = block.index
        if index in self._left_to_copy:
            self._forget({index} & self._coming.keys())
        self._finish_copies(index)
        self._left_to_copy.pop(index, None)
        self._in_vram.discard(index)
        self._device.synchronize()  # a pass may still use it
        self._memory.drop(block)
        self._version += 1

    def _promote(self, wait_s: float) -> DeviceMemoryError | None:
        """Let blocks come to the GPU that have no memory there yet, a few at a time, once others have left.

        What the GPU answered where it has no memory for the next one.
        """
        while self._promoting and (wait_s or self._promoting[0][1].done):
            index, sent = self._promoting.popleft()
            sent.wait()
            self._came_to_vram(index)
        if self._in_vram - self.plan.vram:
            return None
        under_way = sum(self.blocks[index].n_bytes for index, _ in self._promoting)
        under_way += sum(self._left_to_copy.values())
        while self._to_promote and under_way < _MOVING_BYTES:
            block = self.blocks[self._to_promote[0]]
            try:
                self._memory.add(block)
            except DeviceMemoryError as error:
                return error
            self._to_promote.popleft()
            under_way += block.n_bytes
            native = self.host.resident(block)
            if native is None:
                self._ask(block, None)
                continue
            self._link.send_block(block.pieces, native, self._memory.places(block))
            self._promoting.append((block.index, self._link.record()))
        return None

    def _stay_below(self, error: DeviceMemoryError) -> None:
        """The GPU's memory is not there: as much as was to be promoted stays below."""
        stay = frozenset(self._to_promote)
        self._to_promote.clear()
        self.note(
            f"{len(stay)} blocks stay out of the GPU's memory: {shown_bytes(error.free)} are free there, "
            "since another program has taken some",
            TierEventKind.WARNING,
        )
        try:
            self._go_to(self._plan_without(stay), self.budgets)
        except MemoryError:
            self.note(_NO_MEMORY, TierEventKind.WARNING)

    def _plan_without(self, stay: frozenset[int]) -> TierPlan:
        """A plan that takes less GPU memory by what some blocks take; wishes for it may not hold."""
        less = self.plan.vram_bytes - sum(self.blocks[index].n_bytes for index in stay)
        for rules in (self.rules, [rule for rule in self.rules if rule.tier != Tier.VRAM]):
            with suppress(BudgetError):
                return self._replan(self.budgets._replace(vram=less), rules)
        vram = self.plan.vram - stay
        room = max(self.budgets.ram - self._host_kv, least_memory(self.blocks, None, vram))
        return replace(
            self.plan,
            vram=vram,
            host=plan(self.blocks, room, None, apart=vram),
            streamed=self.plan.streamed | stay & frozenset(self.plan.layer_blocks),
        )

    def _give_memory_back(self) -> None:
        """Give way to other programs in RAM; what leaves it does not come back by itself."""
        before = self.host.plan
        self.host.before_pass()
        if self.host.plan is before:
            return
        self._forget_withdrawn()
        among, room = self.host.plan.resident, self.host.snapshot().budget_bytes
        room = max(room, least_memory(self.blocks, among, self.plan.vram))
        below = plan(self.blocks, room, None, among=among, apart=self.plan.vram)
        self.plan = replace(self.plan, host=below)
        self.budgets = self.budgets._replace(ram=room + self._host_kv)
        self._version += 1

    def _wait_for_copies(self) -> None:
        """Nothing is copied from memory that may go."""
        if self._staging is not None:
            self._staging.follow(())
            self._staging.settle()
        while self._promoting:
            index, sent = self._promoting.popleft()
            sent.wait()
            self._came_to_vram(index)

    def _yield_memory(self) -> None:
        """Give way to other programs on the GPU, and take back what they have left."""
        needed = self._pressure.to_yield()
        if needed is None:
            return
        before = self.plan.vram
        try:
            plan = self._replan(self.budgets._replace(vram=self.budgets.vram - needed), self.rules)
            if plan.vram == before:
                return
            self._go_or_stay(plan, self.budgets)
        except BudgetError as error:  # the model stays as it is
            self.note(f"another program needs the GPU's memory: {error}", TierEventKind.WARNING)
            return
        except MemoryError:
            self.note(_NO_MEMORY, TierEventKind.WARNING)
        fewer = len(before) - len(self.plan.vram)
        if fewer > 0:
            self.note(f"another program has taken GPU memory: {fewer} blocks leave it", TierEventKind.WARNING)
        else:
            self.note(f"GPU memory is free again: {-fewer} blocks come back")

    # -- one use

    def _land(self, block: Block, cancel: CancelToken) -> M:
        """Bring a block from the disk's ring to the landing slot."""
        native = self.host.acquire(block, cancel)
        try:
            self._memory.make_ring(self.plan.slots, self.plan.slot_bytes, landing=True)
            if self._landed is not None:
                self._link.wait_for(self._landed)
            matrices = self._memory.in_slot(-1, block)
            self._link.send_block(block.pieces, native, matrices.places)
            sent = self._link.record()
            for event in sent.events:
                self._device.wait_for(event)
            sent.wait()  # the ring's memory is copied from until then
        finally:
            self.host.release(block)
        return matrices

    def _note_times(self) -> None:
        if self._staging is None:
            return
        times = self._staging.times()
        self._stalls.copy_s += times.copy_s
        if times.stalls:
            self._stalls.stall_s += sum(seconds for _, seconds in times.stalls)
            self._stalls.last_pass = times.stalls

    def _show(self, *, now: bool = False) -> None:
        if now or time.monotonic() - self._shown_at > _SHOW_S:
            self._shown_at = time.monotonic()
            self._on_change(self.snapshot())


def _with_residents(below: Plan, blocks: Sequence[Block]) -> Plan:
    """A plan that keeps some more blocks in memory, which are there already."""
    return replace(
        below,
        resident=below.resident | {block.index for block in blocks},
        resident_bytes=below.resident_bytes + sum(map(slot_bytes_for, blocks)),
    )


PREDICTED_PROMPT = 512
"""Tokens of the prompt that a plan predicts the time of."""
