"""What is written to the store, as the statements of one transaction each. Knows the SQL of writing.

Does not know when a write happens: `Store` queues it, `HistoryFile` runs it at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.conversation import Conversation, Turn, now_ms
from app.store.rows import made_by, params_json, tree_of

_CONVERSATION: Final = """
INSERT INTO conversation(id, title, created_at, updated_at, persona, model_ref, params_json)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT(id) DO NOTHING
"""
_MESSAGE: Final = """
INSERT INTO message(id, conversation_id, parent_id, role, text, status, note, created_at, model,
    sampling_json, decoding_json, stats_json, made_by_json)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ATTACHMENT: Final = "INSERT INTO attachment(message_id, position, kind, name, text) VALUES (?, ?, ?, ?, ?)"
# Who goes on with a conversation that was deleted, in another window perhaps, wants it back.
_HEAD: Final = "UPDATE conversation SET head_id = ?, updated_at = ?, deleted_at = NULL WHERE id = ?"
_TEXT: Final = "UPDATE message SET text = ?, model = ? WHERE id = ?"
_FINISH: Final = """
UPDATE message SET text = ?, status = ?, note = ?, model = ?, sampling_json = ?, decoding_json = ?,
    stats_json = ?, made_by_json = ? WHERE id = ?
"""
_MODEL: Final = "UPDATE conversation SET model_ref = ? WHERE id = ?"
_FACTS: Final = """
UPDATE conversation SET title = ?, persona = ?, params_json = ?, updated_at = ? WHERE id = ?
"""
_DELETE_CONVERSATION: Final = "UPDATE conversation SET deleted_at = ? WHERE id = ?"
_DELETE_TURN: Final = "UPDATE message SET deleted_at = ? WHERE id = ?"
_DRAFT: Final = "INSERT OR REPLACE INTO draft(conversation_id, text, updated_at) VALUES (?, ?, ?)"
_NO_DRAFT: Final = "DELETE FROM draft WHERE conversation_id = ?"

Statement = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Write:
    """Statements of one transaction; a later write of the same `key` replaces one that still waits."""

    statements: tuple[Statement, ...]
    key: tuple[str, int] | None = None


def add(conversation: Conversation, turns: Sequence[Turn]) -> Write:
    """Store new turns, the last one as the end of the line shown, and the conversation if it is new."""
    statements = [_new_conversation(conversation)]
    for turn in turns:
        statements += _new_turn(turn)
        statements.append((_HEAD, (turn.id, turn.created_at, turn.conversation_id)))
    return Write(tuple(statements))


def add_tree(conversation: Conversation) -> Write:
    """Store a whole conversation that is not there yet."""
    statements = [_new_conversation(conversation)]
    for turn in tree_of(conversation):
        statements += _new_turn(turn)
    head_id = conversation.turns[-1].id if conversation.turns else None
    statements.append((_HEAD, (head_id, conversation.updated_at, conversation.id)))
    return Write(tuple(statements))


def text(turn: Turn) -> Write:
    """Store the text that a reply has so far, and whose it is."""
    return Write(((_TEXT, (turn.text, turn.model, turn.id)),), ("turn", turn.id))


def finish(turn: Turn) -> Write:
    """Store a reply that has ended."""
    statements: list[Statement] = [
        (_FINISH, (turn.text, turn.status, turn.note, *made_by(turn), turn.id)),
    ]
    if turn.model:
        statements.append((_MODEL, (turn.model, turn.conversation_id)))
    return Write(tuple(statements), ("turn", turn.id))


def head(conversation: Conversation) -> Write:
    """Store which line of the tree is shown; nothing else about the conversation changes."""
    head_id = conversation.turns[-1].id if conversation.turns else None
    return Write((("UPDATE conversation SET head_id = ? WHERE id = ?", (head_id, conversation.id)),))


def facts(conversation: Conversation) -> Write:
    """Store title, persona and what the person chose for a conversation, which is made if it is new."""
    values = (conversation.title, conversation.persona, params_json(conversation))
    update = (_FACTS, (*values, conversation.updated_at, conversation.id))
    return Write((_new_conversation(conversation), update))


def delete_conversation(conversation_id: int, *, deleted: bool) -> Write:
    """Hide a conversation, or bring it back."""
    return Write(((_DELETE_CONVERSATION, (now_ms() if deleted else None, conversation_id)),))


def delete_turns(turns: Sequence[Turn], *, deleted: bool) -> Write:
    """Hide turns, or bring them back."""
    at = now_ms() if deleted else None
    return Write(tuple((_DELETE_TURN, (at, turn.id)) for turn in turns))


def draft(conversation_id: int, typed: str) -> Write:
    """Store what was typed and not sent; an empty text removes it."""
    statement: Statement = (_NO_DRAFT, (conversation_id,))
    if typed:
        statement = (_DRAFT, (conversation_id, typed, now_ms()))
    return Write((statement,), ("draft", conversation_id))


def _new_conversation(conversation: Conversation) -> Statement:
    first, last = conversation.turns[:1], [turn.model for turn in conversation.turns if turn.model]
    created_at = min([conversation.updated_at, *(turn.created_at for turn in first)])
    facts = (conversation.title, created_at, conversation.updated_at, conversation.persona)
    model = last[-1] if last else ""
    return _CONVERSATION, (conversation.id, *facts, model, params_json(conversation))


def _new_turn(turn: Turn) -> list[Statement]:
    place = (turn.id, turn.conversation_id, turn.parent_id, turn.role)
    state = (turn.text, turn.status, turn.note, turn.created_at)
    statements: list[Statement] = [(_MESSAGE, (*place, *state, *made_by(turn)))]
    for position, part in enumerate(turn.attachments):
        statements.append((_ATTACHMENT, (turn.id, position, part.kind, part.name, part.text)))
    return statements
