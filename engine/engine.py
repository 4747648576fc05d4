"""The engine thread: one thread owns the model; commands go in, replies and snapshots come out.

    engine = Engine()
    engine.load(LoadOptions(path))
    reply = engine.ask(Request(messages=(Message("user", "Hello"),)))

Every method returns at once, `close` aside. The engine never calls its reader. Knows queues and states; does
not know how a model is loaded (`loading`) or a request answered (`answer`), and imports them, and numpy with
them, only in its thread, so that an interface is on the screen before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, perf_counter, process_time
from typing import TYPE_CHECKING

from engine.cancel import CancelToken
from engine.config import LoadOptions, Request
from engine.errors import CancelledError, ContextError, DeviceError, EngineError
from engine.events import (
    EngineSnapshot,
    EngineState,
    FinishReason,
    GenerationStats,
    Reply,
    Tier,
    TierSnapshot,
)
from engine.machine import let_others_go_first, physical_cores
from engine.tiers.budget import Budget
from kernels import errors as kernel_errors

if TYPE_CHECKING:
    from engine.loading import LoadedModel

CLOSE_TIMEOUT_S = 2.0
_MOVE_S = 0.02
"""How long a command may have to wait for weights on their way to be taken in."""
_NOTHING_LOADED = EngineError("no model is loaded: load one first")


@dataclass(frozen=True, slots=True)
class _Load:
    options: LoadOptions
    cancel: CancelToken


@dataclass(frozen=True, slots=True)
class _Unload:
    pass


@dataclass(frozen=True, slots=True)
class _Ask:
    reply: Reply
    asked_at: float


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """Something that is to be different about a loaded model; compared by identity."""

    what: str
    """A later change of the same takes its place."""
    make: Callable[[LoadedModel, Callable[[], bool]], bool]
    """As in `budgeting`: False when the second argument ended it early."""


class Engine:
    """One model at a time, one reply at a time, in the order of the calls."""

    def __init__(self, niceness: int = 0) -> None:
        """Start the thread; nothing is loaded.

        `niceness` is how much less urgent than the caller's thread are the engine's where cores are
        short, those that compute and read among them.
        """
        self._niceness = niceness
        self._commands: deque[_Load | _Unload | _Ask] = deque()
        self._condition = threading.Condition()
        self._snapshot = EngineSnapshot()
        self._current: _Load | _Unload | _Ask | None = None
        self._wanted: dict[str, _Change] = {}
        """For the model that is loaded, or is being loaded, by what they change."""
        self._moving = False
        """Whether weights are on their way that somebody has to take in."""
        self._closing = False
        self._loaded: LoadedModel | None = None
        self._loaded_at = 0.0
        self._error = _NOTHING_LOADED
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # -- for any thread

    @property
    def snapshot(self) -> EngineSnapshot:
        """What the engine is doing now; compare `seq` with that of an earlier one."""
        return self._snapshot

    def load(self, options: LoadOptions) -> None:
        """Load a model in place of the present one, after what was asked before; see the snapshot."""
        with self._condition:
            self._wanted.clear()  # it was for another model
            self._put(_Load(options, CancelToken()))

    def stop_loading(self) -> None:
        """Stop the load that runs, so that nothing is loaded, and drop those that wait."""
        with self._condition:
            kept = [command for command in self._commands if not isinstance(command, _Load)]
            self._commands = deque(kept)
            if isinstance(self._current, _Load):
                self._current.cancel.cancel()

    def unload(self) -> None:
        """Let go of the model and its memory, after what was asked before."""
        self._put(_Unload())

    def ask(self, request: Request) -> Reply:
        """Answer a request, after what was asked before; errors arrive in the reply."""
        reply = Reply(request)
        self._put(_Ask(reply, perf_counter()))
        return reply

    def set_ram_budget(self, budget: Budget | None) -> None:
        """Give the model, loaded or being loaded, more or less memory; None is the default.

        Holds from between two passes on, also in the middle of a reply: `EngineSnapshot.ram_budget` is
        `budget` then. Blocks that come into memory are read first. What cannot be done changes nothing and is
        told in the snapshot's notices and events. Without a model there is nothing to change.
        """
        self._want("ram budget", partial(_change_ram_budget, budget))

    def set_vram_budget(self, budget: Budget | None) -> None:
        """Give the model more or less of its GPU's memory, as `set_ram_budget`; blocks move meanwhile."""
        self._want("vram budget", partial(_change_vram_budget, budget))

    def pin_block(self, index: int, tier: Tier | None) -> None:
        """Let a block (an index in the snapshot's) stay in a tier, None to let the plan choose again.

        Holds like a budget; without a GPU it changes nothing, which is told.
        """
        self._want(f"block {index}", partial(_pin_block, index, tier))

    def _want(self, what: str, make: Callable[[LoadedModel, Callable[[], bool]], bool]) -> None:
        with self._condition:
            if self._loaded is not None or self._changes_model():
                self._wanted[what] = _Change(what, make)
                self._condition.notify_all()

    def count_tokens(self, text: str) -> int | None:
        """How many tokens a text is to the model; None while none is loaded."""
        loaded = self._loaded  # the engine's thread may let go of it at any time
        return None if loaded is None else len(loaded.tokenizer.encode(text))

    def close(self) -> None:
        """Stop everything and wait for the thread for at most CLOSE_TIMEOUT_S; replies end as cancelled."""
        with self._condition:
            self._closing = True
            pending = [*self._commands, self._current]
            self._condition.notify_all()
        for command in pending:
            if isinstance(command, _Ask):
                command.reply.cancel()
            elif isinstance(command, _Load):
                command.cancel.cancel()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _put(self, command: _Load | _Unload | _Ask) -> None:
        with self._condition:
            if not self._closing:
                self._commands.append(command)
                self._condition.notify_all()
            elif isinstance(command, _Ask):
                command.reply.finish(FinishReason.CANCELLED, GenerationStats())
            self._publish()

    def _publish(self, **changes: object) -> None:
        """Swap the snapshot; the queue's length is always that of now."""
        with self._condition:
            queued = sum(isinstance(command, _Ask) for command in self._commands)
            # The keywords are fields of the snapshot; mypy cannot see that through a dict.
            self._snapshot = replace(
                self._snapshot,
                seq=self._snapshot.seq + 1,
                queued=queued,
                cpu_s=process_time(),
                at=monotonic(),
                **changes,  # type: ignore[arg-type]
            )

    # -- the thread

    def _run(self) -> None:
        let_others_go_first(self._niceness)
        self._publish(cores=physical_cores())
        while (command := self._next_command()) is not None:
            try:
                self._do(command)
            except Exception as error:  # noqa: BLE001  whoever waits for the thread would wait for ever
                self._publish(state=EngineState.FAILED, error=str(_told(error)), load_stage="")
            self._current = None
        self._let_go()
        self._publish(state=EngineState.CLOSED)

    def _do(self, command: _Load | _Unload | _Ask) -> None:
        if isinstance(command, _Load):
            self._load(command)
        elif isinstance(command, _Unload):
            self._let_go()
            self._publish(state=EngineState.EMPTY, error="")
        else:
            self._answer(command)

    def _next_command(self) -> _Load | _Unload | _Ask | None:
        """Wait for the next command, moving weights meanwhile; None after `close`.

        Then only replies are taken, to be ended.
        """
        while True:
            with self._condition:
                due = self._condition.wait_for(
                    lambda: self._commands or self._closing or self._due_change(),
                    timeout=0 if self._moving else None,
                )
                wanted = self._due_change()
                if due and (self._closing or wanted is None):
                    return self._take_command()
            if wanted is not None:
                self._change(wanted, lambda: False)
            else:
                self._move()

    def _take_command(self) -> _Load | _Unload | _Ask | None:
        while self._closing and self._commands:
            command = self._commands.popleft()
            if isinstance(command, _Ask):
                command.reply.finish(FinishReason.CANCELLED, GenerationStats())
        self._current = self._commands.popleft() if self._commands else None
        return self._current

    def _changes_model(self) -> bool:
        """Whether another model, or none, is to come."""
        with self._condition:
            return any(isinstance(command, _Load | _Unload) for command in (*self._commands, self._current))

    def _due_change(self) -> _Change | None:
        """What is to be changed about the model, which stays."""
        with self._condition:
            if self._loaded is None or self._changes_model():
                return None
            return next(iter(self._wanted.values()), None)

    def _change(self, wanted: _Change, cancelled: Callable[[], bool]) -> None:
        """Make it, between two passes; what was stopped is tried again, unless another model is to come."""
        loaded = self._loaded
        assert loaded is not None, "see `_due_change`"

        def stopped() -> bool:
            newer = self._wanted.get(wanted.what) is not wanted or self._changes_model()
            return newer or self._closing or cancelled()

        try:
            done = wanted.make(loaded, stopped)
        except Exception as error:  # noqa: BLE001  the thread must outlive this, too
            done, loaded.budget_notices = True, (str(_told(error)),)
        self._moving = True
        if done:
            with self._condition:
                if self._wanted.get(wanted.what) is wanted:
                    del self._wanted[wanted.what]
            ram, vram = loaded.options.ram_budget, loaded.options.vram_budget
            self._publish(ram_budget=ram, vram_budget=vram, notices=loaded.notices)

    def _move(self) -> None:
        """Take in weights that are on their way, for a moment."""
        loaded = self._loaded
        tiers = None if loaded is None else loaded.backend.tiers
        try:
            self._moving = tiers is not None and tiers.pump(_MOVE_S)
        except Exception as error:  # noqa: BLE001  the next reply tells, if it is still so
            self._moving = False
            self._publish(notices=(str(_told(error)),))
            return
        if loaded is not None and not self._moving:
            self._publish(load_progress=1.0 if tiers is None else tiers.arrived_share, notices=loaded.notices)

    def _load(self, command: _Load) -> None:
        self._let_go()
        self._publish(state=EngineState.LOADING, error="", load_stage="starting", load_progress=0.0)
        try:
            from engine.loading import load_model

            loaded = load_model(command.options, self._show_progress, command.cancel, self._show_tiers)
            if command.cancel.cancelled:
                loaded.close()
                raise CancelledError("loading was stopped")
        except Exception as error:  # noqa: BLE001  the thread must outlive whatever a file provokes
            self._wanted.clear()
            stopped = isinstance(error, CancelledError)
            self._error = _NOTHING_LOADED if stopped else _told(error)
            self._publish(
                state=EngineState.EMPTY if stopped else EngineState.FAILED,
                error="" if stopped else str(self._error),
                load_stage="",
                load_progress=0.0,
                tiers=None,
            )
            return
        self._loaded, self._loaded_at = loaded, perf_counter()
        backend, tiers, self._moving = loaded.backend, loaded.backend.tiers, True
        self._publish(
            state=EngineState.READY,
            model=loaded.info,
            load_stage="",
            load_progress=1.0 if tiers is None else tiers.arrived_share,
            backend=backend.name,
            backend_reason=backend.reason,
            threads=backend.threads,
            ram_budget=command.options.ram_budget,
            vram_budget=command.options.vram_budget,
            notices=loaded.notices,
            calibration=loaded.calibration,
            draft_model=None if loaded.draft is None else loaded.draft.info,
        )

    def _show_progress(self, stage: str, progress: float) -> None:
        self._publish(load_stage=stage, load_progress=progress)

    def _show_tiers(self, tiers: TierSnapshot) -> None:
        placed = None if self._loaded is None else self._loaded.backend.tiers
        if placed is None:
            self._publish(tiers=tiers)
        else:
            self._publish(tiers=tiers, load_progress=placed.arrived_share)

    def _answer(self, command: _Ask) -> None:
        reply = command.reply
        if self._loaded is None:
            reply.finish(FinishReason.ERROR, reply.stats, self._error)
            self._publish()
            return
        loaded = self._loaded
        self._publish(state=EngineState.GENERATING)

        def between_passes() -> None:
            wanted = self._due_change()
            if wanted is not None:
                self._change(wanted, lambda: reply.cancel_token.cancelled)
            self._show_pass(loaded, reply)

        try:
            from engine.answer import answer

            answer(loaded, reply, max(command.asked_at, self._loaded_at), between_passes)
        except Exception as error:  # noqa: BLE001  the thread must outlive whatever a prompt provokes
            reply.finish(FinishReason.ERROR, reply.stats, _told(error))
        self._moving = True  # a pass may have begun moves, or left some
        self._publish(
            state=EngineState.READY, context_used=len(loaded.session.ids), calibration=loaded.calibration
        )

    def _show_pass(self, loaded: LoadedModel, reply: Reply) -> None:
        tiers = loaded.backend.tiers
        self._publish(
            context_used=len(loaded.session.ids),
            decode_tok_s=reply.stats.decode_tok_s or self._snapshot.decode_tok_s,
            tiers=None if tiers is None else tiers.snapshot(),
            calibration=loaded.calibration,
        )

    def _let_go(self) -> None:
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None
        self._moving = False
        self._error = _NOTHING_LOADED
        self._publish(
            model=None,
            backend="",
            backend_reason="",
            threads=0,
            context_used=0,
            tiers=None,
            ram_budget=None,
            vram_budget=None,
            decode_tok_s=0.0,
            notices=(),
            calibration=None,
            draft_model=None,
        )


def _change_ram_budget(budget: Budget | None, loaded: LoadedModel, stopped: Callable[[], bool]) -> bool:
    from engine.budgeting import change_ram_budget

    return change_ram_budget(loaded, budget, stopped)


def _change_vram_budget(budget: Budget | None, loaded: LoadedModel, stopped: Callable[[], bool]) -> bool:
    from engine.budgeting import change_vram_budget

    return change_vram_budget(loaded, budget)


def _pin_block(index: int, tier: Tier | None, loaded: LoadedModel, stopped: Callable[[], bool]) -> bool:
    from engine.budgeting import pin_block

    return pin_block(loaded, index, tier)


def _told(error: Exception) -> EngineError:
    """Our own errors without the frames, which hold memory of the model; others are faults of ours."""
    if isinstance(error, EngineError):
        return type(error)(str(error))
    if isinstance(error, kernel_errors.DeviceError):
        return DeviceError(
            f"the GPU failed: {error}; start Tiercel again, or let the CPU compute (--device cpu)"
        )
    if isinstance(error, MemoryError):
        return ContextError("memory ran out: close other programs, or use a smaller context (-c)")
    detail = " ".join(str(error).split())
    return EngineError(f"internal error: {type(error).__name__}: {detail}; please report it")
