"""The person's own keys: reads `keymap.toml`, refuses what would not work, and says which key does what.

Knows the registry of actions and names of keys; binds nothing itself: `Keymap.keys` is for Textual's
`App.set_keymap`. Help, key bar and palette ask `shown_key`, so that they show the person's keys.
"""

from __future__ import annotations

import string
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Final

from textual.keys import KEY_NAME_REPLACEMENTS

from app.actions import ACTIONS, Action, Scope
from app.i18n import _

NO_KEY: Final = "<none>"
"""What Textual is told for an action without a key: it would take an empty text for "as shipped"."""
_BY_ID: Final = {action.id: action for action in ACTIONS}
_SAME: Final = {
    "ctrl+i": "tab",
    "ctrl+m": "enter",
    "ctrl+h": "backspace",
    "ctrl+left_square_bracket": "escape",
}
"""Keys that a terminal sends as another one."""
_SWALLOWED: Final = {
    "ctrl+b": "tmux",
    "ctrl+a": "GNU screen",
    "ctrl+s": "XOFF",
    "ctrl+z": "SIGTSTP",
    "f10": "GNOME Terminal",
    "f11": "GNOME Terminal",
}
"""Keys that may never arrive, and who takes them."""
_IN_CONVERSATION: Final = frozenset("jknN")
"""Letters that the conversation has for itself: down, up, and onward in what was found."""
_NAMED: Final = {
    **{name: name.capitalize() for name in ("up", "down", "left", "right", "home", "end", "tab", "space")},
    **{name: name.capitalize() for name in ("enter", "backspace")},
    **{f"f{number}": f"F{number}" for number in range(1, 25)},
    "escape": "Esc",
    "insert": "Ins",
    "delete": "Del",
    "pageup": "PgUp",
    "pagedown": "PgDn",
}
"""How keys that write nothing are shown, by Textual's names."""
_MODIFIERS: Final = {"ctrl": "^", "alt": "Alt-", "shift": "Shift-"}


def _symbol_name(character: str) -> str:
    name = unicodedata.name(character).lower().replace("-", "_").replace(" ", "_")
    return KEY_NAME_REPLACEMENTS.get(name, name)


_SYMBOLS: Final = {_symbol_name(character): character for character in string.punctuation}
"""Punctuation by Textual's names."""


@dataclass(frozen=True, slots=True)
class Keymap:
    """What a person changed."""

    keys: Mapping[str, str] = field(default_factory=dict)
    """Textual's keys by the action's id, for `App.set_keymap`."""
    problems: tuple[str, ...] = ()
    """One line for each entry of the file that was not applied, or may not work."""

    def shown(self, action: Action) -> str:
        """Return the key of `action` as people write it; empty where it has none."""
        keys = self.keys.get(action.id)
        if keys is None:
            return action.shown
        return " ".join(_shown(key) for key in keys.split(",")) if keys != NO_KEY else ""


_in_use: list[Keymap] = [Keymap()]


def use_keymap(keymap: Keymap) -> None:
    """Show the keys of `keymap` from now on."""
    _in_use[:] = [keymap]


def shown_key(action: Action) -> str:
    """Return the key of `action` as people write it, after what they changed; empty where it has none."""
    return _in_use[0].shown(action)


def by_id(id: str) -> Action:
    """Return the action of that name."""
    return _BY_ID[id]


