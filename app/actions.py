"""Every action of the interface, once: the bindings, the key bar and the help screen are made from it.

Knows keys and words; the methods named here are `TiercelApp.action_*`. Keys that terminals or multiplexers
take for themselves (ctrl+b, ctrl+a, ctrl+s, ctrl+i, ctrl+m, ctrl+h, F10, F11) are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from textual.binding import Binding


@dataclass(frozen=True, slots=True)
class Action:
    """One thing a person can do."""

    keys: str
    """Textual's names, separated by commas."""
    shown: str
    """The key as people write it."""
    label: str
    """One or two words for the key bar."""
    help: str
    """What it does, for the help screen."""
    method: str = ""
    """`action_<method>` of the application; empty where a widget handles the key itself."""
    rank: int = 0
    """Place in the queue for room in the key bar, from 1; 0 keeps it out."""


ACTIONS: Final[tuple[Action, ...]] = (
    Action("enter", "Enter", "send", "Send the message", rank=1),
    Action("ctrl+j", "^J", "newline", "New line in the message (or shift+enter)", rank=8),
    Action("escape", "Esc", "stop", "Stop the reply and keep its text", "stop", rank=2),
    Action("ctrl+n", "^N", "new", "New conversation", "new_chat", rank=5),
    Action("f1", "F1", "keys", "This list of keys", "help", rank=3),
    Action("f2", "F2", "chats", "Show or hide the conversations; Enter opens one", "chats", rank=6),
    Action("f3", "F3", "models", "Choose a model", "models", rank=7),
    Action("ctrl+p", "^P", "more", "All commands, and the colour theme", "command_palette", rank=9),
    Action("ctrl+q", "^Q", "quit", "Quit; everything is saved", "quit", rank=4),
    Action("pageup,pagedown", "PgUp PgDn", "scroll", "Scroll the conversation"),
    Action("ctrl+end", "^End", "newest", "Go to the newest line and follow it", "newest"),
    Action("tab", "Tab", "next pane", "Go to the next pane"),
    Action("ctrl+c", "^C", "copy", "Copy what is selected", "copy"),
)


def bindings() -> list[Binding]:
    """Return the application's bindings."""
    return [
        # Quitting works over every dialog; widgets copy for themselves but do not say so, ours does.
        Binding(
            action.keys,
            action.method,
            action.label,
            id=action.method,
            priority=action.method in ("quit", "copy"),
        )
        for action in ACTIONS
        if action.method and action.method != "command_palette"
    ]
