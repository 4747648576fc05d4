"""Between the engine and the screen: the only file that knows both sides.

The engine never calls us. Ten times a second, or once when nothing happens, `pull` looks at its snapshot
and at the replies that grow, tells the listener what is new, and has the store save it. Runs in the event
loop and never blocks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, Protocol

from app.conversation import Conversation, Turn, TurnStatus, build_request
from app.sanitize import sanitize_line
from app.store import Store
from engine import (
    ContextError,
    EngineSnapshot,
    EngineState,
    FinishReason,
    LoadOptions,
    ModelInfo,
    Reply,
    ReplyStatus,
    Request,
    SamplingParams,
)

PULL_S: Final = 0.1
"""Seconds between two pulls while something is under way."""
IDLE_PULL_S: Final = 1.0
"""Seconds between two pulls otherwise."""
SAVE_S: Final = 1.5
"""Seconds between two saves of a growing reply: what a crash may cost."""


class ChatEngine(Protocol):
    """What we ask of an engine; no call blocks."""

    @property
    def snapshot(self) -> EngineSnapshot:
        """The engine's state now."""

    def load(self, options: LoadOptions) -> None:
        """Load a model instead of the present one."""

    def ask(self, request: Request) -> Reply:
        """Queue a request; the reply grows."""

    def close(self) -> None:
        """End the engine's thread."""


class Listener(Protocol):
    """Who shows what the bridge finds."""

    def engine_changed(self, snapshot: EngineSnapshot) -> None:
        """Show a new state of the engine."""

    def reply_grew(self, live: LiveReply) -> None:
        """Show the turn's new text, or only new counts."""

    def reply_ended(self, live: LiveReply) -> None:
        """Show that the reply has ended; its turn says how."""


@dataclass(slots=True)
class LiveReply:
    """A reply that was asked for and has not ended."""

    conversation: Conversation
    turn: Turn
    system: str
    """System prompt; empty for none."""
    reply: Reply | None = None
    """None while no model is loaded."""
    model: ModelInfo | None = None
    """The model that was asked."""
    offset: int = 0
    """How far the reply has been read."""
    saved_at: float = 0.0
    """When the text was saved last, on the monotonic clock."""

    @property
    def phase(self) -> str:
        """What the reply waits for, in words; empty once it has text."""
        if self.turn.text:
            return ""
        if self.reply is None:
            return "waiting for a model"
        if self.reply.status is ReplyStatus.QUEUED:
            return "waiting for its turn"
        stats = self.reply.stats
        return f"reading {stats.prefilled_tokens:,} of {stats.prompt_tokens - stats.cached_tokens:,} tokens"


