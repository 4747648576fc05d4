"""The weights of a loaded model, wherever they are: in memory to stay, or read from disk for every pass.

Knows the plan, the memory, the ring and what has moved; does not know arithmetic or rows (`vocabulary_rows`),
and does not choose what stays (`planner`). The backend asks for blocks in order of use, from the engine's
thread. Where a block is changes only between passes; but a block that takes the place of one that is left out
comes when a pass reads it anyway, so that it costs no reads of its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing

from engine.cancel import CancelToken
from engine.errors import CancelledError, StreamError
from engine.events import BlockPlace, Tier, TierEvent, TierEventKind, TierSnapshot
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.tiers.blocks import Block, slot_bytes_for
from engine.tiers.budget import MemoryWatch, shown_bytes
from engine.tiers.direct_io import ALIGNMENT, DirectFiles
from engine.tiers.host_plans import HostPlans
from engine.tiers.page_locks import Locker, PageLocks
from engine.tiers.placement import left_out_words, place_of
from engine.tiers.planner import Plan
from engine.tiers.rates import Rates
from engine.tiers.region import Region
from engine.tiers.residents import Bytes, Residents
from engine.tiers.ring import Ring
from engine.tiers.streamer import StreamStats

_EVENTS_KEPT = 64
_NOTHING_LEFT = "memory is short, and nothing more can be given back"


class TieredWeights:
    """Every matrix of a model in order of use. One thread uses it; `snapshot` is for any thread."""

    def __init__(
        self,
        files: DirectFiles,
        blocks: Sequence[Block],
        budget: int,
        rates: Rates | None,
        *,
        watch: MemoryWatch,
        on_change: Callable[[TierSnapshot], None],
        apart: frozenset[int] = frozenset(),
        chosen: Plan | None = None,
        locker: Locker | None = None,
    ) -> None:
        """Plan for `budget` bytes, which `load` then fills. Closes `files` in the end.

        Blocks in `apart` are a GPU's: elsewhere, and no business of this class until `retarget` says so. A
        plan `chosen` for them and `budget` is taken instead of a new one. With a `locker` memory that a GPU
        copies from is page-locked as far as the system allows. `on_change` is called by the engine's thread
        when something was read or moved. Raises BudgetError, MemoryError, StreamError.
        """
        self.blocks = tuple(blocks)
        self.layer_blocks = [block for block in blocks if block.layer is not None]
        self.files = files
        """Open until `close`."""
        self._budget = budget
        self._plans = HostPlans(self.blocks, rates, apart)
        self._watch, self._on_change = watch, on_change
        self.before_evict: Callable[[frozenset[int]], None] = lambda withdrawn: None
        """Called before memory is given up that a GPU may be copying from, or that the blocks it is told of
        may be read into; to be set by who copies and reads."""
        self._events: deque[TierEvent] = deque(maxlen=_EVENTS_KEPT)
        self._n_events = 0
        self._locks = PageLocks(locker)
        self._residents = Residents(files, self.blocks, self._locks)
        self._arriving: tuple[int, float] | None = None
        """Index of the block that is being read into memory to stay, and how much of it is there."""
        self._changed: dict[int, Block] = {}
        """Blocks that came into memory, or left it, since `take_changes`."""
        self._passes = 0
        self._set_plan(chosen or self._plans.make(budget))
        self.ring = Ring(files, self.blocks, self._locks, self.plan)
        """What is read for passes."""
        if self.plan.streamed:
            # A file system that refuses direct reads only at the first one is found out here.
            page = Region(ALIGNMENT).place(ALIGNMENT)
            files.read(self.blocks[self.plan.streamed[0]].pieces[0].part, 0, page.data)

    # -- loading

    def load(self, cancel: CancelToken) -> Iterator[int]:
        """Read the blocks that stay, yielding how many bytes are done, and begin to read the others.

        Raises CancelledError, StreamError, MemoryError.
        """
        done = 0
        for block, arrived in self._bring(self.plan.resident):
            if cancel.cancelled:
                raise CancelledError("loading was stopped")
            yield done + arrived
            if arrived == block.n_bytes:
                done += arrived
        if self.plan.streamed:
            self.ring.begin()
        self.note(
            f"{len(self.plan.resident)} of {len(self.blocks)} blocks are in memory, "
            f"{shown_bytes(done)} of {shown_bytes(self._plans.n_bytes)}"
        )

    # -- for the backend

    def before_pass(self) -> None:
        """Give memory back when the rest of the system needs it; call between passes.

        What the plan promises follows the disk's rate as it has been lately.
        """
        self._passes += 1
        corrected = self._plans.at_pace(self.plan, self.stats)
        if corrected is not None:
            self._set_plan(corrected)
        deficit = self._watch.deficit()
        if deficit:
            self._shrink(deficit)

    def take_changes(self) -> Iterator[tuple[Block, list[Bytes] | None]]:
        """Layer blocks that came into memory since the last call, and their matrices; or left it, and None.

        Who keeps the matrices of a block that has left keeps the addresses of all that was reserved with it.
        """
        changed, self._changed = self._changed, {}
        for block in changed.values():
            if block.layer is not None:
                yield block, self.resident(block)

    def runs(self, first: int, last: int, skip: SkipSet = NOTHING) -> Iterator[tuple[int, int, Block | None]]:
        """Cut layer blocks first..last-1, those in `skip` left out, into runs.

        Each is from, to, and the block itself where one is streamed.
        """
        self.ring.follow(skip)
        start = first
        for number in range(first, last):
            block = self.layer_blocks[number]
            streamed = number not in skip and self.resident(block) is None
            if streamed or number in skip:
                if start < number:
                    yield start, number, None
                if streamed:
                    yield number, number + 1, block
                start = number + 1
        if start < last:
            yield start, last, None

    def resident(self, block: Block) -> list[Bytes] | None:
        """The block's matrices where they are in memory to stay; None for all others."""
        return self._residents.get(block.index)

    def acquire(self, block: Block, cancel: CancelToken) -> list[Bytes]:
        """Wait for a streamed block; its matrices are there until `release`.

        Raises as `Streamer.acquire`, and MemoryError where a ring can no longer be had.
        """
        matrices = self.ring.acquire(block, cancel)
        if block.index in self.ring.coming:
            self._keep_read(block, matrices)
        self._on_change(self.snapshot())
        return matrices

    def release(self, block: Block) -> None:
        """Let the memory of a streamed block be used for another one."""
        self.ring.release(block)

    def close(self) -> None:
        """Stop reading and let go of everything; idempotent."""
        self.ring.close()
        self._residents.clear()
        self.files.close()

    # -- for any thread

    @property
    def stats(self) -> StreamStats:
        """What was read from disk so far, and the waiting for it."""
        return self.ring.stats

    @property
    def arrived_share(self) -> float:
        """All: `load` comes before the first pass."""
        return 1.0

    def pump(self, wait_s: float) -> bool:
        """Nothing is on its way that has to be taken in."""
        return False

    def settle(self, cancel: CancelToken) -> None:
        """Nothing is waited for: `load` has brought what stays."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What a person should know about where the weights are."""
        texts = []
        if self.plan.read_bytes:
            whose = "weights outside the GPU" if self._plans.apart else "weights"
            texts.append(
                f"the model's {whose} ({shown_bytes(self._plans.n_bytes)}) do not fit the memory for them "
                f"({shown_bytes(self._budget)}): {shown_bytes(self.plan.read_bytes)} are read from disk for "
                "every token (--ram-budget changes that)"
            )
            texts += [self.files.notice] if self.files.notice else []
        if self._locks.unlocked_bytes:
            texts.append(
                f"{shown_bytes(self._locks.unlocked_bytes)} of weights could not be page-locked, so copies "
                "to the GPU are slower: raise the limit (ulimit -l, or the container's memory limit), then "
                "load the model again"
            )
        return tuple(texts)

    @property
    def near(self) -> SkipSet:
        """Numbers of the layer blocks that are in memory."""
        resident = self._residents.indices
        return frozenset(n for n, block in enumerate(self.layer_blocks) if block.index in resident)

    def snapshot(self) -> TierSnapshot:
        """Where everything is now."""
        present, stats = self.plan, self.stats
        return TierSnapshot(
            blocks=self._places,
            ram_bytes=present.resident_bytes,
            ring_bytes=present.ring_bytes,
            budget_bytes=self._budget,
            pass_read_bytes=present.read_bytes,
            read_bytes=stats.read_bytes,
            read_s=stats.read_s,
            stall_s=stats.stall_s,
            disk_rate=self.disk_rate,
            predicted_decode_tok_s=self.predicted_decode_tok_s,
            limited_by=present.limited_by,
            active=self.ring.active,
            in_flight=self.ring.in_flight if self._arriving is None else (self._arriving,),
            events=tuple(self._events),
            events_dropped=self._n_events - len(self._events),
            passes=self._passes,
            skipped=self._plans.idle,
        )

    @property
    def disk_rate(self) -> float | None:
        """Bytes per second of direct reads, as probed or as they have been lately; None when not known."""
        return self._plans.pace.rate

    @property
    def learnt_disk_rate(self) -> float | None:
        """The same where it is not what the probe found."""
        return self._plans.pace.rate if self._plans.pace.learnt else None

    @property
    def predicted_decode_tok_s(self) -> float | None:
        """Tokens per second that the plan promises from an empty context; None when no rate is known."""
        seconds = self.plan.predicted_decode_s
        return None if seconds is None else 1 / seconds

    def _set_plan(self, new: Plan) -> None:
        self.plan = new
        self._places = tuple(map(self._place_of, self.blocks))

    def _place_of(self, block: Block) -> BlockPlace:
        tier = Tier.NVME if self.resident(block) is None else Tier.RAM
        return place_of(block, tier)

    # -- moves

    def leave_out(self, skip: SkipSet) -> None:
        """Let others have the memory of layer blocks that passes leave out from now on; between two passes.

        They come when passes read them. What cannot come is told, and read for every pass.
        """
        skipped = frozenset(self.layer_blocks[number].index for number in skip)
        if skipped == self._plans.idle:
            return
        self._plans.idle = skipped
        new = self._plans.make(self._budget)
        given = self.plan.resident - new.resident
        self._move_out(new)
        coming = new.resident - self._residents.indices - self._residents.reserved.keys()
        if coming:
            n_bytes = sum(self.blocks[index].n_bytes for index in coming)
            self.note(
                f"{left_out_words(skip)}: {len(coming)} others, {shown_bytes(n_bytes)}, come into memory as "
                f"they are read, and {len(given)} leave it"
            )
        try:
            self._residents.reserve(coming)
            fitting = {index for index in coming if slot_bytes_for(self.blocks[index]) <= new.slot_bytes}
            self.ring.lay_out(new, self.ring.coming | fitting)
            for _ in self._bring(coming - fitting):
                pass
        except (MemoryError, StreamError) as error:
            self._keep(self._residents.indices | self.ring.coming)
            self.note(f"not all of them come: {error}", TierEventKind.WARNING)

    def change_budget(self, budget: int, stopped: Callable[[], bool]) -> bool:
        """Keep what `budget` bytes hold, between two passes; False when `stopped` ended it early.

        Blocks that had arrived by then stay. Raises BudgetError, nothing having changed, and StreamError or
        MemoryError, after which the blocks that did arrive are used.
        """
        new = self._plans.make(budget)
        before = self._residents.indices
        coming = new.resident - before
        self._budget = budget
        if new != self.plan:
            self._move_out(new)
        if coming:
            n_bytes = sum(self.blocks[index].n_bytes for index in coming)
            self.note(f"{len(coming)} blocks, {shown_bytes(n_bytes)}, are being read into memory")
        try:
            with closing(self._bring(coming)) as blocks:
                for _ in blocks:
                    if stopped():
                        break
        finally:
            if self._residents.indices != new.resident:
                self._keep(self._residents.indices)
        after = self._residents.indices
        self.note(
            f"the memory for weights is {shown_bytes(self._budget)}: {len(after - before)} blocks came into "
            f"memory and {len(before - after)} left it"
        )
        return new.resident == after

    def retarget(
        self, apart: frozenset[int], budget: int | None = None, chosen: Plan | None = None
    ) -> dict[int, list[Bytes]]:
        """Go over, between two passes, to the plan for what is `apart` from now on.

        `budget` is another one if given, and `chosen` a plan made for both, taken instead of a new one.
        Blocks that do not stay leave memory at once. Returns writable memory, an array for each piece, of all
        blocks that are to come: what was reserved earlier is the same, and what is missing of that
        was withdrawn. Each is to be filled by the caller and then told to have `arrived`.
        Raises BudgetError, nothing having changed, and MemoryError, with a plan for what is in memory.
        """
        budget = self._budget if budget is None else budget
        new = chosen or self._plans.make(budget, apart=apart)
        self._budget, self._plans.apart = budget, apart
        if new != self.plan:
            self._move_out(new)
        missing = new.resident - self._residents.indices - self._residents.reserved.keys()
        if missing:
            try:
                self._residents.reserve(missing)
            except MemoryError:
                self._keep(self._residents.indices | self._residents.reserved.keys())
                raise
        return self._residents.reserved

    def arrived(self, index: int) -> bool:
        """Use a block from now on whose bytes are in its reserved memory; False where it was withdrawn."""
        if index not in self._residents.reserved:
            return False
        self._residents.settle(index)
        self.ring.came(index)
        self._show_new(self.blocks[index])
        self._on_change(self.snapshot())
        return True

    def _keep(self, among: frozenset[int]) -> None:
        """Go over to a plan in which only these blocks stay."""
        # Where the largest block did not come, the ring that it needs may take more than was granted.
        self._budget = max(self._budget, self._plans.least(among))
        self._move_out(self._plans.make(self._budget, among))

    def _shrink(self, deficit: int) -> None:
        """Let go of blocks worth `deficit` bytes and a ring to stream them through, or of what there is."""
        resident = self.plan.resident
        smaller = max(self.plan.ram_bytes - deficit, self._plans.least(resident))
        if smaller >= self.plan.ram_bytes:
            if not self._events or self._events[-1].text != _NOTHING_LEFT:
                self.note(_NOTHING_LEFT, TierEventKind.WARNING)
            return
        self._budget = smaller
        gone = self._move_out(self._plans.make(smaller, resident))
        freed = sum(slot_bytes_for(self.blocks[index]) for index in gone)
        self.note(
            f"memory is short: {len(gone)} blocks, {shown_bytes(freed)}, are read from disk from now on",
            TierEventKind.WARNING,
        )

    def _move_out(self, new: Plan) -> frozenset[int]:
        """Go over to a plan, giving up what does not stay in it; the blocks that went, or will not come."""
        withdrawn = frozenset(self._residents.reserved.keys() - new.resident)
        self.before_evict(withdrawn)
        self.ring.lay_out(new, self.ring.coming & new.resident)
        gone = self._residents.indices - new.resident
        for index in gone:
            self._residents.evict(index)
            self._changed[index] = self.blocks[index]
        for index in withdrawn:
            self._residents.withdraw(index)
        self._set_plan(new)
        return gone | withdrawn

    def _bring(self, wanted: frozenset[int]) -> Generator[tuple[Block, int]]:
        """Read blocks that stay, one after another, as `Residents.bring`, and show how they come."""
        try:
            with closing(self._residents.bring(wanted)) as blocks:
                for block, arrived in blocks:
                    self._arriving = (block.index, arrived / block.n_bytes)
                    if arrived == block.n_bytes:
                        self._arriving = None
                        self.ring.came(block.index)
                        self._show_new(block)
                    self._on_change(self.snapshot())
                    yield block, arrived
        finally:
            self._arriving = None

    def _keep_read(self, block: Block, matrices: list[Bytes]) -> None:
        """Copy a block, which a pass has read, into the memory where it is to stay."""
        for memory, data in zip(self._residents.reserved[block.index], matrices, strict=True):
            memory[:] = data
        self._residents.settle(block.index)
        self._show_new(block)
        self.ring.stays(block.index)

    def _show_new(self, block: Block) -> None:
        """Note that a block is here."""
        self._changed[block.index] = block
        places = list(self._places)
        places[block.index] = self._place_of(block)
        self._places = tuple(places)

    def note(self, text: str, kind: TierEventKind = TierEventKind.MOVE) -> None:
        """Tell a person of something that moved, or could not."""
        self._events.append(TierEvent(time.time(), text, kind))
        self._n_events += 1
        self._on_change(self.snapshot())
