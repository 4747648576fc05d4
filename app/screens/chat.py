"""The chat screen: what is typed goes to the bridge, what the bridge finds goes to the widgets.

Holds the open conversation. Does not know the engine's thread (the bridge does) or SQL (the store does).
"""

from __future__ import annotations

import sqlite3
import time
from datetime import date
from typing import Final

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Input, Markdown, Static

from app.background import in_thread
from app.bridge import IDLE_PULL_S, PULL_S, Bridge, LiveReply, told
from app.conversation import COMPLETION_TOKENS, Conversation
from app.sanitize import sanitize_line
from app.settings import SettingsFile
from app.store import ConversationInfo, Store
from app.widgets.conversation_list import ConversationList
from app.widgets.prompt import Prompt
from app.widgets.sidebar import Sidebar
from app.widgets.status import KeyBar, NoticeBar, StatusBar, TopBar
from app.widgets.transcript import Transcript
from engine import EngineSnapshot, EngineState, LoadOptions

STATUS_S: Final = 0.3
"""Seconds between two looks of the numbers of a growing reply: faster ones cannot be read."""
HINT_S: Final = 5.0
"""Seconds that a hint stays."""
_WELCOME: Final = "[b $primary]tiercel[/]\n[$muted]Talk to a model on this machine. Nothing leaves it.[/]"
_BASE_MODEL: Final = (
    f"a base model: it continues your text, {COMPLETION_TOKENS} tokens at a time, instead of answering"
)


