"""A conversation line by line, for terminals that cannot move a cursor, for screen readers and for scripts.

The same engine, store and settings as the application, without Textual: replies go to standard output as
they come, everything else to standard error, and what was written is never changed. ctrl+c stops a reply and
keeps it, ctrl+d quits, a backslash at the end of a line begins another one. What slash commands do is the
business of `plain_commands`.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

from app import locations
from app.attachments import read_attachments
from app.bridge import Bridge, BudgetOf, ChatEngine, n_events, refusal
from app.conversation import Turn
from app.i18n import _, language_of_locale, use_language
from app.live_reply import LiveReply
from app.models.options import Chosen, load_options
from app.new_conversation import new_conversation
from app.plain_commands import Commands
from app.plain_words import ending_words, plain_words
from app.sanitize import sanitize, sanitize_line
from app.settings import SettingsFile
from app.slash import message_of
from app.startup import first_model
from app.store import Store
from app.workspace import Workspace
from engine import Budget, EngineSnapshot, EngineState, FinishReason, ModelInfo

INTERRUPTED: Final = 130
"""The exit code of a program that ctrl+c ends."""
_PULL_S: Final = 0.03
_ANSWER_S: Final = 1.0
"""Seconds within which the engine says whether it takes a budget."""
_PHASE_S: Final = 5.0
"""Seconds after which a reply that has no text yet says what it waits for, again and again."""


class PlainChat:
    """One conversation at a time, read from one stream and written to two."""

    def __init__(
        self,
        engine: ChatEngine,
        *,
        chosen: Chosen | None = None,
        stdin: TextIO | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        """Use `engine`, which `run` ends; streams are by default those of the process."""
        self._in, self._out, self._err = stdin or sys.stdin, stdout or sys.stdout, stderr or sys.stderr
        self.chosen = chosen or Chosen()
        self.settings_file = SettingsFile(locations.settings_file())
        language = self.settings_file.values.language
        use_language(language_of_locale() if language == "auto" else language)
        self.store = Store(locations.data_dir() / "conversations.db")
        self.workspace = Workspace(self.store, lambda: new_conversation(self.settings_file.values))
        self.bridge = Bridge(self.store, self)
        self.bridge.attach(engine)
        self.failed = False
        """Whether the last message, or loading, came to nothing."""
        self._commands = Commands(self)
        self._written = 0
        """Characters of the growing reply that are on the output."""
        self._told_at = 0.0
        self._stage = ""
        self._notices: set[str] = set()

    def run(self, model: Path | None = None) -> int:
        """Chat until the input ends or somebody quits; the exit code is 1 where a script was failed."""
        self.store.start()
        saved = False
        try:
            with suppress(EOFError):
                self._chat(model)
        finally:
            self.bridge.close()
            saved = self._save()
        return 0 if saved and (self._in.isatty() or not self.failed) else 1

    def _save(self) -> bool:
        """Save everything, and say what could not be saved."""
        problems = [] if self.store.close() else [self.store.unsaved]
        try:
            self.settings_file.save()
        except OSError as error:
            problems.append(str(error))
        for problem in problems:
            self.say(_("not everything could be saved: {reason}").format(reason=sanitize_line(problem)))
        return not problems

    def _chat(self, model: Path | None) -> None:
        for problem in self.settings_file.problems:
            self.say(problem)
        path = model or first_model(self.settings_file.values)
        if path is None:
            self.say(_("no model is chosen: /model NAME loads one, `tiercel models` lists them"))
        else:
            self.load(path)
        self.say(_("/help lists the commands, ctrl+d quits"))
        while True:
            try:
                text = self._read_message()
                if text.strip() and not self._commands.perform(text):
                    self.send(message_of(text))
            except KeyboardInterrupt:
                if not self._in.isatty():
                    raise
                self.say("\n" + _("ctrl+d or /quit ends the program"))

    def _read_message(self) -> str:
        """Read until a line that does not end with a backslash; EOFError at the end of the input."""
        lines: list[str] = []
        while not lines or lines[-1].endswith("\\"):
            if self._in.isatty():
                self._err.write("... " if lines else _("You: "))
                self._err.flush()
            line = self._in.readline()
            if not line:
                break
            # Bytes that are no text cannot be told to a model, nor stored.
            line = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            lines.append(line.rstrip("\r\n"))
        if not lines:
            raise EOFError
        return "\n".join([*(line[:-1] for line in lines[:-1]), lines[-1].removesuffix("\\")])

    # -- for the commands

    def say(self, text: str) -> None:
        """Write lines of ours, cleaned, beside the conversation."""
        self._err.write(sanitize(text) + "\n")
        self._err.flush()

    def load(self, path: Path) -> None:
        """Load a model and wait until it is ready or has failed; ctrl+c gives it up."""
        self.bridge.unload()  # so that what the snapshot says from now on is about this one
        self._pull_until(lambda: self.bridge.snapshot.state is EngineState.EMPTY)
        self.bridge.load(load_options(self.settings_file.values, path, self.chosen))
        self._pull_until(lambda: not self.bridge.active)
        snapshot = self.bridge.snapshot
        self.failed = snapshot.model is None
        if snapshot.state is EngineState.FAILED:
            self.say(_("loading failed: {error}").format(error=sanitize_line(plain_words(snapshot.error))))
        elif snapshot.model is not None:
            words = _("{name} is ready: {quantisation}, a context of {tokens:,} tokens, {backend}")
            model = snapshot.model
            self.say(
                words.format(
                    name=sanitize_line(model.name),
                    quantisation=model.quantisation,
                    tokens=model.max_context,
                    backend=snapshot.backend,
                )
            )
            self.settings_file.change(last_model=model.path)

    def refuses_budget(self, memory: BudgetOf, budget: Budget | None) -> bool:
        """Ask the engine for a budget of the model; whether it refuses it, which is said then.

        A refusal comes at once, so no more than a moment is waited for one: reading blocks may take long.
        """
        before = self.bridge.snapshot
        since, until = n_events(before), time.monotonic() + _ANSWER_S

        def answered() -> bool:
            snapshot = self.bridge.snapshot
            in_effect = snapshot.ram_budget if memory == "ram_budget" else snapshot.vram_budget
            told = snapshot.notices != before.notices or refusal(snapshot, memory, since)
            return in_effect == budget or bool(told) or time.monotonic() > until

        self.bridge.set_budget(memory, budget)
        self._pull_until(answered)
        text = refusal(self.bridge.snapshot, memory, since)
        # Refused in these words before it is no new notice; and the notice may come after the event.
        if text and (text in before.notices or text not in self._notices):
            self._notices.add(text)
            self.say(_("note: {text}").format(text=sanitize_line(plain_words(text))))
        return bool(text)

    def _pull_until(self, done: Callable[[], bool]) -> None:
        """Follow the engine; ctrl+c stops what it does, and pressed again the program."""
        stopped = False
        while not done():
            try:
                self.bridge.pull()
                time.sleep(_PULL_S)
            except KeyboardInterrupt:
                if stopped:
                    sys.exit(INTERRUPTED)
                stopped = self.bridge.stop(self.workspace.current)

    def send(self, text: str) -> None:
        """Send a message and write the reply; without a model, or a file that it names, nothing is sent."""
        self.failed = True
        attachments, problems = read_attachments(text, Path.cwd())
        for problem in problems:
            self.say(problem)
        if not problems and self._has_model():
            message = self.workspace.current.add("user", text)
            message.attachments = tuple(attachments)
            self._ask(message)

    def retry(self) -> None:
        """Ask for another reply to the last message; the one before stays as a sibling."""
        conversation = self.workspace.current
        if not conversation.turns:
            self.say(_("there is no message yet"))
        elif self._has_model():
            if conversation.turns[-1].role == "assistant":
                conversation.cut(conversation.turns[-1])
            self._ask()

    def _has_model(self) -> bool:
        if self.bridge.snapshot.model is None:
            self.say(_("no model is loaded: /model NAME loads one, `tiercel models` lists them"))
        return self.bridge.snapshot.model is not None

    def _ask(self, *added: Turn) -> None:
        conversation = self.workspace.current
        system, sampling, overflow = self._commands.chosen()
        decoding = self._commands.decoding.chosen()
        live = self.bridge.ask(conversation, system, sampling, overflow, decoding)
        self.store.add(conversation, *added, live.turn)
        self._written, self._told_at = 0, time.monotonic()
        self._pull_until(lambda: self.bridge.live(conversation) is None)

    # -- for the bridge

    def engine_changed(self, snapshot: EngineSnapshot) -> None:
        """Say what loading does, and what a person should know."""
        if snapshot.state is EngineState.LOADING and snapshot.load_stage not in ("", self._stage):
            self.say(_("loading: {stage}").format(stage=snapshot.load_stage))
        self._stage = snapshot.load_stage
        for notice in snapshot.notices:
            if notice not in self._notices:
                self.say(_("note: {text}").format(text=sanitize_line(plain_words(notice))))
        self._notices = set(snapshot.notices)

    def budget_changed(self, _model: ModelInfo, _memory: BudgetOf, _budget: Budget | None) -> None:
        """Nothing: here a budget holds until the program ends."""

    def reply_grew(self, live: LiveReply) -> None:
        """Write what is new of the reply, or from time to time what it waits for."""
        text = live.turn.text[self._written :]
        if text:
            if not self._written and self._out.isatty():
                self._out.write(f"{sanitize_line(live.turn.model)}: ")
            self._written += len(text)
            self._out.write(sanitize(text))
            self._out.flush()
        elif live.phase and time.monotonic() - self._told_at > _PHASE_S:
            self._told_at = time.monotonic()
            self.say(live.phase)

    def reply_ended(self, live: LiveReply) -> None:
        """End the line, and say how it went."""
        self.reply_grew(live)
        if live.turn.text and not live.turn.text.endswith("\n"):
            self._out.write("\n")
            self._out.flush()
        reply = live.reply
        self.failed = reply is None or reply.finish_reason is FinishReason.ERROR
        if reply is not None and reply.error is not None:
            self.say(
                _("the reply failed: {error}").format(error=sanitize_line(plain_words(str(reply.error))))
            )
        words = list(ending_words(live))
        if words:
            self.say(f"[{'; '.join(words)}]")


def run_plain(engine: ChatEngine, model: Path | None = None, chosen: Chosen | None = None) -> int:
    """Chat on the process's own streams; what ends the process saves first. Returns the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    return PlainChat(engine, chosen=chosen).run(model)


def _leave(number: int, _frame: object) -> None:
    sys.exit(128 + number)