class Bridge:
    """Pulls one engine for one listener."""

    def __init__(self, store: Store, listener: Listener) -> None:
        """Create a bridge whose engine is still to come."""
        self.snapshot = EngineSnapshot()
        self._store = store
        self._listener = listener
        self._engine: ChatEngine | None = None
        self._load: LoadOptions | None = None
        self._live: dict[int, LiveReply] = {}

    def attach(self, engine: ChatEngine) -> None:
        """Use `engine` from now on; what was asked before reaches it now."""
        self._engine = engine
        if self._load is not None:
            engine.load(self._load)
        self.pull()

    def load(self, options: LoadOptions) -> None:
        """Load a model, now or once the engine is there."""
        self._load = options
        if self._engine is not None:
            self._engine.load(options)
            self.pull()

    def ask(self, conversation: Conversation, system: str, sampling: SamplingParams) -> LiveReply:
        """Add a reply to `conversation` and have it generated as soon as a model is ready."""
        turn = conversation.add("assistant", status=TurnStatus.STREAMING)
        turn.sampling = sampling
        live = LiveReply(conversation, turn, system, saved_at=time.monotonic())
        self._live[conversation.id] = live
        return live

    def live(self, conversation: Conversation) -> LiveReply | None:
        """Return the reply that grows in `conversation`, if any."""
        return self._live.get(conversation.id)

    @property
    def busy(self) -> bool:
        """Whether any reply is still to come."""
        return bool(self._live)

    @property
    def asked(self) -> bool:
        """Whether the engine has a reply to finish before it takes another command."""
        return any(live.reply is not None for live in self._live.values())

    @property
    def active(self) -> bool:
        """Whether something is under way that `pull` should follow closely."""
        state = self.snapshot.state
        loading = self._load is not None and self._ready_model(self.snapshot) is None
        return self.busy or (loading and state not in (EngineState.FAILED, EngineState.CLOSED))

    def stop(self, conversation: Conversation) -> bool:
        """Stop the reply in `conversation` and keep its text; False when there is none."""
        live = self._live.get(conversation.id)
        if live is None:
            return False
        if live.reply is not None:
            live.reply.cancel()
        else:
            self._end(live, TurnStatus.CANCELLED, "stopped before it began")
            self._listener.reply_ended(live)
        return True

    def close(self) -> None:
        """Stop everything, keeping what has been generated, and end the engine; the listener may be gone."""
        for live in list(self._live.values()):
            if live.reply is not None:
                live.reply.cancel()
                live.turn.text += live.reply.read(live.offset)[0]
                live.turn.stats = live.reply.stats
            self._end(live, TurnStatus.CANCELLED, "stopped: the program was closed")
        if self._engine is not None:
            self._engine.close()

    def pull(self) -> None:
        """Look once: tell the listener and the store what is new."""
        if self._engine is None:
            return
        snapshot = self._engine.snapshot
        if snapshot.seq != self.snapshot.seq:
            self.snapshot = snapshot
            self._listener.engine_changed(snapshot)
        model = self._ready_model(snapshot)
        for live in list(self._live.values()):
            if live.reply is not None:
                self._follow(live, live.reply)
            elif model is not None:
                live.reply = self._ask_engine(self._engine, live, model)
                self._listener.reply_grew(live)

    def _ready_model(self, snapshot: EngineSnapshot) -> ModelInfo | None:
        """Return the model if it is the one that was asked for last and takes requests."""
        if snapshot.state not in (EngineState.READY, EngineState.GENERATING) or self._load is None:
            return None
        model = snapshot.model
        return model if model is not None and model.path == self._load.path else None

    def _ask_engine(self, engine: ChatEngine, live: LiveReply, model: ModelInfo) -> Reply:
        live.model, live.turn.model = model, sanitize_line(model.name)
        before = live.conversation.turns[: live.conversation.turns.index(live.turn)]
        sampling = live.turn.sampling or SamplingParams()
        request = build_request(
            before, has_template=model.has_template, system=live.system, sampling=sampling
        )
        return engine.ask(request)

    def _follow(self, live: LiveReply, reply: Reply) -> None:
        done = reply.done  # asked before reading: whatever is appended later comes before `done` as well
        text, live.offset = reply.read(live.offset)
        moved = reply.stats is not live.turn.stats
        live.turn.text += text
        live.turn.stats = reply.stats
        if text or moved:
            self._listener.reply_grew(live)
        if done:
            self._end(live, *_outcome(reply, live.model))
            self._listener.reply_ended(live)
        elif text and time.monotonic() - live.saved_at >= SAVE_S:
            live.saved_at = time.monotonic()
            self._store.save_text(live.turn)

    def _end(self, live: LiveReply, status: TurnStatus, note: str) -> None:
        live.turn.status, live.turn.note = status, sanitize_line(note)
        del self._live[live.conversation.id]
        self._store.finish(live.turn)


def told(error: str) -> str:
    """Return an error of the engine with the options of the command line in the words of the settings."""
    for option, key in (("(-c)", "context"), ("(-t)", "threads")):
        error = error.replace(option, f"(`{key}` in settings.toml)")
    return error


def _outcome(reply: Reply, model: ModelInfo | None) -> tuple[TurnStatus, str]:
    """Return how the turn ended and what to say about it; `model` is the one that was asked."""
    match reply.finish_reason:
        case FinishReason.CANCELLED:
            return TurnStatus.CANCELLED, "stopped"
        case FinishReason.ERROR:
            next_step = "; ^N begins a new conversation" if isinstance(reply.error, ContextError) else ""
            return TurnStatus.ERROR, told(str(reply.error or "the engine failed")) + next_step
        case FinishReason.LENGTH:
            used = reply.stats.prompt_tokens + reply.stats.completion_tokens
            if model is None or used < model.max_context:
                return TurnStatus.DONE, "ended here: the limit of tokens was reached"
            return TurnStatus.DONE, (
                f"ended here: the context of {model.max_context:,} tokens is full; ^N begins a new "
                "conversation, or raise `context` in settings.toml"
            )
        case _:
            return TurnStatus.DONE, ""
