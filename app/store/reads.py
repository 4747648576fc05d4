"""What can be read of the store: lists, whole conversations, search, drafts.

Knows the SQL of reading. Does not know who opened the database: `Store` does it for the application,
`HistoryFile` for the command line.
"""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from app.conversation import Attachment, Conversation, Turn
from app.store.rows import ConversationInfo, conversation_of, turn_of
from app.store.search import SearchHit, recent, search

_LIST: Final = """
SELECT id, title, updated_at, persona, model_ref FROM conversation WHERE deleted_at IS NULL
ORDER BY updated_at DESC, id DESC LIMIT ?
"""
_CONVERSATION: Final = "SELECT * FROM conversation WHERE id = ?"
_TREE: Final = "SELECT * FROM message WHERE conversation_id = ? AND deleted_at IS NULL ORDER BY id"
_ATTACHMENTS: Final = """
SELECT attachment.message_id, attachment.kind, attachment.name, attachment.text
FROM message JOIN attachment ON attachment.message_id = message.id
WHERE message.conversation_id = ? ORDER BY attachment.message_id, attachment.position
"""
_SENT: Final = """
SELECT message.text FROM message JOIN conversation ON conversation.id = message.conversation_id
WHERE message.role = 'user' AND message.deleted_at IS NULL AND conversation.deleted_at IS NULL
ORDER BY message.id DESC
"""
_DRAFTS: Final = """
SELECT conversation_id, text FROM draft
WHERE conversation_id NOT IN (SELECT id FROM conversation WHERE deleted_at IS NOT NULL)
"""
_ALL: Final = "SELECT id FROM conversation WHERE deleted_at IS NULL ORDER BY updated_at DESC, id DESC"


class Reads(ABC):
    """The reading half of a store. Every method may raise sqlite3.Error."""

    trouble = ""
    """Why nothing can be read or written now; empty when all goes well."""

    @abstractmethod
    def _reading(self) -> AbstractContextManager[sqlite3.Connection | None]:
        """Lend the connection that serves reads, to one caller at a time; None where there is none."""

    def conversations(self, limit: int = 500) -> list[ConversationInfo]:
        """Return the newest conversations, newest first."""
        with self._reading() as reader:
            return [ConversationInfo(*row) for row in reader.execute(_LIST, (limit,))] if reader else []

    def load(self, wanted: ConversationInfo | int) -> Conversation:
        """Return a conversation with its whole tree, by its id or what the list says of it.

        Raises sqlite3.DataError where the rows make no sense or are gone.
        """
        conversation_id = wanted if isinstance(wanted, int) else wanted.id
        with self._reading() as reader:
            if reader is None:
                raise sqlite3.OperationalError(self.trouble or "the store is closed")
            found = _rows(reader, _CONVERSATION, conversation_id)
            rows = _rows(reader, _TREE, conversation_id)
            attachments: dict[int, list[Attachment]] = {}
            for message_id, *facts in reader.execute(_ATTACHMENTS, (conversation_id,)):
                attachments.setdefault(message_id, []).append(Attachment(*facts))
        if not found:
            raise sqlite3.DataError("this conversation is gone")
        conversation = conversation_of(found[0])
        turns = [turn_of(row, attachments.get(row["id"], ())) for row in rows]
        conversation.grow(turns, _head(turns, found[0]["head_id"]))
        return conversation

    def everything(self) -> Iterator[Conversation]:
        """Return every conversation, newest first, one at a time; what was deleted is left out."""
        with self._reading() as reader:
            ids = [conversation_id for (conversation_id,) in reader.execute(_ALL)] if reader else []
        for conversation_id in ids:
            yield self.load(conversation_id)

    def search(
        self,
        query: str,
        *,
        role: str = "",
        model: str = "",
        since_ms: int = 0,
        limit: int = 200,
        per_message: bool = False,
    ) -> list[SearchHit]:
        """Return what has all words of `query` (the last may be a beginning), newest first.

        Out of the `limit` newest messages that match: each of them, or the newest of each conversation.
        `role`, part of the `model`'s name and the time of the message narrow it down.
        """
        with self._reading() as reader:
            if reader is None:
                return []
            return search(reader, query, role, model, since_ms, limit, per_message=per_message)

    def recent(
        self, *, role: str = "", model: str = "", since_ms: int = 0, limit: int = 200
    ) -> list[SearchHit]:
        """Return the newest message of each conversation that has one such, newest conversation first."""
        with self._reading() as reader:
            return recent(reader, role, model, since_ms, limit) if reader else []

    def text(self, message_id: int) -> str:
        """Return the text of one message; '' where it is gone."""
        with self._reading() as reader:
            query = "SELECT text FROM message WHERE id = ?"
            found = reader.execute(query, (message_id,)).fetchone() if reader else None
        return str(found[0]) if found else ""

    def drafts(self) -> dict[int, str]:
        """Return what was typed and not sent, by conversation; not that of conversations deleted."""
        with self._reading() as reader:
            return dict(reader.execute(_DRAFTS)) if reader else {}

    def stored(self, conversation_ids: Iterable[int]) -> set[int]:
        """Return which of these conversations are here."""
        query = "SELECT 1 FROM conversation WHERE id = ?"
        with self._reading() as reader:
            return {key for key in conversation_ids if reader and reader.execute(query, (key,)).fetchone()}

    def sent(self, limit: int = 500) -> list[str]:
        """Return the person's last messages, newest first, each once."""
        texts: dict[str, None] = {}
        with self._reading() as reader:
            for (text,) in reader.execute(_SENT) if reader else ():
                texts[text] = None
                if len(texts) == limit:
                    break
        return list(texts)


def _rows(reader: sqlite3.Connection, query: str, conversation_id: int) -> list[Mapping[str, Any]]:
    cursor = reader.execute(query, (conversation_id,))
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _head(turns: list[Turn], head_id: int | None) -> int | None:
    """Return the end of the line to show: the newest turn where the stored one is gone.

    Raises sqlite3.DataError for turns that lead to themselves, which only damage brings about.
    """
    parents = {turn.id: turn.parent_id for turn in turns}
    if head_id not in parents:
        head_id = turns[-1].id if turns else None
    seen: set[int] = set()
    place = head_id
    while place is not None and place in parents:
        if place in seen:
            raise sqlite3.DataError("a message makes no sense: it comes before itself")
        seen.add(place)
        place = parents[place]
    return head_id
