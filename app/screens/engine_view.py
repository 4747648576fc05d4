"""What the chat screen shows of the engine: its state, growing replies, the map, and how tokens are drawn.

A part of the chat screen, in a file of its own. Knows snapshots and replies as the bridge hands them over;
does not know the engine's thread.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from textual import on

from app.background import in_thread
from app.bridge import BudgetOf
from app.context_use import TokenCounts, context_use
from app.i18n import _
from app.live_reply import LiveReply, in_our_words
from app.model_settings import ModelSettings
from app.request import COMPLETION_TOKENS
from app.sanitize import sanitize_line
from app.screens.decoding_actions import DecodingActions
from app.widgets.context_meter import ContextMeter
from app.widgets.prompt import Prompt
from app.widgets.sampling_panel import SamplingPanel
from app.widgets.sidebar import Sidebar
from app.widgets.status import StatusBar, TopBar
from app.widgets.switches import SwitchLine
from app.widgets.tab_bar import Tab, TabBar
from app.widgets.tier_panel import TierPanel, TierStrip
from engine import (
    Budget,
    EngineSnapshot,
    EngineState,
    ModelInfo,
    Overflow,
    SamplingParams,
    prompt_room,
)

STATUS_S: Final = 0.5
"""Seconds between two looks of the numbers of a growing reply: faster ones cannot be read."""


class EngineView(DecodingActions):
    """What the bridge's listener shows; `ChatScreen` has the rest."""

    _counts: TokenCounts
    _map_at = 0.0
    """When the map was shown last, on the monotonic clock."""
    _shown_state = EngineState.EMPTY
    """The state that was shown last."""
    _status_at = 0.0
    """When the status was shown last, on the monotonic clock."""

    def change_settings(self, **changes: object) -> None:
        """Remember settings, now and in their file."""
        if self._settings.change(**changes):
            self.bridge.unload_after_s = 60.0 * self.settings.unload_after_min
            self.show_engine()
            self.run_worker(self._save_settings(), group="settings")

    def change_model_settings(self, path: Path, **changes: Any) -> None:
        """Remember settings of one model."""
        own = replace(self.settings.models.get(str(path), ModelSettings()), **changes)
        self.change_settings(models={**self.settings.models, str(path): own})

    def show_tiers(self, size: str) -> None:
        """Show the map of the weights as a panel or a strip, or not at all ("off")."""
        for name in ("off", "strip", "panel"):
            self.set_class(name == size, f"-tiers-{name}")
        self._show_map(self.bridge.snapshot)

    def engine_changed(self, snapshot: EngineSnapshot) -> None:
        """Show the engine's new state."""
        self._show_map(snapshot)
        self._show_notices(snapshot)
        if snapshot.state is EngineState.GENERATING:  # with every token; `reply_grew` shows the numbers
            return
        before, self._shown_state = self._shown_state, snapshot.state
        if snapshot.state is EngineState.LOADING:
            if before is EngineState.LOADING:  # only the progress is new
                self._show_status()
                return
            self._counts.forget()  # the next one has other tokens
        elif before is snapshot.state and snapshot.tiers is not None and not snapshot.tiers.settled:
            self._show_status()  # blocks move: the rest is as it was
            return
        self.show_engine()
        failed = snapshot.state is EngineState.FAILED
        self.notice("error", in_our_words(snapshot.error) if failed else "")
        if snapshot.state is EngineState.READY and snapshot.model is not None:
            self.change_settings(last_model=snapshot.model.path)

    def _show_notices(self, snapshot: EngineSnapshot) -> None:
        notices = [in_our_words(notice) for notice in snapshot.notices]
        if snapshot.model is not None and not snapshot.model.has_template:
            notices.insert(
                0,
                _(
                    "{name} is a base model: it continues your text, {count} tokens at a time, instead of "
                    "answering"
                ).format(name=sanitize_line(snapshot.model.name), count=COMPLETION_TOKENS),
            )
        self.notice("engine", " · ".join(notices))

    def budget_changed(self, model: ModelInfo, memory: BudgetOf, budget: Budget | None) -> None:
        """Remember the budget for this model."""
        self.change_model_settings(model.path, **{memory: budget})

    def reply_grew(self, live: LiveReply) -> None:
        """Show what is new of a reply, if its conversation is open."""
        if live.refused:
            self.tell_refusal(live)
        if live.conversation is self.workspace.current:
            if view := self.transcript.view(live.turn):
                view.grow(live.phase)
            if time.monotonic() - self._status_at >= STATUS_S:
                self._show_status()

    def reply_ended(self, live: LiveReply) -> None:
        """Show how a reply has ended."""
        if live.conversation is self.workspace.current:
            if view := self.transcript.view(live.turn):
                view.end()
            self.transcript.show_border(live.turn.made_by.get("seen_from"))
        self.show_engine()
        self.show_list()

    def action_sampling(self) -> None:
        """Open the panel of sampling, or close it."""
        self.toggle_class("-sampling")
        if self.has_class("-sampling"):
            self._show_sampling()
            self.query_one(SamplingPanel).focus_rows()
        else:
            self.query_one(Prompt).focus()

    @on(SamplingPanel.Left)
    def _leave_sampling(self) -> None:
        self.action_sampling()

    @on(SamplingPanel.Changed)
    def _steer(self, event: SamplingPanel.Changed) -> None:
        self.set_conversation_sampling(event.params)
        self.steer()

    def action_toggle_greedy(self) -> None:
        """Always take the most probable token, or draw again."""
        greedy, model = not self.greedy, self.bridge.snapshot.model
        if model is None:
            self.change_settings(greedy=greedy)
        else:
            self.change_model_settings(model.path, greedy=greedy)
        self.steer()

    def show_engine(self) -> None:
        """Show what depends on the engine, the settings and the conversation."""
        snapshot, conversation = self.bridge.snapshot, self.workspace.current
        tabs = [
            Tab(tab.title, tab.streaming is not None, tab.id in self.workspace.drafts)
            for tab in self.workspace.tabs
        ]
        self.query_one(TabBar).show(tabs, self.workspace.active)
        self.query_one(TopBar).show(snapshot)
        self.query_one(Sidebar).show(snapshot, conversation, self._chosen_sampling)
        self._show_sampling()
        self._show_status()

    @property
    def _chosen_sampling(self) -> SamplingParams:
        """What the conversation has chosen, the switch for greedy aside."""
        return self.workspace.current.sampling or self.settings.sampling

    def _show_sampling(self) -> None:
        panel = self.query_one(SamplingPanel)
        if self.has_class("-sampling"):
            live = self.bridge.live(self.workspace.current)
            wanted, turns = self._chosen_sampling, reversed(self.workspace.current.turns)
            seed = next((turn.stats.seed for turn in turns if turn.stats.seed), 0)
            if live is not None and live.reply is not None and live.pending:
                now = live.reply.sampling
                now = replace(now, temperature=wanted.temperature) if self.greedy else now
                panel.show(now, True, seed)
            else:
                panel.show(wanted, False, seed)

    def _show_status(self) -> None:
        self._status_at = time.monotonic()
        conversation, model = self.workspace.current, self.bridge.snapshot.model
        total = model.max_context if model is not None else 0
        reserve = total - prompt_room(total, None) if self.overflow is Overflow.DROP_OLDEST else 0
        use = context_use(conversation, self.system, total, self._counts, reserve=reserve)
        self.query_one(StatusBar).show(self.bridge.snapshot, self.bridge.live(conversation), use)
        self.query_one(ContextMeter).show(use, self.overflow)
        switches = self.switches()
        self.query_one(Sidebar).show_switches(switches)
        self.query_one(SwitchLine).show(switches)

    def _show_map(self, snapshot: EngineSnapshot) -> None:
        now, tiers = time.monotonic(), snapshot.tiers
        still = tiers is not None and not tiers.in_flight and snapshot.state is EngineState.GENERATING
        if still and now - self._map_at < STATUS_S:  # nothing moves: only numbers are new
            return
        self._map_at = now
        for widget in (self.query_one(TierPanel), self.query_one(TierStrip)):
            if widget.display:
                widget.show(snapshot)

    async def _save_settings(self) -> None:
        try:
            await in_thread(self._settings.save)
        except OSError as error:
            self.notice("settings", _("settings were not saved: {error}").format(error=error))
