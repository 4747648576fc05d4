"""What a person does with whole conversations: open, close, rename, delete, export, and how each is led.

A part of the chat screen, in a file of its own. Knows the workspace and the store; does not know how replies
come.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import replace
from datetime import date
from pathlib import Path

from textual import on
from textual.widgets import Input

from app.actions import Action
from app.background import in_thread
from app.bridge import Bridge
from app.conversation import Conversation
from app.i18n import _
from app.keymap import by_id
from app.locations import expanded
from app.sanitize import sanitize_line
from app.screens.turn_actions import TurnActions
from app.settings import Settings, SettingsFile
from app.store import ConversationInfo, Store
from app.widgets.conversation_list import ConversationList
from app.widgets.prompt import Prompt
from app.widgets.tab_bar import TabBar
from engine import Overflow, SamplingParams


class ConversationActions(TurnActions):
    """The actions of the group Conversations; `ChatScreen` has the rest."""

    bridge: Bridge
    _store: Store
    _settings: SettingsFile
    _infos: dict[int, ConversationInfo]
    """What the list shows, by id."""

    def notice(self, kind: str, text: str) -> None:
        """Show a notice; see `NoticeBar.KINDS`."""
        raise NotImplementedError

    def show_engine(self) -> None:
        """Show what depends on the engine, the settings and the conversation."""
        raise NotImplementedError

    def ask_argument(self, action: Action) -> None:
        """Begin the slash command of `action` in the message box."""
        raise NotImplementedError

    def set_chats(self, shown: bool) -> None:
        """Show or hide the conversations."""
        raise NotImplementedError

    @property
    def settings(self) -> Settings:
        """The settings now."""
        return self._settings.values

    @property
    def system(self) -> str:
        """The system prompt of the conversation on the screen."""
        own = self.workspace.current.system
        return self.settings.system if own is None else own

    @property
    def sampling(self) -> SamplingParams:
        """How the next reply's tokens are drawn."""
        sampling = self.workspace.current.sampling or self.settings.sampling
        return replace(sampling, temperature=0.0) if self.greedy else sampling

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken: chosen for the model, or for all."""
        model = self.bridge.snapshot.model
        own = self.settings.models.get(str(model.path)) if model is not None else None
        return self.settings.greedy if own is None or own.greedy is None else own.greedy

    @property
    def overflow(self) -> Overflow:
        """What happens when the context is full."""
        return self.workspace.current.overflow or self.settings.overflow

    # -- tabs

    async def action_new_chat(self) -> None:
        """Begin a new conversation."""
        self.set_focus(self.query_one(Prompt))  # at once: the next key is meant for it
        self.keep_draft()
        self.workspace.new()
        await self.show_conversation()
        self.check_persona()

    def check_persona(self) -> None:
        """Say so where the persona of every new conversation is gone."""
        current = self.workspace.current
        if (name := self.settings.persona) and not (current.turns or current.persona):
            self.hint(_("there is no persona {name}: /persona shows all").format(name=name))

    async def action_turn_tab(self, step: int) -> None:
        """Go to the next open conversation, or the one before."""
        await self._go((self.workspace.active + step) % len(self.workspace.tabs))

    async def action_close_tab(self) -> None:
        """Close the tab of this conversation."""
        self.keep_draft()
        self.workspace.close()
        await self.show_conversation()

    @on(TabBar.Chosen)
    async def _choose_tab(self, event: TabBar.Chosen) -> None:
        await self._go(event.index)

    async def action_tab(self, number: int) -> None:
        """Go to an open conversation by its place, from 1."""
        await self._go(number - 1)

    async def _go(self, place: int) -> None:
        self.keep_draft()
        if self.workspace.go(place):
            await self.show_conversation()

    def keep_draft(self) -> None:
        """Keep what is written and not sent, and mark where that is."""
        marked = self.workspace.current.id in self.workspace.drafts
        self.workspace.keep_draft(self.query_one(Prompt).draft)
        if marked != (self.workspace.current.id in self.workspace.drafts):
            self.show_list()
            self.show_engine()

    # -- the list

    async def show_conversations(self) -> None:
        """Read the list of conversations from the store."""
        try:
            infos = await in_thread(self._store.conversations)
        except sqlite3.Error as error:
            self.notice("error", _("the conversations cannot be read: {error}").format(error=error))
            return
        self._infos = {info.id: info for info in infos} | self._infos
        self.show_list()

    def show_list(self) -> None:
        """Show the conversations, newest first."""
        if self.query_one("#search", Input).value.strip():  # what was found stays
            return
        infos = sorted(self._infos.values(), key=lambda info: info.updated_at, reverse=True)
        marks = dict.fromkeys(self.workspace.drafts, "✎") | dict.fromkeys(self.bridge.growing, "●")
        self.query_one(ConversationList).show(infos, self.workspace.current.id, date.today(), marks)

    async def forget(self, conversation_ids: Collection[int]) -> None:
        """Close and no longer list conversations that were deleted elsewhere."""
        for conversation_id in conversation_ids:
            self._infos.pop(conversation_id, None)
            if (conversation := await self._read(conversation_id)) is not None:
                self.workspace.note_deleted(conversation)
        if self.workspace.drop(conversation_ids):
            await self.show_conversation()
        await self.show_conversations()

    def remember(self, conversation: Conversation) -> None:
        """List a conversation that has changed."""
        self._infos[conversation.id] = ConversationInfo(
            conversation.id, conversation.title, conversation.updated_at, conversation.persona
        )
        self.show_list()
        self.show_engine()

    @on(ConversationList.Opened)
    async def _open_listed(self, event: ConversationList.Opened) -> None:
        self.set_focus(self.query_one(Prompt))
        await self.open_conversation(event.conversation_id)

    async def open_conversation(self, conversation_id: int, message_id: int | None = None) -> None:
        """Go to a stored conversation, and there to one of its messages."""
        before = self.workspace.current
        conversation = await self._read(conversation_id)
        if conversation is None:
            return
        if not self.is_wide:
            self.set_chats(False)
        if self.workspace.current is not before:  # a new one was begun while this one was read
            return
        self.keep_draft()
        self.workspace.open(conversation)
        await self.show_conversation()
        if message_id is not None:
            await self._show_message(conversation, message_id)

    async def _read(self, conversation_id: int) -> Conversation | None:
        """Return a conversation, from the store if need be; None, which it says, where it cannot be read."""
        if (held := self.workspace.held(conversation_id)) is not None:
            return held
        try:
            return await in_thread(lambda: self._store.load(conversation_id))
        except sqlite3.Error as error:
            self.notice("error", _("this conversation cannot be read: {error}").format(error=error))
            return None

    async def _show_message(self, conversation: Conversation, message_id: int) -> None:
        if conversation.lead_through(message_id):
            self._store.set_head(conversation)
            await self.show_conversation()
        turn = next((turn for turn in conversation.turns if turn.id == message_id), None)
        if turn is not None:
            self.transcript.choose(turn)

    @property
    def is_wide(self) -> bool:
        """Whether the conversations have a pane of their own beside the chat."""
        return self.has_class("-wide") or self.has_class("-wider")

    @on(Input.Changed, "#search")
    async def _search(self, event: Input.Changed) -> None:
        await self._list_found(event.value)

    async def _list_found(self, query: str) -> None:
        """List what has the words in the field above, or everything where there are none."""
        if not query.strip():
            self.show_list()
            return
        try:
            hits = await in_thread(lambda: self._store.search(query))
        except sqlite3.Error as error:
            self.notice("error", _("the search failed: {error}").format(error=error))
            return
        if self.query_one("#search", Input).value == query:  # else a later one is on its way
            self.query_one(ConversationList).show_hits(hits, self.workspace.current.id)

    @on(Input.Submitted, "#search")
    def _leave_search(self) -> None:
        self.query_one(ConversationList).focus()

    @on(ConversationList.Deleted)
    async def _delete_listed(self, event: ConversationList.Deleted) -> None:
        if self.workspace.is_deleted(event.conversation_id):  # the key was pressed twice
            return
        if (conversation := await self._read(event.conversation_id)) is not None:
            await self._delete(conversation)

    @on(ConversationList.RenameAsked)
    async def _rename_listed(self, event: ConversationList.RenameAsked) -> None:
        await self.open_conversation(event.conversation_id)
        self.ask_argument(by_id("chat.rename"))

    # -- one conversation

    async def action_delete_chat(self) -> None:
        """Delete the conversation on the screen."""
        if self.workspace.current.turns:
            await self._delete(self.workspace.current)

    async def _delete(self, conversation: Conversation) -> None:
        if conversation.streaming is not None:
            self.hint(_("a reply is still coming: Esc stops it"))
            return
        self._infos.pop(conversation.id, None)
        self.keep_draft()
        self.workspace.delete(conversation)
        await self.show_conversation()
        if words := self.query_one("#search", Input).value.strip():
            await in_thread(lambda: self._store.flush(1.0))
            await self._list_found(words)
        self.hint(_("deleted: {title}; /undo brings it back").format(title=conversation.title))

    def action_rename(self, title: str = "") -> None:
        """Give the conversation on the screen another title."""
        if title.strip():
            self.workspace.current.title = title.strip()
            self.keep_conversation()

    def action_set_system(self, text: str = "") -> None:
        """Set the system prompt of this conversation; an empty one goes back to that of the settings."""
        self.workspace.current.system = text or None
        self.keep_conversation()
        self.hint(_("system prompt of this conversation: {text}").format(text=self.system or _("none")))

    def action_toggle_overflow(self) -> None:
        """Choose what happens in this conversation when the context is full."""
        drops = self.overflow is Overflow.DROP_OLDEST
        self.workspace.current.overflow = Overflow.STOP if drops else Overflow.DROP_OLDEST
        self.keep_conversation()
        self.hint(
            _("when the context is full, the reply stops and says so")
            if drops
            else _("when the context is full, the oldest turns are left out")
        )

    def set_conversation_sampling(self, sampling: SamplingParams) -> None:
        """Draw tokens in this way in the conversation on the screen."""
        self.workspace.current.sampling = sampling
        self.keep_conversation()

    def keep_conversation(self) -> None:
        """Save how the conversation on the screen is led, and show it."""
        conversation = self.workspace.current
        if conversation.turns:
            self._store.save_conversation(conversation)
            self.remember(conversation)
        else:
            self.show_engine()

    async def action_export(self, file: str = "") -> None:
        """Write the conversation on the screen to a new file; its ending says how."""
        from app.store.export import export_file, format_of, free_path

        conversation = self.workspace.current
        path = Path.cwd() / expanded(file.strip() or f"tiercel-{conversation.id}.md")
        try:
            path = await in_thread(lambda: free_path(path))
            await in_thread(lambda: export_file([conversation], path, format_of(path)))
        except OSError as error:
            self.notice("error", _("not exported: {error}").format(error=error))
            return
        self.hint(_("exported to {path}").format(path=sanitize_line(str(path))))
