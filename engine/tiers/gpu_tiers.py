"""The weights of a model on a GPU, as its backend asks for them: in VRAM, in RAM, or in the file, and moving.

Knows when blocks may be taken in and when they may leave, and what a pass has to wait for; does not compute,
and does not choose (`gpu_planner`). Loading and moving are one thing: blocks come to where the plan wants
them while passes run. A pass that needs a block before it is there waits for that block only.

One thread at a time uses it, the engine's but for `copy_on`: they alone give work to the GPU. Between and
during passes it takes in what reader threads have read. Only between passes (`pump`, `begin_pass`) is
anything taken away from where a pass that is under way would look for it.

    whereabouts     what is where, and where it is to be
    arrivals        file -> RAM, file -> VRAM             to stay
    vram_moves      RAM -> VRAM, and out of it            to stay
    one_use         RAM -> staging ring, file -> landing slot
    spare           RAM -> where long passes compute      until the next one
    moves           from one plan to another
    showing         what people see of it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from engine.cancel import CancelToken
from engine.errors import CancelledError
from engine.events import GpuFacts, TierEventKind, TierSnapshot
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.tiers.arrivals import Arrivals
from engine.tiers.blocks import Block, in_order_of_need
from engine.tiers.gpu_memory import GpuMemory
from engine.tiers.link import Link, Located
from engine.tiers.loader import Loader
from engine.tiers.moves import Moves, Replan
from engine.tiers.one_use import OneUse
from engine.tiers.pressure import VramPressure
from engine.tiers.route import Run
from engine.tiers.showing import Showing, notices
from engine.tiers.spare import Spare
from engine.tiers.step_pace import Copies, StepPace
from engine.tiers.store import TieredWeights
from engine.tiers.streamer import StreamStats
from engine.tiers.tier_plan import Budgets, TierPlan
from engine.tiers.vram_moves import VramMoves
from engine.tiers.whereabouts import Bytes, Whereabouts
from engine.tiers.wishes import PlaceRule
from kernels.cuda.device import Device
from kernels.errors import DeviceError

M = TypeVar("M", bound=Located)
"""A layer block's matrices on the GPU."""

_POLL_S = 0.02


