"""The application: bindings, themes, and the order in which it starts and ends. No logic of its own.

It paints first. The database, the search for models and the engine (with numpy and the kernels) come after
the first frame, in threads of their own.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.screen import Screen
from textual.theme import Theme

from app import locations
from app.actions import Scope
from app.background import in_thread
from app.bindings import bindings
from app.bridge import ChatEngine
from app.dialogs import DialogActions
from app.i18n import _, language_of_locale, use_language
from app.keymap import load_keymap, use_keymap
from app.models.options import Chosen
from app.sanitize import sanitize_line
from app.screens.chat import HINT_S, ChatScreen
from app.settings import DEFAULT_THEME, SettingsFile
from app.signals import end_on_signals
from app.startup import first_model
from app.store import Store
from app.terminal_input import TerminalDriver
from app.themes import TOKENS, ThemeWatch, apply_theme, load_themes
from engine import Engine

_PLACES: Final = [Binding(f"alt+{n}", f"screen.tab({n})", show=False) for n in range(1, 10)]

SWITCH_S: Final = 0.0002
"""Seconds after which a thread that draws gives way to the engine's, and the other way round. With Python's
own 5 ms the engine would wait for most of a token's time whenever a frame is drawn."""

ENGINE_NICENESS: Final = 5
"""Where threads that compute keep all cores busy, a key goes first: p95 went from 54 to 67 ms to 42 to 48
(while a reply streams, two cores). With 10 it was 60: an engine set aside keeps Python's lock."""


