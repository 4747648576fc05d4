"""Between the engine and the screen: the only file that knows both sides.

The engine never calls us. Some times a second, or once when nothing happens, `pull` looks at its snapshot
and at the replies that grow, tells the listener what is new, and has the store save it. A model that was let
go because nobody spoke to it is loaded again by the next message. Runs in the event loop and never blocks.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, Protocol

from app.conversation import Conversation, TurnStatus
from app.i18n import _
from app.live_reply import LiveReply
from app.request import ORDINARY, build_request, told_turns
from app.sanitize import sanitize_line
from app.store import Store
from engine import (
    Budget,
    DecodingOptions,
    DraftKind,
    EngineSnapshot,
    EngineState,
    LoadOptions,
    ModelInfo,
    Overflow,
    Reply,
    Request,
    SamplingParams,
    Tier,
)

IDLE_PULL_S: Final = 1.0
"""Seconds between two pulls while nothing is under way; otherwise `pace` says."""
SAVE_S: Final = 1.5
"""Seconds between two saves of a growing reply: what a crash may cost."""

BudgetOf = Literal["ram_budget", "vram_budget"]
"""Which memory a budget is for: the name of its field in options, settings and snapshots."""
_REFUSALS: Final[dict[BudgetOf, str]] = {
    "ram_budget": "the memory budget was not changed",
    "vram_budget": "the GPU memory budget was not changed",
}
"""How the engine begins to tell that it refuses one."""


class ChatEngine(Protocol):
    """What we ask of an engine; no call blocks."""

    @property
    def snapshot(self) -> EngineSnapshot:
        """The engine's state now."""

    def load(self, options: LoadOptions) -> None:
        """Load a model instead of the present one."""

    def stop_loading(self) -> None:
        """Give up the load that runs or waits."""

    def unload(self) -> None:
        """Let go of the model and its memory."""

    def ask(self, request: Request) -> Reply:
        """Queue a request; the reply grows."""

    def set_ram_budget(self, budget: Budget | None) -> None:
        """Change the memory for the model's weights between two passes."""

    def set_vram_budget(self, budget: Budget | None) -> None:
        """Change a GPU's memory for the model between two passes."""

    def pin_block(self, index: int, tier: Tier | None) -> None:
        """Keep a block in a tier, or leave it to the plan again; an event says what came of it."""

    def count_tokens(self, text: str) -> int | None:
        """Return how many tokens `text` is; None while no model is loaded."""

    def close(self) -> None:
        """End the engine's thread."""


class Listener(Protocol):
    """Who shows what the bridge finds."""

    def engine_changed(self, snapshot: EngineSnapshot) -> None:
        """Show a new state of the engine."""

    def budget_changed(self, model: ModelInfo, memory: BudgetOf, budget: Budget | None) -> None:
        """Remember a budget that was asked for, for it holds now."""

    def reply_grew(self, live: LiveReply) -> None:
        """Show the turn's new text, or only new counts."""

    def reply_ended(self, live: LiveReply) -> None:
        """Show that the reply has ended; its turn says how."""