class Moved(Exception):
    """A pass needs a block for which there is no room before others have left: it has to begin anew."""


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
        host_beside: int,
        rules: tuple[PlaceRule, ...],
        replan: Replan,
        vram_use: Callable[[], tuple[int, int]],
        on_change: Callable[[TierSnapshot], None],
    ) -> None:
        """Know where everything goes; `begin` lets it come. Closes `host` and `loader` in the end.

        `memory` has room for the blocks of `plan`, `host` has been planned for the others; `host_beside`
        bytes of `budgets.ram` are not for weights. `replan` is asked when budgets or `rules` change,
        `vram_use` for the bytes of the GPU that are free, and that are allocated here. `on_change` is called
        by the engine's thread.
        """
        self.where = Whereabouts(host, plan, budgets, rules)
        """For others to read."""
        self._memory, self._link, self._loader, self._vram_use = memory, link, loader, vram_use
        self._one_use = OneUse(self.where, device, memory, link)
        self._spare = Spare(self.where, device, memory, link)
        self._showing = Showing(self.where, link, self._one_use.stalls, gpu, h2d_rate, on_change)
        self._arrivals = Arrivals(self.where, loader, link, memory.places, self._showing.note)
        self._pace = StepPace()
        self._vram = VramMoves(self.where, self._arrivals, device, memory, link)
        self._moves = Moves(
            self.where,
            self._arrivals,
            self._vram,
            self._one_use,
            self._spare,
            self._showing,
            VramPressure(vram_use),
            self._pace,
            replan,
            host_beside,
            memory.slot_bytes,
        )
        host.before_evict = self._moves.let_go_of_memory

    # -- loading and moves

    def begin(self, to_come: Mapping[int, list[Bytes]]) -> None:
        """Let all blocks come in order of use; those in RAM into the memory that `host` has reserved."""
        for block in in_order_of_need(self.where.blocks):
            if block.index in self.where.plan.vram:
                self._arrivals.ask(block, None)
            elif block.index in to_come:
                self._arrivals.ask(block, to_come[block.index])
        self._showing.show(now=True)

    def pump(self, wait_s: float) -> bool:
        """Between passes, take in what has been read, waiting for it so long at most, and go on moving.

        False when nothing is to come. What could not be read does not come before the next pass, or `settle`,
        tries it again.
        """
        self._arrivals.take_in(min(wait_s, _POLL_S))
        self._moves.go_on(wait_s)
        if not (self.where.coming or self._busy or self.where.settled):
            self._moves.settle()  # which may let more come
        self._showing.show()
        return self._busy

    def settle(self, cancel: CancelToken) -> None:
        """Wait until every block is where it is to stay. Raises CancelledError, StreamError."""
        self._arrivals.try_again()
        while self.pump(_POLL_S) or self.where.coming:
            if cancel.cancelled:
                raise CancelledError("loading was stopped")
            self._arrivals.insist()

    def change(self, budgets: Budgets, rules: Sequence[PlaceRule] | None = None) -> None:
        """Go over to the plan for other budgets, or rules: blocks move between and beside later passes.

        Raises BudgetError, nothing having changed, and MemoryError.
        """
        self._moves.change(budgets, self.where.rules if rules is None else rules)

    def leave_out(self, skip: SkipSet) -> None:
        """Go over to the plan for passes without these layer blocks, in whose place others come.

        Where there is no such plan, blocks stay where they are.
        """
        self._moves.leave_out(frozenset(self.where.host.layer_blocks[number].index for number in skip))

    @property
    def near(self) -> SkipSet:
        """Numbers of the layer blocks that are in the GPU's memory."""
        in_vram = frozenset(self.where.in_vram)
        return frozenset(n for n, block in enumerate(self.where.host.layer_blocks) if block.index in in_vram)

    @property
    def vram_available(self) -> int:
        """Bytes of the GPU's memory that are free, or this model's."""
        return sum(self._vram_use())

    @property
    def ram_held(self) -> int:
        """Bytes of RAM that the plan gives to weights, without those that have not been read into it yet."""
        to_ram = [coming for coming in self.where.coming.values() if coming.into is not None]
        return self.where.host.plan.ram_bytes - sum(max(0, coming.left) for coming in to_ram)

    @property
    def _busy(self) -> bool:
        """Whether anything is on its way."""
        return self._arrivals.busy or self._vram.busy

    # -- for the backend

    def begin_pass(self, n_tokens: int, skip: SkipSet = NOTHING) -> tuple[Run, ...]:
        """Note that a pass of so many tokens begins -> its way through the layer blocks but for `skip`."""
        self._showing.passes += 1
        self._arrivals.try_again()
        return self.begin_anew(n_tokens, skip)

    def begin_anew(self, n_tokens: int, skip: SkipSet) -> tuple[Run, ...]:
        """Let blocks move before a pass, or before it is run again since they have `Moved` -> its way."""
        if not self.where.settled:
            self.pump(0)
        self._one_use.note_times()
        self._moves.before_pass()
        self.where.host.ring.follow(skip)
        runs = self.where.route(n_tokens, skip)
        self._spare.begin_pass(n_tokens, runs)
        self._one_use.follow(runs)
        return runs

    def ready(self, blocks: Iterable[Block], cancel: CancelToken, *, on_gpu: bool = False) -> None:
        """Wait until blocks that are to stay somewhere are there, or all of them `on_gpu`.

        Raises CancelledError, StreamError, Moved.
        """
        for block in blocks:
            while self._is_to_come(block, on_gpu):
                if cancel.cancelled:
                    raise CancelledError("stopped")
                self._showing.active = block.index
                self._arrivals.take_in(_POLL_S)
                refused = self._vram.promote(0)
                waits_for_room = block.index in self._vram.without_room
                self._arrivals.insist(None if waits_for_room else block)
                if waits_for_room and (refused is not None or self._vram.can_leave()):
                    raise Moved
        self._showing.active = None

    def _is_to_come(self, block: Block, on_gpu: bool) -> bool:
        """Whether nobody can compute a block, or the GPU cannot, before it has come."""
        index = block.index
        if index in self.where.in_vram or (not on_gpu and self.where.host.resident(block) is not None):
            return False
        read = index in self.where.coming or index in self._arrivals.to_gpu
        return read or self._vram.is_to_come(block)

    def resident(self, block: Block) -> M:
        """The matrices of a layer block that is `ready` and stays in the GPU's memory, or is spare there."""
        return self._spare.take(block) if self.where.is_spare(block) else self._memory.matrices(block)

    def take(self, block: Block, cancel: CancelToken) -> M:
        """Those of a streamed block, in a slot; `release` it once its kernels are on the GPU.

        Raises CancelledError, StreamError, and what the device raises.
        """
        self._showing.active = block.index
        if not self.where.is_read(block):
            self.ready([block], cancel)
        return self._one_use.take(block, cancel)

    def release(self, block: Block) -> None:
        """Let the slot of a taken block be filled again, by `copy_on`."""
        self._showing.active = None
        self._one_use.release(block)
        self._showing.show()

    def note_step(self, at: float, products_s: float) -> None:
        """Note that a decode step that left nothing out was over `at` seconds of any clock.

        The processor's products took `products_s` seconds in it. Steps in which blocks moved do not count.
        """
        if self.where.settled and not self.where.idle:
            stalls = self._one_use.stalls
            copies = Copies(stalls.copy_s, stalls.copied_bytes)
            self._pace.note(self._showing.passes, self.where.arrangement, at, products_s, copies)

    @property
    def can_copy(self) -> bool:
        """Whether a released slot waits for `copy_on`."""
        return self._one_use.can_copy

    def copy_on(self) -> None:
        """Put copies for what is to come on the way, as far as slots are free.

        Of a large block that takes a millisecond; without it nothing is copied ahead any more. Another thread
        that has entered the device may call this while the engine's is in none of these methods.
        """
        self._one_use.copy_on()

    # -- for any thread

    @property
    def arrived_share(self) -> float:
        """Of the bytes that are to come, 0 to 1."""
        return self._arrivals.share

    @property
    def stats(self) -> StreamStats:
        """What passes have read from disk and copied to the GPU so far, and the waiting for it."""
        copy_stall_s = self._one_use.stalls.stall_s
        return self.where.host.stats._replace(h2d_bytes=self._link.sent_bytes, copy_stall_s=copy_stall_s)

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know about where the weights are."""
        return notices(self.where)

    @property
    def learnt_disk_rate(self) -> float | None:
        """Bytes per second of the disk as passes found it, where a probe had found another rate."""
        return self.where.host.learnt_disk_rate

    @property
    def predicted_decode_tok_s(self) -> float | None:
        """Tokens per second that the plan promises from an empty context; None when no rate is known."""
        return self.snapshot().predicted_decode_tok_s

    def snapshot(self) -> TierSnapshot:
        """Where everything is now."""
        return self._showing.snapshot()

    def note(self, text: str, kind: TierEventKind = TierEventKind.MOVE) -> None:
        """Tell a person of something that moved, or could not."""
        self._showing.note(text, kind)

    def close(self) -> None:
        """Stop reading and let go of everything; idempotent."""
        self._loader.close()
        with suppress(DeviceError):  # one that has failed copies nothing any more
            self._link.record().wait()
        self.where.host.before_evict = lambda withdrawn: None  # it refers to what refers to it
        self.where.host.close()