def load_keymap(path: Path) -> Keymap:
    """Read `path`; what cannot be used is a line in `problems`, and that entry is as shipped."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Keymap()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return Keymap(problems=(_("key map {0} cannot be read: {1}").format(path, error),))
    entries, problems = {}, []
    for id, value in _flat(table):
        try:
            entries[id] = _read_entry(id, value)
        except ValueError as error:
            problems.append(_("key map: {0}: {1}").format(id, error))
    problems += [_("key map: {0}: {1}").format(id, clash) for id, clash in _drop_clashes(entries)]
    problems += [
        _("key map: {0}: {1} may never arrive: {2} takes it").format(id, _shown(key), _SWALLOWED[key])
        for id, keys in entries.items()
        for key in keys
        if key in _SWALLOWED
    ]
    return Keymap({id: ",".join(keys) or NO_KEY for id, keys in entries.items()}, tuple(problems))


def clashes(keys: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str, str]]:
    """Yield (action, action, key) for all pairs that one key would have to serve; `keys` is by id."""
    for one, other in combinations(ACTIONS, 2):
        if _overlap(one.scope, other.scope):
            for key in keys[one.id]:
                if key in keys[other.id]:
                    yield one.id, other.id, key


def shipped_keys() -> dict[str, tuple[str, ...]]:
    """Return the keys of every action as shipped, by its id."""
    return {action.id: tuple(action.keys.split(",")) if action.keys else () for action in ACTIONS}


def parse_key(text: str) -> str:
    """Return Textual's name of the key that a person wrote, such as "Ctrl+x". Raises ValueError."""
    written = text.strip()
    *modifiers, base = written.split("+") if len(written) > 1 else [written]
    modifiers = [modifier.strip().lower() for modifier in modifiers]
    base = base.strip()
    if len(base) == 1 and base in string.punctuation:
        base = _symbol_name(base)
    elif len(base) > 1 or modifiers:
        base = base.lower()
    known = base in _NAMED or base in _SYMBOLS or (len(base) == 1 and base.isprintable() and base != " ")
    if not known or len(set(modifiers)) < len(modifiers) or not set(modifiers) <= _MODIFIERS.keys():
        raise ValueError(
            _("there is no key {0!r}; write it as in e, E, f5, ctrl+x, alt+up, pagedown or /").format(text)
        )
    if modifiers == ["shift"] and len(base) == 1 and base.isalpha():
        return base.upper()
    return "+".join([*sorted(modifiers, key=list(_MODIFIERS).index), base])


def _flat(table: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield every entry with its whole id: people may leave out the quotes, and TOML then makes tables."""
    for name, value in table.items():
        id = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{id}.")
        else:
            yield id, value


def _read_entry(id: str, value: object) -> tuple[str, ...]:
    """Return the keys of one entry. Raises ValueError."""
    action = _BY_ID.get(id)
    if action is None:
        raise ValueError(_("there is no such action; F1 shows all, the documentation their names"))
    if not action.method:
        raise ValueError(_("this key cannot be changed"))
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(_("a key, or a list of keys, in quotes"))
    keys = tuple(dict.fromkeys(parse_key(text) for text in texts if text.strip()))
    for key in keys:
        if key in _SAME:
            other = _shown(_SAME[key])
            raise ValueError(_("terminals cannot tell {0} from {1}").format(_shown(key), other))
        if _writes(key) and action.scope is not Scope.TURN:
            raise ValueError(_("{0} is needed for writing: take one with ctrl or alt").format(_shown(key)))
        if key in _IN_CONVERSATION:
            raise ValueError(_("{0} moves within the conversation").format(key))
    if id == "quit" and not any(key not in _SWALLOWED for key in keys):
        raise ValueError(_("without it there would be no sure way to quit"))
    return keys


def _drop_clashes(entries: dict[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Remove entries until no key serves two actions; yield the id of each and why.

    One at a time: an entry that is dropped gives its action the shipped key back, which another may have.
    """
    while True:
        clash = next(clashes(shipped_keys() | entries), None)
        if clash is None:
            return
        one, other, key = clash
        order = list(entries)
        dropped = max((id for id in (one, other) if id in entries), key=order.index)
        del entries[dropped]
        kept = other if dropped == one else one
        yield dropped, _("{0} is already the key of {1}").format(_shown(key), kept)


def _overlap(one: Scope, other: Scope) -> bool:
    """Whether keys of both scopes can be heard at one time. The message box and the turns never have both."""
    return {one, other} != {Scope.WIDGET, Scope.TURN}


def _writes(key: str) -> bool:
    """Whether the message box takes the key as text."""
    return len(key) == 1 or key in _SYMBOLS or key in ("space", "enter", "backspace", "delete")


def _shown(key: str) -> str:
    """Return a key as people write it."""
    *modifiers, base = key.split("+")
    name = _NAMED.get(base) or _SYMBOLS.get(base, base)
    if modifiers and len(name) == 1:
        name = name.upper()
    return "".join(_MODIFIERS[modifier] for modifier in modifiers) + name