class Bridge:
    """Pulls one engine for one listener."""

    def __init__(self, store: Store, listener: Listener) -> None:
        """Create a bridge whose engine is still to come."""
        self.snapshot = EngineSnapshot()
        self.unload_after_s = 0.0
        """Seconds without a message after which the model is let go; 0 keeps it."""
        self._store = store
        self._listener = listener
        self._engine: ChatEngine | None = None
        self._load: LoadOptions | None = None
        """The model that is wanted, loaded or not."""
        self._idle = False
        """Whether it was let go because nobody spoke to it."""
        self._budgets: dict[BudgetOf, Budget | None] = {}
        """Budgets that were asked for and that the engine does not have yet."""
        self._used_at = time.monotonic()
        self._live: dict[int, LiveReply] = {}

    def attach(self, engine: ChatEngine) -> None:
        """Use `engine` from now on; what was asked before reaches it now."""
        self._engine = engine
        if self._load is not None:
            engine.load(self._load)
        self.pull()

    # -- the model

    @property
    def wanted(self) -> Path | None:
        """The model that was asked for last, loaded or not."""
        return self._load.path if self._load is not None else None

    def load(self, options: LoadOptions) -> None:
        """Load a model, now or once the engine is there."""
        self._load, self._idle, self._budgets = options, False, {}
        self._used_at = time.monotonic()
        if self._engine is not None:
            self._engine.load(options)
            self.pull()

    def unload(self) -> None:
        """Let go of the model; replies that wait for one go on waiting."""
        self._load = None
        if self._engine is not None:
            self._engine.unload()
            self.pull()

    def set_budget(self, memory: BudgetOf, budget: Budget | None) -> bool:
        """Change the memory for the model, of the machine or of its GPU; False where no model is wanted.

        The listener hears of it once the engine has it, and only then does it hold when the model is loaded
        again. A model that could not be loaded is tried with it.
        """
        if self._load is None:
            return False
        wanted = _with_budget(self._load, memory, budget)
        if self._engine is None or self._idle:
            self._load = wanted
        elif self.snapshot.state is EngineState.FAILED:
            self.load(wanted)
        elif memory == "ram_budget":
            self._engine.set_ram_budget(budget)
        else:
            self._engine.set_vram_budget(budget)
        self._budgets[memory] = budget
        return True

    def why_no_budget(self, memory: BudgetOf) -> str:
        """Say why the loaded model can have no such budget; empty where it can, or where none is loaded."""
        model, tiers = self.snapshot.model, self.snapshot.tiers
        if memory == "vram_budget" and model is not None and (tiers is None or tiers.gpu is None):
            return _("no GPU computes: there is no video memory to share out")
        return ""

    def pin_block(self, index: int, tier: Tier | None) -> None:
        """Keep a block of the loaded model in a tier, or leave it to the plan again."""
        if self._engine is not None and self.snapshot.tiers is not None:
            self._engine.pin_block(index, tier)

    def count_tokens(self, text: str) -> int | None:
        """Return how many tokens `text` is; None while no model is loaded. May take a while."""
        return self._engine.count_tokens(text) if self._engine is not None else None

    # -- replies

    def ask(
        self,
        conversation: Conversation,
        system: str,
        sampling: SamplingParams,
        overflow: Overflow,
        decoding: DecodingOptions = ORDINARY,
    ) -> LiveReply:
        """Add a reply to `conversation` and have it generated as soon as a model is ready."""
        turn = conversation.add("assistant", status=TurnStatus.STREAMING)
        turn.sampling, turn.decoding = sampling, decoding
        live = LiveReply(conversation, turn, system, sampling, overflow, decoding, saved_at=time.monotonic())
        live.before_a_model = self._load is None
        self._live[conversation.id] = live
        if self._idle and self._load is not None:
            self.load(self._load)
        return live

    def live(self, conversation: Conversation) -> LiveReply | None:
        """Return the reply that grows in `conversation`, if any."""
        return self._live.get(conversation.id)

    def steer(self, conversation: Conversation, sampling: SamplingParams, decoding: DecodingOptions) -> None:
        """Draw and compute the next tokens of the reply in `conversation`, if any, in another way."""
        live = self._live.get(conversation.id)
        if live is not None:
            live.sampling, live.decoding = sampling, decoding
            if live.reply is None:
                live.turn.sampling, live.turn.decoding = sampling, decoding  # as it begins
            else:
                live.reply.change_sampling(sampling)
                live.reply.change_decoding(decoding)

    def decode_waiting(self, decoding: DecodingOptions) -> None:
        """Compute replies in this way that were asked for before any model was wanted."""
        for live in self._live.values():
            if live.before_a_model and live.reply is None:
                live.before_a_model = False
                live.decoding = live.turn.decoding = decoding

    @property
    def growing(self) -> set[int]:
        """Ids of the conversations that a reply is still to come in, open or not."""
        return set(self._live)

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
        state, tiers = self.snapshot.state, self.snapshot.tiers
        loading = self._load is not None and not self._idle and self._ready_model(self.snapshot) is None
        moves = tiers is not None and not tiers.settled
        return self.busy or moves or (loading and state not in (EngineState.FAILED, EngineState.CLOSED))

    def stop(self, conversation: Conversation) -> bool:
        """Stop the reply in `conversation` and keep its text, else loading; False when there is neither."""
        live = self._live.get(conversation.id)
        if live is not None and live.reply is not None:
            live.reply.cancel()
        elif live is not None:
            self._end(live, TurnStatus.CANCELLED, _("stopped before it began"))
            self._listener.reply_ended(live)
        elif self._engine is not None and self.snapshot.state is EngineState.LOADING:
            self._load = None
            self._engine.stop_loading()
        else:
            return False
        return True

    def close(self) -> None:
        """Stop everything, keeping what has been generated, and end the engine; the listener may be gone."""
        for live in list(self._live.values()):
            if live.reply is not None:
                live.reply.cancel()
                live.turn.text += live.reply.read(live.offset)[0]
                live.turn.stats = live.reply.stats
                live.note_settings(live.reply)
            self._end(live, TurnStatus.CANCELLED, _("stopped: the program was closed"))
        if self._engine is not None:
            self._engine.close()

    # -- some times a second

    def pull(self) -> None:
        """Look once: tell the listener and the store what is new."""
        if self._engine is None:
            return
        snapshot = self._engine.snapshot
        if snapshot.seq != self.snapshot.seq:
            self.snapshot = snapshot
            self._listener.engine_changed(snapshot)
        model = self._ready_model(snapshot)
        if model is not None:
            self._take_budgets(model, snapshot)
        for live in list(self._live.values()):
            self._used_at = time.monotonic()
            if live.reply is not None:
                self._follow(live, live.reply)
            elif model is not None:
                live.reply = self._ask_engine(self._engine, live, model)
                self._listener.reply_grew(live)
        if model is not None and self.unload_after_s:
            self._rest(self._engine)

    def _take_budgets(self, model: ModelInfo, snapshot: EngineSnapshot) -> None:
        """Note which budgets the engine has by now."""
        in_effect = {"ram_budget": snapshot.ram_budget, "vram_budget": snapshot.vram_budget}
        for memory, budget in list(self._budgets.items()):
            if in_effect[memory] == budget:
                del self._budgets[memory]
                if self._load is not None:
                    self._load = _with_budget(self._load, memory, budget)
                self._listener.budget_changed(model, memory, budget)

    def _rest(self, engine: ChatEngine) -> None:
        """Let go of a model that nobody has spoken to for long enough."""
        if not self._live and time.monotonic() - self._used_at > self.unload_after_s:
            self._idle = True
            engine.unload()

    def _ready_model(self, snapshot: EngineSnapshot) -> ModelInfo | None:
        """Return the model if it is the one that was asked for last and takes requests."""
        if snapshot.state not in (EngineState.READY, EngineState.GENERATING) or self._load is None:
            return None
        model = snapshot.model
        return model if model is not None and model.path == self._load.path else None

    def _ask_engine(self, engine: ChatEngine, live: LiveReply, model: ModelInfo) -> Reply:
        live.model, live.turn.model = model, sanitize_line(model.name)
        turns = live.conversation.turns
        live.told = told_turns(turns[: turns.index(live.turn)])
        snapshot = self.snapshot
        live.turn.made_by = {
            "backend": snapshot.backend,
            "threads": snapshot.threads,
            "context": model.max_context,
            "system": live.system,
        }
        if snapshot.tiers is not None and snapshot.tiers.gpu is not None:
            live.turn.made_by["gpu"] = snapshot.tiers.gpu.name
            live.turn.made_by["vram_budget"] = snapshot.tiers.vram_budget_bytes
        if snapshot.tiers is not None and snapshot.tiers.budget_bytes:
            live.turn.made_by["ram_budget"] = snapshot.tiers.budget_bytes
        if live.decoding.draft is DraftKind.MODEL and snapshot.draft_model is not None:
            live.turn.made_by["draft_model"] = sanitize_line(snapshot.draft_model.name)
        if live.told and live.told[0] is not turns[0]:
            live.turn.made_by["seen_from"] = live.told[0].id
        request = build_request(
            live.told,
            has_template=model.has_template,
            system=live.system,
            sampling=live.sampling,
            overflow=live.overflow,
            decoding=live.decoding,
        )
        return engine.ask(request)

    def _follow(self, live: LiveReply, reply: Reply) -> None:
        done = reply.done  # asked before reading: whatever is appended later comes before `done` as well
        text, live.offset = reply.read(live.offset)
        moved = reply.stats is not live.turn.stats
        live.turn.text += text
        live.turn.stats = reply.stats
        live.note_phase(reply)
        if reply.decoding_refusal and live.decoding != reply.decoding:
            live.decoding, live.refused = reply.decoding, reply.decoding_refusal
            moved = True
        if text or moved:
            live.note_settings(reply)
            self._listener.reply_grew(live)
        if done:
            self._end(live, *live.outcome(reply))
            self._listener.reply_ended(live)
        elif text and time.monotonic() - live.saved_at >= SAVE_S:
            live.saved_at = time.monotonic()
            self._store.save_text(live.turn)

    def _end(self, live: LiveReply, status: TurnStatus, note: str) -> None:
        live.turn.status, live.turn.note = status, sanitize_line(note)
        del self._live[live.conversation.id]
        self._store.finish(live.turn)


def n_events(snapshot: EngineSnapshot) -> int:
    """Return how many events of the tiers there have been, those that are gone included."""
    tiers = snapshot.tiers
    return tiers.events_dropped + len(tiers.events) if tiers is not None else 0


def refusal(snapshot: EngineSnapshot, memory: BudgetOf, since: int) -> str:
    """Return why the engine did not change a budget, in its words; empty where it has not refused it.

    Only what was told after the first `since` events counts: the same may have been refused before.
    """
    new = n_events(snapshot) - since
    events = snapshot.tiers.events[-new:] if snapshot.tiers is not None and new > 0 else ()
    return next((event.text for event in events if event.text.startswith(_REFUSALS[memory])), "")


def _with_budget(options: LoadOptions, memory: BudgetOf, budget: Budget | None) -> LoadOptions:
    if memory == "ram_budget":
        return replace(options, ram_budget=budget)
    return replace(options, vram_budget=budget)