class ChatScreen(Screen[None]):
    """Conversations on the left, the open one on the right, the message box below it."""

    def __init__(self, store: Store, settings: SettingsFile) -> None:
        """Begin with a new, empty conversation."""
        super().__init__()
        self.bridge = Bridge(store, self)
        self._store = store
        self._settings = settings
        self._conversation = Conversation()
        self._opened: dict[int, Conversation] = {}
        """Conversations opened so far: their text is here even while it cannot be saved."""
        self._infos: dict[int, ConversationInfo] = {}
        self._pulls: list[Timer] = []
        self._hint_timer: Timer | None = None
        self._unsaved = ""
        """Why conversations were not saved when we last looked."""
        self._status_at = 0.0
        """When the status was shown last, on the monotonic clock."""

    def compose(self) -> ComposeResult:
        """Build the panes."""
        with Horizontal(id="columns"):
            yield Sidebar()
            with Vertical(id="main"):
                yield TopBar()
                yield Transcript(self._conversation, Content.from_markup(_WELCOME))
                yield NoticeBar()
                yield Prompt()
                yield StatusBar()
        yield KeyBar()
        yield Static("too small: 40x15 is the least", id="too-small")

    def on_mount(self) -> None:
        """Put the cursor where one types."""
        self.query_one(Prompt).focus()
        self._show_engine()

    def on_resize(self) -> None:
        """Find the cursor again: a terminal too small hides what had it, and keys would go nowhere."""
        self.call_after_refresh(self._keep_focus)

    def on_screen_resume(self) -> None:
        """As for a change of size, which may have come while another screen was on top."""
        self.call_after_refresh(self._keep_focus)

    def _keep_focus(self) -> None:
        if self.focused is None:
            self.query_one(Prompt).focus()

    # -- what the application asks for

    async def show_conversations(self) -> None:
        """Read the list of conversations from the store."""
        try:
            infos = await in_thread(self._store.conversations)
        except sqlite3.Error as error:
            self.notice("error", f"the conversations cannot be read: {error}")
            return
        self._infos = {info.id: info for info in infos} | self._infos
        self._show_list()

    async def new_chat(self) -> None:
        """Begin a new conversation."""
        self.set_focus(self.query_one(Prompt))  # at once: the next key is meant for it
        await self._show(Conversation())

    def stop(self) -> None:
        """Stop the reply; when there is none take a notice away; in any case go back to the message box."""
        if not self.bridge.stop(self._conversation):
            self.query_one(NoticeBar).dismiss()
        search = self.query_one("#search", Input)
        if search.value:
            search.clear()
        if not self.has_class("-wide"):  # there the conversations lie over the message box
            self._set_chats(False)
        self.query_one(Prompt).focus()

    def toggle_chats(self) -> None:
        """Show the conversations and go there, or hide them when there already."""
        sidebar = self.query_one(Sidebar)
        if sidebar.display and sidebar.has_focus_within:
            self._set_chats(False)
        else:
            self._set_chats(True)
            self.query_one(ConversationList).focus()

    def newest(self) -> None:
        """Follow the newest line."""
        self.query_one(Transcript).follow()

    def notice(self, kind: str, text: str) -> None:
        """Show a notice; see `NoticeBar.KINDS`."""
        for bar in self.query(NoticeBar):  # none while the application closes
            bar.set(kind, text)

    def hint(self, text: str) -> None:
        """Show a notice that goes away by itself."""
        self.notice("hint", text)
        if self._hint_timer is not None:
            self._hint_timer.stop()
        self._hint_timer = self.set_timer(HINT_S, lambda: self.notice("hint", ""))

    def start_pulling(self) -> None:
        """Look at the engine and the store from now on."""
        self._pulls = [self.set_interval(seconds, self._pull) for seconds in (PULL_S, IDLE_PULL_S)]

    def load(self, options: LoadOptions) -> None:
        """Load a model instead of the present one."""
        if self.bridge.asked:
            self.hint("the model is loaded when the replies before it have ended; Esc stops one")
        self.bridge.load(options)
        self._pull()

    def change_settings(self, **changes: object) -> None:
        """Remember settings, now and in their file."""
        if self._settings.change(**changes):
            self.run_worker(self._save_settings(), group="settings")

    # -- what the bridge finds

    def engine_changed(self, snapshot: EngineSnapshot) -> None:
        """Show the engine's new state."""
        if snapshot.state is EngineState.GENERATING:  # with every token; `reply_grew` shows the numbers
            return
        self._show_engine()
        self.notice("error", told(snapshot.error) if snapshot.state is EngineState.FAILED else "")
        notices = list(snapshot.notices)
        if snapshot.model is not None and not snapshot.model.has_template:
            notices.insert(0, f"{sanitize_line(snapshot.model.name)} is {_BASE_MODEL}")
        self.notice("engine", " · ".join(notices))
        if snapshot.state is EngineState.READY and snapshot.model is not None:
            self.change_settings(last_model=snapshot.model.path)

    def reply_grew(self, live: LiveReply) -> None:
        """Show what is new of a reply, if its conversation is open."""
        if live.conversation is self._conversation:
            if view := self.query_one(Transcript).view(live.turn):
                view.grow(live.phase)
            if time.monotonic() - self._status_at >= STATUS_S:
                self._show_status()

    def reply_ended(self, live: LiveReply) -> None:
        """Show how a reply has ended."""
        if live.conversation is self._conversation:
            if view := self.query_one(Transcript).view(live.turn):
                view.end()
            self._show_status()

    # -- what the widgets say

    @on(Prompt.Submitted)
    async def _send(self, event: Prompt.Submitted) -> None:
        if self.bridge.live(self._conversation) is not None:
            self.hint("a reply is still coming: Esc stops it")
            return
        self.query_one(Prompt).clear()
        conversation = self._conversation
        message = conversation.add("user", event.text)
        settings = self._settings.values
        live = self.bridge.ask(conversation, settings.system, settings.sampling)
        self._store.add(conversation, message, live.turn)
        self._opened[conversation.id] = conversation
        self._remember(conversation)
        await self.query_one(Transcript).add(message, live.turn)
        self.reply_grew(live)
        self._pull()

    @on(Prompt.Scrolled)
    def _scroll(self, event: Prompt.Scrolled) -> None:
        transcript = self.query_one(Transcript)
        if event.direction < 0:
            transcript.scroll_page_up(animate=False)
        else:
            transcript.scroll_page_down(animate=False)

    @on(ConversationList.Opened)
    async def _open(self, event: ConversationList.Opened) -> None:
        self.set_focus(self.query_one(Prompt))
        before = self._conversation
        conversation = self._opened.get(event.conversation_id)
        if conversation is None:
            info = self._infos[event.conversation_id]
            try:
                conversation = await in_thread(lambda: self._store.load(info))
            except sqlite3.Error as error:
                self.notice("error", f"this conversation cannot be read: {error}")
                return
            self._opened[conversation.id] = conversation
        if not self.has_class("-wide"):
            self._set_chats(False)
        if self._conversation is before:  # else a new one was begun while this one was read
            await self._show(conversation)

    @on(Input.Changed, "#search")
    async def _search(self, event: Input.Changed) -> None:
        query = event.value
        if not query.strip():
            self._show_list()
            return
        try:
            hits = await in_thread(lambda: self._store.search(query))
        except sqlite3.Error as error:
            self.notice("error", f"the search failed: {error}")
            return
        if self.query_one("#search", Input).value == query:  # else a later one is on its way
            for hit in hits:
                info = ConversationInfo(hit.conversation_id, hit.title, hit.updated_at)
                self._infos.setdefault(hit.conversation_id, info)
            self.query_one(ConversationList).show_hits(hits, self._conversation.id)

    @on(Input.Submitted, "#search")
    def _leave_search(self) -> None:
        self.query_one(ConversationList).focus()

    @on(Markdown.LinkClicked)
    def _copy_link(self, event: Markdown.LinkClicked) -> None:
        # Never opened: the address was written by a model.
        self.app.copy_to_clipboard(event.href)
        self.hint(f"address sent to the terminal's clipboard: {event.href}")

    # -- inside

    def _pull(self) -> None:
        if not self.app.is_running:  # the widgets are going
            return
        self.bridge.pull()
        self._show_store()
        for timer in self._pulls[:1]:
            if self.bridge.active:
                timer.resume()
            else:
                timer.pause()

    def _show_store(self) -> None:
        """Say what is not saved; when that is over, list what could not be read before."""
        trouble = self._store.trouble
        if self._unsaved and not trouble:
            self.run_worker(self.show_conversations())
        self._unsaved = trouble
        again = f"conversations are not saved yet: {trouble}; it is tried again until it works"
        self.notice("store", again if trouble else self._store.notice)

    async def _show(self, conversation: Conversation) -> None:
        self._conversation = conversation
        await self.query_one(Transcript).show(conversation)
        self._show_engine()
        self._show_list()

    def _remember(self, conversation: Conversation) -> None:
        info = ConversationInfo(conversation.id, conversation.title, conversation.updated_at)
        self._infos[conversation.id] = info
        self._show_list()
        self._show_engine()

    def _show_list(self) -> None:
        if self.query_one("#search", Input).value.strip():  # what was found stays
            return
        infos = sorted(self._infos.values(), key=lambda info: info.updated_at, reverse=True)
        self.query_one(ConversationList).show(infos, self._conversation.id, date.today())

    def _show_engine(self) -> None:
        self.query_one(TopBar).show(self._conversation.title, self.bridge.snapshot)
        self.query_one(Sidebar).show_model(self.bridge.snapshot)
        self._show_status()

    def _show_status(self) -> None:
        self._status_at = time.monotonic()
        live = self.bridge.live(self._conversation)
        self.query_one(StatusBar).show(self.bridge.snapshot, live, self._conversation.context_used)

    def _set_chats(self, shown: bool) -> None:
        # Each class holds for the width it was set at: another width begins with its own default.
        wide = self.has_class("-wide")
        self.set_class(shown and not wide, "-chats-shown")
        self.set_class(wide and not shown, "-chats-hidden")
        if not shown:
            self.query_one(Prompt).focus()

    async def _save_settings(self) -> None:
        try:
            await in_thread(self._settings.save)
        except OSError as error:
            self.notice("settings", f"settings were not saved: {error}")
