"""Slash commands: reads what stands in the message box.

Made from the registry of actions, whose methods do the work; this only says which, and with what.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from app.actions import ACTIONS, Action
from app.i18n import _

COMMANDS: Final = {action.slash: action for action in ACTIONS if action.slash}
"""Every action with a name as a command, by that name."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to do."""

    action: Action
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why it is no command."""

    text: str


def parse(text: str) -> Command | Problem | None:
    """Read the message box; None is a message, whose text `message_of` gives."""
    text = text.strip()
    if not text.startswith("/") or text.startswith("//"):
        return None
    name, *rest = text[1:].split(maxsplit=1) if text[1:2].strip() else [""]
    argument = "".join(rest)
    action = COMMANDS.get(name.lower())
    if action is None:
        return Problem(_unknown(name))
    if argument and not action.argument:
        return Problem(_("/{0} takes nothing after it").format(action.slash))
    return Command(action, argument)


def message_of(text: str) -> str:
    """Return what to send for a text that is no command: a doubled slash at the start is one."""
    return text[1:] if text.startswith("//") else text


def complete(text: str) -> list[Action]:
    """Return the commands that `text`, as far as it is typed, may become; best first."""
    if not text.startswith("/") or text.startswith("//") or any(character.isspace() for character in text):
        return []
    typed = text[1:].lower()
    starting = [name for name in COMMANDS if name.startswith(typed)]
    containing = [name for name in COMMANDS if typed in name and name not in starting]
    return [COMMANDS[name] for name in sorted(starting) + sorted(containing)]


def _unknown(name: str) -> str:
    near = get_close_matches(name.lower(), COMMANDS, 1)
    if near:
        return _("there is no command /{0}: did you mean /{1}? // sends it as text").format(name, near[0])
    return _("there is no command /{0}: /help shows all, // sends it as text").format(name)
