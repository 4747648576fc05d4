"""The slash commands of the plain chat: those of the application that make sense line by line, and a few that
stand for its panels. Knows the conversation and the settings; how a reply is made is the business of `plain`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from app.bridge import BudgetOf
from app.conversation import Conversation, TurnStatus
from app.i18n import _
from app.model_settings import ModelSettings
from app.models import resolve_model
from app.plain_decoding import DecodingCommands
from app.sampling_fields import FIELDS, SEED, with_values
from app.sanitize import sanitize, sanitize_line
from app.slash import Problem, parse
from engine import EngineError, EngineState, Overflow, SamplingParams, parse_budget

if TYPE_CHECKING:
    from app.plain import PlainChat

_LISTED: Final = 20
_RANDOM: Final = "random"


class Commands:
    """What a person can do besides sending messages."""

    def __init__(self, chat: PlainChat) -> None:
        """Act on `chat`."""
        self._chat = chat
        self.decoding = DecodingCommands(chat)
        self._listed: list[int] = []
        """Ids of the conversations that `/history` listed last."""
        self._methods: dict[str, Callable[[str], None]] = {
            "help": self._help,
            "new": self._new,
            "system": self._system,
            "set": self._set,
            "overflow": self._overflow,
            "model": self._model,
            "budget": lambda text: self._budget("ram_budget", text),
            "vram": lambda text: self._budget("vram_budget", text),
            "skip": self.decoding.skip,
            "draft": self.decoding.draft,
            "retry": self._retry,
            "history": self._history,
            "open": self._open,
            "delete": self._delete,
            "undo": self._undo,
            "quit": self._quit,
        }

    def perform(self, text: str) -> bool:
        """Do what a line asks for; False when it is a message. EOFError when the program is to end."""
        stripped = text.strip()
        if not stripped.startswith("/") or stripped.startswith("//"):
            return False
        name, _space, argument = stripped[1:].partition(" ")
        method = self._methods.get(name.lower())
        if method is not None:
            method(argument.strip())
        elif isinstance(problem := parse(stripped), Problem):
            self._chat.say(problem.text)
        else:
            self._chat.say(_("/{name} is part of the application: `tiercel` starts it").format(name=name))
        return True

    def chosen(self) -> tuple[str, SamplingParams, Overflow]:
        """System prompt, sampling and overflow of the conversation, else those of the settings."""
        conversation, settings = self._chat.workspace.current, self._chat.settings_file.values
        system = settings.system if conversation.system is None else conversation.system
        model = self._chat.bridge.snapshot.model
        own = settings.models.get(str(model.path), ModelSettings()) if model else ModelSettings()
        sampling = conversation.sampling or settings.sampling
        if settings.greedy if own.greedy is None else own.greedy:
            sampling = replace(sampling, temperature=0.0)
        return system, sampling, conversation.overflow or settings.overflow

    def _help(self, _argument: str) -> None:
        lines = [
            ("/new", _("a new conversation")),
            ("/history [WORDS]", _("the newest conversations, or those with these words")),
            ("/open N", _("go on with the Nth of them")),
            ("/retry", _("another reply to your last message")),
            ("/system [TEXT]", _("the system prompt of this conversation; alone, that of the settings")),
            ("/set [NAME VALUE]", _("how tokens are drawn in this conversation")),
            ("/overflow", _("when the context is full: drop the oldest turns, or stop")),
            ("/model [NAME]", _("load another model, or say which is loaded")),
            ("/budget [SIZE]", _("memory for the model, such as 8G or 50%; alone, the default")),
            ("/vram [SIZE]", _("memory of the GPU for it, such as 20G or 80%; alone, the default")),
            ("/skip [RULE]", _("leave blocks out, such as kl=0.05, cos=0.98 or blk.10-12; off is none")),
            (
                "/draft [WHO [N]]",
                _("ngram, self, resident, exit, a smaller model or off; N tokens at a time"),
            ),
            ("/delete", _("delete this conversation")),
            ("/undo", _("bring back what was deleted")),
            ("/quit", _("quit; everything is saved")),
        ]
        self._chat.say("\n".join(f"{usage}: {words}" for usage, words in lines))
        self._chat.say(
            _("@file in a message attaches a file; a backslash at the end of a line begins another one")
        )

    def _new(self, _argument: str) -> None:
        self._chat.workspace.new()
        self._chat.say(_("a new conversation"))

    def _system(self, text: str) -> None:
        self._chat.workspace.current.system = text or None
        self._keep()
        self._chat.say(
            _("system prompt of this conversation: {text}").format(text=self.chosen()[0] or _("none"))
        )

    def _set(self, argument: str) -> None:
        name, _space, value = argument.partition(" ")
        sampling = self.chosen()[1]
        field = next((field for field in FIELDS if field.name == name.lower().replace("-", "_")), None)
        if field is not None and value.strip():
            try:
                random = field is SEED and value.strip() == _RANDOM
                number = None if random else field.parse(value.strip())
                sampling = with_values(sampling, {field.name: number})
            except ValueError as error:
                self._chat.say(str(error))
                return
            self._chat.workspace.current.sampling = sampling
            self._keep()
        elif name and field is None:
            names = ", ".join(field.name for field in FIELDS)
            self._chat.say(_("there is no {name!r}, only {names}").format(name=name, names=names))
            return
        shown = [field] if field is not None else FIELDS
        for each in shown:
            number = getattr(sampling, each.name)
            self._chat.say(f"{each.name} {_RANDOM if number is None else each.shown(number)}")

    def _overflow(self, _argument: str) -> None:
        drops = self.chosen()[2] is Overflow.DROP_OLDEST
        self._chat.workspace.current.overflow = Overflow.STOP if drops else Overflow.DROP_OLDEST
        self._keep()
        self._chat.say(
            _("when the context is full, the reply stops and says so")
            if drops
            else _("when the context is full, the oldest turns are left out")
        )

    def _model(self, name: str) -> None:
        model = self._chat.bridge.snapshot.model
        if name:
            try:
                path = resolve_model(name)
            except EngineError as error:
                self._chat.say(sanitize_line(str(error)))
            else:
                self._chat.load(path)
        elif model is not None:
            self._chat.say(
                _("{name} is loaded, from {path}").format(name=sanitize_line(model.name), path=model.path)
            )
        else:
            self._chat.say(_("no model is loaded: /model NAME loads one, `tiercel models` lists them"))

    def _budget(self, memory: BudgetOf, text: str) -> None:
        try:
            of = "the available memory" if memory == "ram_budget" else "the free video memory"
            budget = parse_budget(text, of=of) if text else None
        except ValueError as error:
            self._chat.say(str(error))
            return
        chosen, bridge = self._chat.chosen, self._chat.bridge
        if why_not := bridge.why_no_budget(memory):
            self._chat.say(why_not)
            return
        if memory == "ram_budget":
            self._chat.chosen = replace(chosen, ram_budget=budget)
        else:
            self._chat.chosen = replace(chosen, vram_budget=budget)
        if bridge.wanted is not None and bridge.snapshot.state is EngineState.FAILED:
            self._chat.load(bridge.wanted)
        elif bridge.wanted is None:
            self._chat.say(_("no model is loaded"))
        elif not self._chat.refuses_budget(memory, budget):
            self._chat.say(_("the memory budget changes before the next token"))

    def _retry(self, _argument: str) -> None:
        self._chat.retry()

    def _history(self, words: str) -> None:
        try:
            store = self._chat.store
            found = store.search(words, limit=_LISTED) if words else []
            infos = [] if words else store.conversations(_LISTED)
        except sqlite3.Error as error:
            self._chat.say(_("the conversations cannot be read: {error}").format(error=error))
            return
        rows = [(hit.conversation_id, hit.title, hit.updated_at) for hit in found]
        rows += [(info.id, info.title, info.updated_at) for info in infos]
        self._listed = [conversation_id for conversation_id, _title, _at in rows]
        for number, (_id, title, updated_at) in enumerate(rows, start=1):
            when = datetime.fromtimestamp(updated_at / 1000, UTC).astimezone()
            self._chat.say(f"{number}. {sanitize_line(title)}, {when:%Y-%m-%d %H:%M}")
        self._chat.say(_("/open N goes on with one of them") if rows else _("there is none"))

    def _open(self, text: str) -> None:
        if not text.isdecimal() or not 1 <= int(text) <= len(self._listed):
            self._chat.say(_("/history lists conversations; /open and a number of it goes on with one"))
            return
        wanted = self._listed[int(text) - 1]
        try:
            conversation = self._chat.workspace.find(wanted) or self._chat.store.load(wanted)
        except sqlite3.Error as error:
            self._chat.say(_("this conversation cannot be read: {error}").format(error=error))
            return
        self._chat.workspace.open(conversation)
        self._show(conversation)

    def _show(self, conversation: Conversation) -> None:
        """Say what a conversation was about: its title and its last exchange."""
        self._chat.say(
            _("{title}: {n} messages; the last ones:").format(
                title=sanitize_line(conversation.title), n=len(conversation.turns)
            )
        )
        for turn in conversation.turns[-2:]:
            name = _("You") if turn.role == "user" else sanitize_line(turn.model) or _("Model")
            note = f" [{turn.note}]" if turn.note and turn.status is not TurnStatus.DONE else ""
            self._chat.say(f"{name}: {sanitize(turn.text)}{note}")

    def _delete(self, _argument: str) -> None:
        conversation = self._chat.workspace.current
        if conversation.turns:
            self._chat.workspace.delete(conversation)
        self._chat.say(_("deleted; /undo brings it back") if conversation.turns else _("there is none"))

    def _undo(self, _argument: str) -> None:
        conversation = self._chat.workspace.undo()
        if conversation is None:
            self._chat.say(_("there is nothing to bring back"))
        else:
            self._show(conversation)

    def _quit(self, _argument: str) -> None:
        raise EOFError

    def _keep(self) -> None:
        """Save how the conversation is led; one without messages is saved with its first."""
        if self._chat.workspace.current.turns:
            self._chat.store.save_conversation(self._chat.workspace.current)
