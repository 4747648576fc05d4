"""What the command palette offers: every action with a method, and the colour themes.

Knows the registry and how an action is run; the palette itself is Textual's (app.screens.dialog).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.markup import escape

from app.actions import ACTIONS, Action
from app.i18n import _
from app.keymap import shown_key
from app.sanitize import sanitize_line


class AsksArguments(Protocol):
    """A screen with a message box, where the argument of a command can be typed."""

    def ask_argument(self, action: Action) -> None:
        """Begin the slash command of `action` in the message box."""


class Commands(Provider):
    """Actions and themes for the palette."""

    async def discover(self) -> Hits:
        """Yield all, in the order of the registry."""
        for title, key, help, run in self._commands():
            yield DiscoveryHit(_display(Content(title), key), run, text=title, help=escape(help))

    async def search(self, query: str) -> Hits:
        """Yield what matches; a match of the name counts more than one of the explanation."""
        matcher = self.matcher(query)
        for title, key, help, run in self._commands():
            score = max(matcher.match(title), matcher.match(help) * 0.5)
            if score > 0:
                # The matcher reads what it highlights as markup, and a theme is named by its file.
                shown = Content(title) if "[" in title else matcher.highlight(title)
                yield Hit(score, _display(shown, key), run, text=title, help=escape(help))

    def _commands(self) -> Iterator[tuple[str, str, str, Callable[[], Any]]]:
        """Yield title, key, help and what to run."""
        methods = set()
        for action in ACTIONS:
            if action.method and action.method not in methods and action.id != "palette":
                methods.add(action.method)
                title = _(action.label)
                yield title[:1].upper() + title[1:], shown_key(action), _(action.help), self._runs(action)
        for name in self.app.available_themes:
            title = _("Theme: {0}").format(sanitize_line(name))
            yield title, "", _("Use these colours from now on"), partial(setattr, self.app, "theme", name)

    def _runs(self, action: Action) -> Callable[[], Any]:
        # What has a key, or a dialog, does without an argument.
        if action.argument and not action.keys and action.method.startswith("screen."):
            return lambda: cast(AsksArguments, self.screen).ask_argument(action)
        return partial(self.app.run_action, action.method, self.screen)


def _display(title: Content, key: str) -> Content:
    return Content.assemble(title, ("  " + key, "$primary")) if key else title
