"""What importers share: fields of untrusted JSON, and trees grown from messages that name their parent.

Knows no format. Every fault is one line that names the file and the place in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from app.conversation import Conversation, Turn
from app.sanitize import sanitize_line
from app.store.ids import fresh_ids
from engine import InputFileError

_LAST_ID: Final = (1 << 63) - 1
_LAST_MS: Final = 9_000_000_000_000
"""In the year 2255; a later time would make ids that SQLite cannot hold."""
_NAMES: Final = {dict: "an object", list: "a list", str: "text", int: "a whole number", bool: "true or false"}

T = TypeVar("T")


class ImportFault(InputFileError):
    """A file cannot be imported; one line with the file, the place and what is wrong there."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object of the file, and where it is."""

    values: Mapping[str, Any]
    place: str
    """File and place, as a fault begins."""

    def fault(self, what: str) -> ImportFault:
        """Return a fault at this place, to be raised."""
        return ImportFault(sanitize_line(f"{self.place}: {what}"))

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Turn what a value's own type refuses into a fault at this place."""
        try:
            yield
        except (TypeError, ValueError, RecursionError) as error:
            raise self.fault(f"makes no sense: {error}") from None

    def optional(self, key: str, kind: type[T]) -> T | None:
        """Return a value that may be missing or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.fault(f"has a `{key}` that is not {_NAMES[kind]}")
        return value

    def text(self, key: str) -> str:
        """Return a text that must be there."""
        return self._required(key, str)

    def whole(self, key: str) -> int:
        """Return a positive number that must be there and fit the database."""
        value = self._required(key, int)
        if not 0 < value <= _LAST_ID:
            raise self.fault(f"has a `{key}` that is out of range")
        return value

    def id_or_none(self, key: str) -> int | None:
        """Return an id that may be missing or null."""
        return self.whole(key) if self.values.get(key) is not None else None

    def time(self, key: str) -> int:
        """Return a time in milliseconds that must be there."""
        value = self._required(key, int)
        if not 0 <= value <= _LAST_MS:
            raise self.fault(f"has a `{key}` that is no time")
        return value

    def seconds(self, key: str, otherwise: int) -> int:
        """Return a time that is given in seconds, as milliseconds; `otherwise` where it is missing."""
        return self._scaled(key, otherwise, 1000)

    def milliseconds(self, key: str, otherwise: int) -> int:
        """Return a time that is given in milliseconds; `otherwise` where it is missing."""
        return self._scaled(key, otherwise, 1)

    def object(self, key: str, *, required: bool = True) -> Fields | None:
        """Return an object inside this one."""
        value = self._required(key, dict) if required else self.optional(key, dict)
        return Fields(value, f"{self.place}, `{key}`") if value is not None else None

    def objects(self, key: str) -> list[Fields]:
        """Return a list of objects that must be there."""
        values = self._required(key, list)
        return [as_fields(value, f"{self.place}, `{key}` {at}") for at, value in enumerate(values, 1)]

    def _required(self, key: str, kind: type[T]) -> T:
        value = self.optional(key, kind)
        if value is None:
            raise self.fault(f"has no `{key}`")
        return value

    def _scaled(self, key: str, otherwise: int, factor: int) -> int:
        value = self.values.get(key)
        if value is None:
            return otherwise
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value * factor <= _LAST_MS:
            raise self.fault(f"has a `{key}` that is no time")
        return int(value * factor)


def as_fields(value: object, place: str) -> Fields:
    """Return `value`, which must be an object."""
    if not isinstance(value, dict):
        raise ImportFault(sanitize_line(f"{place}: is not an object"))
    return Fields(value, place)


@dataclass(slots=True)
class Node:
    """A message with its own ids, and where it was read."""

    turn: Turn
    at: Fields


def grown(conversation: Conversation, nodes: Sequence[Node], head_id: int | None, at: Fields) -> None:
    """Grow the tree. Raises ImportFault for a message twice, a parent that is missing and for cycles."""
    parents: dict[int, int | None] = {}
    for node in nodes:
        if node.turn.id in parents:
            raise node.at.fault(f"has the id {node.turn.id} of another message")
        parents[node.turn.id] = node.turn.parent_id
    for node in nodes:
        if node.turn.parent_id is not None and node.turn.parent_id not in parents:
            raise node.at.fault(f"follows message {node.turn.parent_id}, which is not there")
    if head_id is not None and head_id not in parents:
        raise at.fault(f"ends at message {head_id}, which is not there")
    lead_to_a_start(parents, at)
    conversation.grow(sorted((node.turn for node in nodes), key=lambda turn: turn.id), head_id)


K = TypeVar("K")


def lead_to_a_start(parents: Mapping[K, K | None], at: Fields) -> None:
    """Check that from every message the ones before it end somewhere. Raises ImportFault."""
    good: set[K] = set()
    for start in parents:
        line: dict[K, None] = {}
        place: K | None = start
        while place is not None and place not in good:
            if place in line:
                raise at.fault(f"has a circle: message {place} comes before itself")
            line[place] = None
            place = parents[place]
        good.update(line)


@dataclass(slots=True)
class Draft:
    """A message as another program has it: its own words for ids, and times that may be missing."""

    key: str
    parent: str | None
    turn: Turn
    """Without ids."""
    kept: bool = True
    """Whether it was said by a person or a model; what is not is left out, and what follows moves up."""


def planted(conversation: Conversation, drafts: Sequence[Draft], head: str | None, at: Fields) -> None:
    """Grow the tree of another program's conversation, with ids made from the messages' times.

    Raises ImportFault for a message twice, a parent that is missing and for cycles.
    """
    by_key: dict[str, Draft] = {}
    for draft in drafts:
        if draft.key in by_key:
            raise at.fault(f"has two messages with the id {draft.key!r}")
        by_key[draft.key] = draft
    for draft in drafts:
        if draft.parent is not None and draft.parent not in by_key:
            raise at.fault(f"has a message after {draft.parent!r}, which is not there")
    lead_to_a_start({draft.key: draft.parent for draft in drafts}, at)
    kept = sorted((draft for draft in drafts if draft.kept), key=lambda draft: draft.turn.created_at)
    (conversation.id,) = fresh_ids([kept[0].turn.created_at if kept else conversation.updated_at])
    ids = fresh_ids(draft.turn.created_at for draft in kept)
    for draft, turn_id in zip(kept, ids, strict=True):
        draft.turn.id, draft.turn.conversation_id = turn_id, conversation.id
    above = _kept_above(by_key)
    for draft in kept:
        parent = above[draft.parent] if draft.parent is not None else None
        draft.turn.parent_id = parent.turn.id if parent is not None else None
    end = (above.get(head) if head is not None else None) or _newest_leaf(kept)
    conversation.grow((draft.turn for draft in kept), end.turn.id if end is not None else None)


def _kept_above(by_key: Mapping[str, Draft]) -> dict[str, Draft | None]:
    """Return for every message itself or the nearest one before it that is kept."""
    above: dict[str, Draft | None] = {}
    for start in by_key.values():
        passed: list[str] = []
        place: Draft | None = start
        while place is not None and place.key not in above and not place.kept:
            passed.append(place.key)
            place = by_key[place.parent] if place.parent is not None else None
        found = above.get(place.key, place) if place is not None else None
        if place is not None and place.kept:
            above[place.key] = place
        above.update(dict.fromkeys(passed, found))
    return above


def _newest_leaf(kept: Sequence[Draft]) -> Draft | None:
    inner = {draft.turn.parent_id for draft in kept}
    return next((draft for draft in reversed(kept) if draft.turn.id not in inner), None)