class TiercelApp(DialogActions):
    """Chat with a model on this machine. Give it a function that makes the engine."""

    TITLE = "tiercel"
    # Textual reads no stylesheet of a default screen by itself.
    CSS_PATH = Path(__file__).parent / "screens" / "chat.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(Scope.ALWAYS, Scope.FIRST, Scope.EVERYWHERE),
        *_PLACES,
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (40, "-narrow"), (100, "-wide"), (118, "-wider")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (15, "-low"), (21, "-short"), (30, "-tall")]  # noqa: RUF012

    def __init__(
        self,
        make_engine: Callable[[], ChatEngine],
        model: Path | None = None,
        chosen: Chosen | None = None,
    ) -> None:
        """Start with `model`, else with that of the settings or the only one found; `chosen` is for all."""
        # Without colour Textual's own filter would paint a theme of the terminal's colours black on black.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self._make_engine = make_engine
        self._model = model
        self.settings_file = SettingsFile(locations.config_dir() / "settings.toml")
        settings = self.settings_file.values
        use_language(language_of_locale() if settings.language == "auto" else settings.language)
        self.store = Store(locations.data_dir() / "conversations.db")
        self.chat = ChatScreen(self.store, self.settings_file, chosen)
        self._warned_at = -HINT_S
        own_themes = locations.config_dir() / "themes"
        self._theme_watch = ThemeWatch(own_themes)
        themes, problems = load_themes(own_themes)
        self._theme_names = [theme.name for theme in themes]
        for theme in themes:
            self.register_theme(theme)
        keymap = load_keymap(locations.config_dir() / "keymap.toml")
        use_keymap(keymap)
        self.set_keymap(keymap.keys)
        self._problems = [*self.settings_file.problems, *problems, *keymap.problems]
        wanted = settings.theme
        if wanted not in self.available_themes:
            self._problems.append(
                _("there is no theme {name!r}: {default} is used; ^P shows all").format(
                    name=wanted, default=DEFAULT_THEME
                )
            )
            wanted = DEFAULT_THEME
        self.theme = wanted
        if settings.reduced_motion:
            self.animation_level = "none"

    def get_driver_class(self) -> type[Driver]:
        """Return ours."""
        return TerminalDriver

    def get_default_screen(self) -> Screen[None]:
        """Return the chat."""
        return self.chat

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return our tokens, for themes that do not know them."""
        return TOKENS

    def on_mount(self) -> None:
        """Paint, then start everything that takes time."""
        self.theme_changed_signal.subscribe(self, self._keep_theme)
        self.set_interval(1.0, self.watch_fetches)
        if not self.is_headless:
            end_on_signals(self._end, self.shut_down)
            self.set_interval(1.0, self._watch_terminal)
            self.set_interval(1.0, self._watch_themes)
        self.call_after_refresh(self._start)

    def _start(self) -> None:
        gc.freeze()  # what the first frame took stays: looking through it stops all threads for 50 ms
        self.store.start()
        self.chat.start_pulling()
        self.chat.notice("settings", _briefly(self._problems))
        self.run_worker(self.chat.show_stored())
        self.run_worker(self._start_engine())

    async def _start_engine(self) -> None:
        settings = self.settings_file.values
        path = self._model or await in_thread(lambda: first_model(settings))
        if path is not None:
            self.load_model(path)
        if not settings.welcomed:
            self.welcome(has_model=path is not None)
        elif path is None:
            self.action_models()
        try:
            self.chat.bridge.attach(await in_thread(self._make_engine))
        except (ImportError, OSError) as error:
            self.chat.notice("error", _("the engine cannot start: {error}").format(error=error))

    def welcome(self, *, has_model: bool) -> None:
        """Greet who is here for the first time."""
        from app.fetch import STARTER
        from app.screens.welcome import WelcomeScreen

        def go_on(choice: str | None) -> None:
            self.chat.change_settings(welcomed=True)
            if choice == "starter":
                self.fetches.start(STARTER)
            if choice in ("models", "starter"):
                self.action_models()

        self.push_screen(WelcomeScreen(has_model, self._theme_names, self.change_setting), go_on)

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

    def _watch_themes(self) -> None:
        """Show a theme that the person is editing as it is saved."""
        if self.app_focus:
            themes, problems = self._theme_watch.changed()
            for theme in themes:
                apply_theme(self, theme)
            if themes or problems:
                self.chat.notice("settings", _briefly(problems))

    def shut_down(self) -> str:
        """Stop the engine and save everything; return what could not be saved and why, or ''. Idempotent."""
        self.chat.bridge.close()
        if "fetches" in self.__dict__:
            self.fetches.close()
        problems = []
        if not self.store.close():
            problems.append(self.store.unsaved or _("the disk is too slow"))
        try:
            self.settings_file.save()
        except OSError as error:
            problems.append(_("settings were not saved: {error}").format(error=error))
        return "; ".join(problems)

    def _keep_theme(self, theme: Theme) -> None:
        self.chat.change_settings(theme=theme.name)

    def change_setting(self, **changes: object) -> None:
        """Remember settings and show what follows from them."""
        self.chat.change_settings(**changes)
        settings = self.settings_file.values
        if "theme" in changes:
            self.theme = settings.theme
        if "tiers" in changes:
            self.chat.show_tiers(settings.tiers)
        if "reduced_motion" in changes:
            self.animation_level = "none" if settings.reduced_motion else "full"

    # -- actions

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the keys of the chat to a dialog that lies over it."""
        return not self.in_dialog or action in ("quit", "copy")

    def action_stop(self) -> None:
        """Stop the reply."""
        self.chat.stop()

    def action_copy(self) -> None:
        """Copy what is selected, in whichever widget it is."""
        text = self.screen.get_selected_text() or getattr(self.focused, "selected_text", "")
        if text:
            self.chat.copy_text(text, _("{count:,} characters").format(count=len(text)))
        else:
            self.chat.hint(_("nothing is selected; ^Q quits"))

    async def action_quit(self) -> None:
        """Quit; with unsaved text only when asked twice."""
        self.chat.keep_draft()
        if self.store.unsaved and time.monotonic() - self._warned_at > HINT_S:
            self._warned_at = time.monotonic()
            self.chat.hint(_("not everything is saved yet; ^Q once more quits without it"))
            return
        self.exit(0)


def main(model: Path | None = None, chosen: Chosen | None = None) -> int:
    """Run the application, beginning with `model`; `chosen` is for all. Returns the exit code."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        needs = "a terminal that can move its cursor (TERM says what it can)"
        without = "`tiercel chat --plain` works without one"
        print(f"tiercel: the interface needs {needs}; {without}", file=sys.stderr)
        return 2
    sys.setswitchinterval(SWITCH_S)
    app = TiercelApp(partial(Engine, ENGINE_NICENESS), model, chosen)
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
    if len(problems) > 1:
        return _("(1 of {count}) {problem}").format(count=len(problems), problem=problems[0])
    return "".join(problems)
