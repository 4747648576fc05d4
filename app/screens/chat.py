"""The chat screen: what is typed goes to the bridge, what the bridge finds goes to the widgets.

Its other parts: what is done to turns and to conversations (`turn_actions`, `conversation_actions`), and what
is shown of the engine (`engine_view`). Knows neither the engine's thread (the bridge does) nor SQL (the store
does).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Input, Markdown, Static, TextArea

from app.actions import Action
from app.attachments import read_attachments
from app.background import in_thread
from app.bridge import IDLE_PULL_S, Bridge
from app.clipboard import copy
from app.comparison import Way
from app.context_use import TokenCounts
from app.conversation import Turn
from app.i18n import _
from app.live_reply import LiveReply
from app.message_cost import message_cost
from app.models.options import Chosen, decoding_options
from app.new_conversation import new_conversation
from app.pace import Pace
from app.request import seen_from
from app.sanitize import sanitize_line
from app.screens.comparing import ComparingActions
from app.settings import SettingsFile
from app.slash import Command, Problem, message_of, parse
from app.store import Store
from app.tiers.report import TierWatch
from app.widgets.conversation_list import ConversationList
from app.widgets.find_bar import FindBar
from app.widgets.prompt import Prompt
from app.widgets.sampling_panel import SamplingPanel
from app.widgets.sidebar import Sidebar
from app.widgets.status import KeyBar, NoticeBar, StatusBar, TopBar
from app.widgets.switches import SwitchLine
from app.widgets.tier_panel import TierPanel, TierStrip
from app.widgets.transcript import Transcript
from app.workspace import Workspace
from engine import LoadOptions

HINT_S: Final = 5.0
"""Seconds that a hint stays."""
DRAFT_S: Final = 0.5
"""Seconds after a key when what is written is saved and counted."""


class ChatScreen(ComparingActions):
    """Conversations on the left, the open one in the middle, tiers on the right, the message box below."""

    def __init__(self, store: Store, settings: SettingsFile, chosen: Chosen | None = None) -> None:
        """Begin with a new, empty conversation; `chosen` is what the command line said."""
        super().__init__()
        self.chosen = chosen or Chosen()
        self.bridge = Bridge(store, self)
        self.bridge.unload_after_s = 60.0 * settings.values.unload_after_min
        self.workspace = Workspace(store, lambda: new_conversation(settings.values))
        self.tier_watch = TierWatch()
        """What the map knows of the last half minute."""
        self._store = store
        self._settings = settings
        self._infos = {}
        self._counts = TokenCounts(self.bridge.count_tokens)
        self._notices = NoticeBar()
        self._pace = Pace()
        self._next_pull: Timer | None = None
        """The pull that is to follow while something is under way."""
        self._hint_timer: Timer | None = None
        self._draft_timer: Timer | None = None
        self._store_notice = ""
        """What was last said of the store."""
        self._unsaved = ""
        """Why conversations were not saved when we last looked."""
        self._sending = False

    def compose(self) -> ComposeResult:
        """Build the panes."""
        # Textual finds these once it has laid the screen out, which would be done twice then.
        for cells, breakpoints in (
            (self.app.size.width, self.app.HORIZONTAL_BREAKPOINTS),
            (self.app.size.height, self.app.VERTICAL_BREAKPOINTS),
        ):
            self.add_class(*[name for least, name in breakpoints or () if least <= cells][-1:])
        self.add_class(f"-tiers-{self.settings.tiers}")
        yield TopBar()
        with Horizontal(id="columns"):
            yield Sidebar()
            with Vertical(id="main"):
                yield Transcript(self.workspace.current, _welcome())
                yield FindBar()
                yield self._notices
                yield TierStrip(self.tier_watch)
                yield SwitchLine()
                yield Prompt()
                yield StatusBar()
            yield TierPanel(self.tier_watch)
            yield SamplingPanel()
        yield KeyBar()
        yield Static(_("too small: 40x15 is the least"), id="too-small")

    def on_mount(self) -> None:
        """Put the cursor where one types."""
        self.query_one(Prompt).focus()
        self.show_tiers(self.settings.tiers)
        self.show_engine()

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

    async def show_stored(self) -> None:
        """Show what earlier runs left: conversations, drafts, messages sent."""
        await self.show_conversations()
        try:
            drafts = await in_thread(self._store.drafts)
            stored = await in_thread(lambda: self._store.stored(drafts))
            sent = await in_thread(self._store.sent)
        except sqlite3.Error:  # the list has said so
            return
        self.query_one(Prompt).set_history(sent)
        self.keep_draft()  # somebody may have begun to write meanwhile
        here = self.workspace.current
        self.workspace.restore_drafts(drafts, stored)
        if here.id in self.workspace.drafts:
            self.workspace.open(here)
        await self.show_conversation()
        self.check_persona()

    def stop(self) -> None:
        """Stop the reply; when there is none take a notice away; in any case go back to the message box."""
        prompt = self.query_one(Prompt)
        if self.workspace.editing is not None:
            self.workspace.edit(None)
            prompt.load_message("", ())
            self.keep_draft()
        elif not self.bridge.stop(self.workspace.current):
            self._notices.dismiss()
        search = self.query_one("#search", Input)
        if search.value:
            search.clear()
        self.remove_class("-sampling")
        if not self.is_wide:  # there the conversations lie over the message box
            self.set_chats(False)
        prompt.focus()

    def notice(self, kind: str, text: str) -> None:
        """Show a notice; see `NoticeBar.KINDS`."""
        if self._notices.is_attached:  # not so while the application closes
            self._notices.set(kind, text)

    def hint(self, text: str) -> None:
        """Show a notice that goes away by itself."""
        self.notice("hint", text)
        if self._hint_timer is not None:
            self._hint_timer.stop()
        self._hint_timer = self.set_timer(HINT_S, lambda: self.notice("hint", ""))

    def start_pulling(self) -> None:
        """Look at the engine and the store from now on."""
        self.set_interval(IDLE_PULL_S, self._pull)
        self._pull()

    def load(self, options: LoadOptions) -> None:
        """Load a model instead of the present one."""
        if self.bridge.asked:
            self.hint(_("the model is loaded when the replies before it have ended; Esc stops one"))
        self.bridge.decode_waiting(decoding_options(self.settings, options.path, self.chosen))
        self.bridge.load(options)
        self._pull()

    def ask_argument(self, action: Action) -> None:
        """Begin the slash command of `action` in the message box."""
        prompt = self.query_one(Prompt)
        prompt.load_message(f"/{action.slash} ", ())
        self.set_focus(prompt)

    # -- what the widgets say

    @on(Prompt.Submitted)
    async def _send(self, event: Prompt.Submitted) -> None:
        prompt, command = self.query_one(Prompt), parse(event.text)
        if isinstance(command, Problem):
            self.hint(command.text)
        elif isinstance(command, Command):
            prompt.clear()
            self.workspace.edit(None)
            self.keep_draft()
            await self.perform(command)
        elif self.bridge.live(self.workspace.current) is not None:
            self.hint(_("a reply is still coming: Esc stops it"))
        elif not self._sending:
            self._sending = True  # a second Enter while files are read sends nothing
            try:
                await self._send_message(event)
            finally:
                self._sending = False

    async def _send_message(self, event: Prompt.Submitted) -> None:
        text = message_of(event.text)
        conversation = self.workspace.current
        kept = {part.name for part in event.attachments}
        files, problems = await in_thread(lambda: read_attachments(text, Path.cwd(), kept))
        if problems:
            self.hint(problems[0])
            return
        if conversation is not self.workspace.current:
            return
        if (edited := self.workspace.editing) is not None:
            conversation.cut(edited)
        self.workspace.edit(None)
        self.notice("hint", "")  # of editing, it may be
        message = conversation.add("user", text)
        message.attachments = (*event.attachments, *files)
        prompt = self.query_one(Prompt)
        prompt.sent(text)
        self.workspace.keep_draft("")
        await self.ask_again(message)

    async def perform(self, command: Command) -> None:
        """Do what a slash command says."""
        namespace, _dot, name = command.action.method.partition(".")
        method = getattr(self.app if namespace == "app" else self, f"action_{name}")
        result = method(command.argument) if command.action.argument else method()
        if result is not None:
            await result

    async def ask_again(self, *added: Turn) -> None:
        """Ask for a reply to the message that ends the conversation; `added` are new turns before it."""
        await self.show_reply(self.begin_reply(*added), *added)

    def begin_reply(self, *added: Turn, way: Way | None = None) -> LiveReply:
        """Ask for a reply to the message that ends the conversation, as chosen now or in a `way` of its own.

        `added` are new turns before it.
        """
        conversation = self.workspace.current
        sampling, decoding = way or self.way
        live = self.bridge.ask(conversation, self.system, sampling, self.overflow, decoding)
        self._store.add(conversation, *added, live.turn)
        self.remember(conversation)
        return live

    async def show_reply(self, live: LiveReply, *added: Turn) -> None:
        """Show a reply that was begun, and the turns before it that are new."""
        if added and len(live.conversation.siblings(added[0])) == 1:
            await self.transcript.add(*added, live.turn)
        else:
            await self.transcript.show(live.conversation)
        self.reply_grew(live)
        self._pull()

    @on(Prompt.Scrolled)
    def _scroll(self, event: Prompt.Scrolled) -> None:
        if event.direction < 0:
            self.transcript.scroll_page_up(animate=False)
        else:
            self.transcript.scroll_page_down(animate=False)

    @on(TextArea.Changed)
    def _draft_changed(self) -> None:
        if self._draft_timer is None:  # not begun anew by each key: who types without a pause is saved too
            self._draft_timer = self.set_timer(DRAFT_S, self._keep_draft)

    @on(events.DescendantBlur)
    def _left_widget(self, event: events.DescendantBlur) -> None:
        if isinstance(event.widget, Prompt):
            self.keep_draft()

    async def _keep_draft(self) -> None:
        self._draft_timer = None
        self.keep_draft()
        prompt = self.query_one(Prompt)
        text, pastes, count = prompt.text, prompt.pastes, self.bridge.count_tokens
        cost = await in_thread(lambda: message_cost(text, pastes, Path.cwd(), count)) if text else ""
        if prompt.text == text:
            prompt.show_cost(cost)

    @on(Markdown.LinkClicked)
    def _copy_link(self, event: Markdown.LinkClicked) -> None:
        # Never opened: the address was written by a model.
        self.copy_text(event.href, event.href)

    # -- actions of the whole screen

    def action_chats(self) -> None:
        """Show the conversations and go there, or hide them when there already."""
        sidebar = self.query_one(Sidebar)
        if sidebar.display and sidebar.has_focus_within:
            self.set_chats(False)
        else:
            self.set_chats(True)
            self.query_one(ConversationList).focus()

    def action_newest(self) -> None:
        """Follow the newest line."""
        self.transcript.follow()

    def action_find(self, words: str = "") -> None:
        """Find in this conversation."""
        self.query_one(FindBar).open(words)

    @on(FindBar.Changed)
    def _find(self, event: FindBar.Changed) -> None:
        self.query_one(FindBar).show_count(*self.transcript.find(event.words))

    @on(FindBar.Next)
    def _find_next(self, event: FindBar.Next) -> None:
        self.query_one(FindBar).show_count(*self.transcript.find_next(event.step))

    @on(Transcript.Found)
    def _show_found(self, event: Transcript.Found) -> None:
        self.query_one(FindBar).show_count(event.place, event.count)

    @on(FindBar.Closed)
    def _end_find(self) -> None:
        self.transcript.focus()

    def action_editor(self) -> None:
        """Write the message in the person's own editor."""
        from app.editor import EditorError, edit_text

        prompt = self.query_one(Prompt)
        self.keep_draft()
        self._pull()  # nothing is saved while the editor has the terminal
        try:
            text, note = edit_text(self.app, prompt.text)
        except EditorError as error:
            self.hint(str(error))
            return
        prompt.load_message(text, prompt.attachments)
        if note:
            self.hint(note)

    def copy_text(self, text: str, what: str) -> None:
        """Copy `text`, and say how `what` was copied."""
        self.run_worker(self._copy(text, what), group="copy")

    async def _copy(self, text: str, what: str) -> None:
        how = await copy(self.app, text, self.settings.copy)
        self.hint(f"{sanitize_line(what)}: {how}")

    # -- inside

    def _pull(self) -> None:
        if not self.app.is_running:  # the widgets are going
            return
        self.bridge.pull()
        self._show_store()
        if self._next_pull is None and self.bridge.active:
            self._next_pull = self.set_timer(self._pace.begin(), self._pull_again)

    def _pull_again(self) -> None:
        """Pull, and again later: how much later depends on what it costs."""
        self._pull()
        active = self.app.is_running and self.bridge.active
        self._next_pull = self.set_timer(self._pace.next(), self._pull_again) if active else None

    def _show_store(self) -> None:
        """Say what is not saved; when that is over, list what could not be read before."""
        trouble = self._store.trouble
        if self._unsaved and not trouble:
            self.run_worker(self.show_conversations())
        self._unsaved = trouble
        again = _("conversations are not saved yet: {trouble}; it is tried again until it works")
        text = again.format(trouble=trouble) if trouble else self._store.notice
        if text != self._store_notice:  # most looks find nothing new
            self._store_notice = text
            self.notice("store", text)

    async def show_conversation(self) -> None:
        """Show the present conversation anew, with what is written in it."""
        conversation = self.workspace.current
        self.query_one(Prompt).restore(self.workspace.drafts.get(conversation.id, ""))
        await self.transcript.show(conversation)
        self.transcript.show_border(seen_from(conversation.turns))
        self.show_engine()
        self.show_list()

    def set_chats(self, shown: bool) -> None:
        """Show or hide the conversations."""
        # Each class holds for the width it was set at: another width begins with its own default.
        self.set_class(shown and not self.is_wide, "-chats-shown")
        self.set_class(self.is_wide and not shown, "-chats-hidden")
        if not shown:
            self.query_one(Prompt).focus()


def _welcome() -> Content:
    return Content.assemble(
        ("tiercel\n", "bold $primary"),
        (_("Talk to a model on this machine. Nothing leaves it."), "$muted"),
    )
