"""The actions as key bindings of Textual.

Knows how an action's scope becomes a binding; the actions are in `actions`, which needs no Textual.
"""

from __future__ import annotations

from collections.abc import Iterator

from textual.binding import Binding

from app.actions import ACTIONS, Scope
from app.keymap import NO_KEY


def bindings(*scopes: Scope) -> Iterator[Binding]:
    """Yield the bindings of the actions in these scopes; their ids are those of the key map file."""
    for action in ACTIONS:
        if action.scope in scopes and action.method:
            first = action.scope in (Scope.ALWAYS, Scope.FIRST)
            yield Binding(action.keys or NO_KEY, action.method, action.label, id=action.id, priority=first)
