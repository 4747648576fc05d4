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
from time import monotonic, perf_counter, process_time
from typing import TYPE_CHECKING

from engine.cancel import CancelToken
from engine.config import LoadOptions, Request
from engine.errors import CancelledError, ContextError, EngineError
from engine.events import EngineSnapshot, EngineState, FinishReason, GenerationStats, Reply, TierSnapshot
from engine.machine import physical_cores
from engine.tiers.budget import Budget

if TYPE_CHECKING:
    from engine.loading import LoadedModel

CLOSE_TIMEOUT_S = 2.0
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
class _Budget:
    """What `set_ram_budget` asked for; compared by identity."""

    budget: Budget | None


class Engine:
    """One model at a time, one reply at a time, in the order of the calls."""

    def __init__(self) -> None:
        """Start the thread; nothing is loaded."""
        self._commands: deque[_Load | _Unload | _Ask] = deque()
        self._condition = threading.Condition()
        self._snapshot = EngineSnapshot()
        self._current: _Load | _Unload | _Ask | None = None
        self._wanted: _Budget | None = None
        """A memory budget for the model that is loaded, or is being loaded."""
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
            self._wanted = None  # it was for another model
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
        with self._condition:
            if self._loaded is not None or self._changes_model():
                self._wanted = _Budget(budget)
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
        self._publish(cores=physical_cores())
        while (command := self._next_command()) is not None:
            if isinstance(command, _Load):
                self._load(command)
            elif isinstance(command, _Unload):
                self._let_go()
                self._publish(state=EngineState.EMPTY, error="")
            else:
                self._answer(command)
            self._current = None
        self._let_go()
        self._publish(state=EngineState.CLOSED)

    def _next_command(self) -> _Load | _Unload | _Ask | None:
        """Wait for the next command, changing the memory budget meanwhile; None after `close`.

        Then only replies are taken, to be ended.
        """
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._commands or self._closing or self._due_budget())
                wanted = self._due_budget()
                if self._closing or wanted is None:
                    return self._take_command()
            self._change_budget(wanted, lambda: False)

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

    def _due_budget(self) -> _Budget | None:
        """The memory budget that the model, which stays, is to have instead of its present one."""
        with self._condition:
            return None if self._loaded is None or self._changes_model() else self._wanted

    def _change_budget(self, wanted: _Budget, cancelled: Callable[[], bool]) -> None:
        """Change it, between two passes; what was stopped is tried again, unless another model is to come."""
        loaded = self._loaded
        assert loaded is not None, "see `_due_budget`"

        def stopped() -> bool:
            newer = self._wanted is not wanted or self._changes_model()
            return newer or self._closing or cancelled()

        try:
            from engine.budgeting import change_budget

            done = change_budget(loaded, wanted.budget, stopped)
        except Exception as error:  # noqa: BLE001  the thread must outlive this, too
            done, loaded.budget_notices = True, (str(_told(error)),)
        if done:
            with self._condition:
                if self._wanted is wanted:
                    self._wanted = None
            self._publish(ram_budget=loaded.options.ram_budget, notices=loaded.notices)

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
            self._wanted = None
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
        backend = loaded.backend
        self._publish(
            state=EngineState.READY,
            model=loaded.info,
            load_stage="",
            load_progress=1.0,
            backend=backend.name,
            backend_reason=backend.reason,
            threads=backend.threads,
            ram_budget=command.options.ram_budget,
            vram_budget=command.options.vram_budget,
            notices=loaded.notices,
        )

    def _show_progress(self, stage: str, progress: float) -> None:
        self._publish(load_stage=stage, load_progress=progress)

    def _show_tiers(self, tiers: TierSnapshot) -> None:
        self._publish(tiers=tiers)

    def _answer(self, command: _Ask) -> None:
        reply = command.reply
        if self._loaded is None:
            reply.finish(FinishReason.ERROR, reply.stats, self._error)
            self._publish()
            return
        loaded = self._loaded
        self._publish(state=EngineState.GENERATING)

        def between_passes() -> None:
            wanted = self._due_budget()
            if wanted is not None:
                self._change_budget(wanted, lambda: reply.cancel_token.cancelled)
            self._show_pass(loaded, reply)

        try:
            from engine.answer import answer

            answer(loaded, reply, max(command.asked_at, self._loaded_at), between_passes)
        except Exception as error:  # noqa: BLE001  the thread must outlive whatever a prompt provokes
            reply.finish(FinishReason.ERROR, reply.stats, _told(error))
        self._publish(state=EngineState.READY, context_used=len(loaded.session.ids))

    def _show_pass(self, loaded: LoadedModel, reply: Reply) -> None:
        tiers = loaded.backend.tiers
        self._publish(
            context_used=len(loaded.session.ids),
            decode_tok_s=reply.stats.decode_tok_s or self._snapshot.decode_tok_s,
            tiers=None if tiers is None else tiers.snapshot(),
        )

    def _let_go(self) -> None:
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None
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
        )


def _told(error: Exception) -> EngineError:
    """Our own errors without the frames, which hold memory of the model; others are faults of ours."""
    if isinstance(error, EngineError):
        return type(error)(str(error))
    if isinstance(error, MemoryError):
        return ContextError("memory ran out: close other programs, or use a smaller context (-c)")
    detail = " ".join(str(error).split())
    return EngineError(f"internal error: {type(error).__name__}: {detail}; please report it")
