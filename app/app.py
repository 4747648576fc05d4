"""The application: bindings, themes, and the order in which it starts and ends. No logic of its own.

It paints first. The database, the search for models and the engine (with numpy and the kernels) come after
the first frame, in threads of their own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, Final

from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.driver import Driver
from textual.screen import Screen
from textual.theme import Theme

from app import locations
from app.actions import ACTIONS, bindings
from app.background import in_thread
from app.bridge import ChatEngine
from app.sanitize import sanitize_line
from app.screens.chat import HINT_S, ChatScreen
from app.settings import DEFAULT_THEME, SettingsFile
from app.signals import end_on_signals
from app.startup import first_model
from app.store import Store
from app.terminal_input import TerminalDriver
from app.themes import TOKENS, load_themes
from engine import Budget, Engine, LoadOptions

_UNSAVED: Final = "not everything is saved yet; ^Q once more quits without it"


class TiercelApp(App[int]):
    """Chat with a model on this machine. Give it a function that makes the engine."""

    TITLE = "tiercel"
    # Textual reads no stylesheet of a default screen by itself.
    CSS_PATH = Path(__file__).parent / "screens" / "chat.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings()]
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (40, "-narrow"), (100, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (15, "-short"), (30, "-tall")]  # noqa: RUF012

    def __init__(
        self,
        make_engine: Callable[[], ChatEngine],
        model: Path | None = None,
        ram_budget: Budget | None = None,
    ) -> None:
        """Start with `model`, else with that of the settings or the only one found; the budget is for all."""
        super().__init__()
        self._make_engine = make_engine
        self._model = model
        self._ram_budget = ram_budget
        self._settings = SettingsFile(locations.config_dir() / "settings.toml")
        self._store = Store(locations.data_dir() / "conversations.db")
        self._chat = ChatScreen(self._store, self._settings)
        self._warned_at = -HINT_S
        themes, problems = load_themes(locations.config_dir() / "themes")
        for theme in themes:
            self.register_theme(theme)
        self._problems = [*self._settings.problems, *problems]
        wanted = self._settings.values.theme
        if wanted not in self.available_themes:
            self._problems.append(f"there is no theme {wanted!r}: {DEFAULT_THEME} is used; ^P shows all")
            wanted = DEFAULT_THEME
        self.theme = wanted

    def get_driver_class(self) -> type[Driver]:
        """Return ours."""
        return TerminalDriver

    def get_default_screen(self) -> Screen[None]:
        """Return the chat."""
        return self._chat

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return our tokens, for themes that do not know them."""
        return TOKENS

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return what the command palette offers."""
        for action in ACTIONS:
            if action.method not in ("", "command_palette"):
                method = getattr(self, f"action_{action.method}")
                yield SystemCommand(action.label.capitalize(), action.help, method)
        yield SystemCommand("Theme", "Choose the colour theme", self.action_change_theme)

    def on_mount(self) -> None:
        """Paint, then start everything that takes time."""
        self.theme_changed_signal.subscribe(self, self._keep_theme)
        if not self.is_headless:
            end_on_signals(self._end, self.shut_down)
            self.set_interval(1.0, self._watch_terminal)
        self.call_after_refresh(self._start)

    def _start(self) -> None:
        self._store.start()
        self._chat.start_pulling()
        self._chat.notice("settings", _briefly(self._problems))
        self.run_worker(self._chat.show_conversations())
        self.run_worker(self._start_engine())

    async def _start_engine(self) -> None:
        settings = self._settings.values
        path = self._model or await in_thread(lambda: first_model(settings))
        if path is not None:
            self._load(path)
        else:
            self.action_models()
        try:
            self._chat.bridge.attach(await in_thread(self._make_engine))
        except (ImportError, OSError) as error:
            self._chat.notice("error", f"the engine cannot start: {error}")

    def _load(self, path: Path) -> None:
        """Load a model as the settings say."""
        settings = self._settings.values
        self._chat.load(
            LoadOptions(
                path,
                context=settings.context,
                threads=settings.threads,
                ram_budget=self._ram_budget or settings.ram_budget,
                rates_file=locations.rates_file(),
            )
        )

    def _end(self, number: int) -> None:
        """End because of a signal, as the person's own quitting would."""
        self._watch_terminal()
        self.exit(128 + number)

    def _watch_terminal(self) -> None:
        """Save and end at once when the terminal is gone, with a signal or, for who does not own it, without.

        Textual would wait for its last frame to be written, for ever.
        """
        if not os.isatty(sys.__stdin__.fileno() if sys.__stdin__ else 0):
            self.shut_down()
            os._exit(128 + signal.SIGHUP)

    def shut_down(self) -> str:
        """Stop the engine and save everything; return what could not be saved and why, or ''. Idempotent."""
        self._chat.bridge.close()
        problems = []
        if not self._store.close():
            problems.append(self._store.unsaved or "the disk is too slow")
        try:
            self._settings.save()
        except OSError as error:
            problems.append(f"settings were not saved: {error}")
        return "; ".join(problems)

    def _keep_theme(self, theme: Theme) -> None:
        self._chat.change_settings(theme=theme.name)

    # -- actions

    @property
    def _in_dialog(self) -> bool:
        """Whether a dialog is open: a key pressed twice opens one only."""
        return len(self.screen_stack) > 1

    def action_stop(self) -> None:
        """Stop the reply."""
        self._chat.stop()

    async def action_new_chat(self) -> None:
        """Begin a new conversation."""
        await self._chat.new_chat()

    def action_help(self) -> None:
        """Show the keys."""
        from app.screens.help import HelpScreen

        if not self._in_dialog:
            self.push_screen(HelpScreen())

    def action_command_palette(self) -> None:
        """Show all commands."""
        from app.screens.dialog import Palette

        if not self._in_dialog:
            self.push_screen(Palette(id="--command-palette"))

    def action_chats(self) -> None:
        """Show or hide the conversations."""
        self._chat.toggle_chats()

    def action_models(self) -> None:
        """Choose a model."""
        # Imported when it is wanted: what it needs to fetch a model is not needed for the first paint.
        from app.screens.models import ModelsScreen

        if self._in_dialog:
            return
        settings = self._settings.values
        model = self._chat.bridge.snapshot.model

        def load(path: Path | None) -> None:
            if path is not None:
                self._load(path)

        self.push_screen(
            ModelsScreen(settings.model_folders, model.path if model is not None else None), load
        )

    def action_newest(self) -> None:
        """Follow the newest line."""
        self._chat.newest()

    def action_copy(self) -> None:
        """Copy what is selected, in whichever widget it is."""
        focused = self.focused
        text = self.screen.get_selected_text() or getattr(focused, "selected_text", "")
        if text:
            self.copy_to_clipboard(text)
            self._chat.hint(f"{len(text):,} characters sent to the terminal's clipboard")
        else:
            self._chat.hint("nothing is selected; ^Q quits")

    async def action_quit(self) -> None:
        """Quit; with unsaved text only when asked twice."""
        if self._store.unsaved and time.monotonic() - self._warned_at > HINT_S:
            self._warned_at = time.monotonic()
            self._chat.hint(_UNSAVED)
            return
        self.exit(0)


def main(model: Path | None = None, ram_budget: Budget | None = None) -> int:
    """Run the application, beginning with `model`; `ram_budget` is for all. Returns the exit code."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        needs = "a terminal that can move its cursor (TERM says what it can)"
        print(f"tiercel: the interface needs {needs}; `tiercel run` works without one", file=sys.stderr)
        return 2
    app = TiercelApp(Engine, model, ram_budget)
    try:
        code = app.run()
    finally:
        problem = app.shut_down()
    if problem:
        print(f"tiercel: not everything could be saved: {sanitize_line(problem)}", file=sys.stderr)
        return 1
    return code if code is not None else app.return_code or 0


def _briefly(problems: list[str]) -> str:
    """Return the first problem, and how many there are: a notice has room for one."""
    return f"(1 of {len(problems)}) {problems[0]}" if len(problems) > 1 else "".join(problems)
