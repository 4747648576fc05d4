"""The conversation store: writes go to one thread in order, reads answer at once.

What fails because the disk is full, read-only or busy, be it opening the file or a write, is tried again;
`trouble` says so until it succeeds, and nothing that was written later overtakes it. Callers never wait
for a write. Knows rows and the queue; does not know widgets.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from app.conversation import Conversation, Turn, TurnStatus
from app.store.db import open_database, open_for_reading
from app.store.migrations import NewerDatabaseError
from app.store.search import SearchHit, search
from engine import GenerationStats, SamplingParams

RETRY_S: Final = 2.0
"""Pause before a write that failed is tried again."""
_INTERRUPTED: Final = "interrupted: the program ended"
_RECOVER: Final = "UPDATE message SET status = 'cancelled', note = ? WHERE status = 'streaming'"
_LIST: Final = "SELECT id, title, updated_at FROM conversation ORDER BY updated_at DESC, id DESC LIMIT ?"
_BRANCH: Final = """
WITH RECURSIVE branch(id, depth) AS (
    SELECT head_id, 0 FROM conversation WHERE id = ? AND head_id IS NOT NULL
    UNION ALL
    SELECT message.parent_id, depth + 1 FROM message JOIN branch ON message.id = branch.id
    WHERE message.parent_id IS NOT NULL
)
SELECT message.* FROM branch JOIN message ON message.id = branch.id ORDER BY depth DESC
"""
_INSERT_CONVERSATION: Final = (
    "INSERT INTO conversation(id, title, created_at, updated_at) VALUES (?, ?, ?, ?)"
)
_INSERT_MESSAGE: Final = """
INSERT INTO message(id, conversation_id, parent_id, role, text, status, note, created_at, model,
    sampling_json, stats_json) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_UPDATE_HEAD: Final = "UPDATE conversation SET head_id = ?, updated_at = ? WHERE id = ?"
_UPDATE_TEXT: Final = "UPDATE message SET text = ?, model = ? WHERE id = ?"
_FINISH: Final = """
UPDATE message SET text = ?, status = ?, note = ?, model = ?, sampling_json = ?, stats_json = ? WHERE id = ?
"""


@dataclass(frozen=True, slots=True)
class ConversationInfo:
    """What the list shows of a conversation."""

    id: int
    title: str
    updated_at: int
    """Milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class _Write:
    """Statements of one transaction; a later write of the same `key` replaces one that still waits."""

    statements: tuple[tuple[str, tuple[Any, ...]], ...]
    key: int | None = None


class Store:
    """Reads wait for the first try at opening the database; writes are taken at once."""

    def __init__(self, path: Path) -> None:
        """Prepare; writes wait until `start`."""
        self.path = path
        self.notice = ""
        """How opening went, when it did not go well."""
        self.trouble = ""
        """Why the last write failed; empty when everything is saved or about to be."""
        self._lost = ""
        """Why a write was given up, if one was."""
        self._waiting: deque[_Write] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        """Serves reads; None where there is nothing to read."""
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tiercel-store", daemon=True)

    def start(self) -> None:
        """Open the database, in the store's own thread."""
        self._thread.start()

    @property
    def unsaved(self) -> str:
        """Why something would be lost if the program ended now, or has been; empty when all goes well."""
        return self._lost or (self.trouble if self._waiting else "")

    # -- reads

    def conversations(self, limit: int = 500) -> list[ConversationInfo]:
        """Return the newest conversations, newest first."""
        with self._reading() as reader:
            return [ConversationInfo(*row) for row in reader.execute(_LIST, (limit,))] if reader else []

    def load(self, info: ConversationInfo) -> Conversation:
        """Return the conversation with the turns of the branch it shows. Raises sqlite3.Error."""
        with self._reading() as reader:
            if reader is None:
                raise sqlite3.OperationalError(self.trouble or "the store is closed")
            cursor = reader.execute(_BRANCH, (info.id,))
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        try:
            turns = [_turn(row) for row in rows]
        except (TypeError, ValueError) as error:
            raise sqlite3.DataError(f"a message makes no sense: {error}") from None
        return Conversation(info.title, turns, info.updated_at, info.id)

    def search(self, query: str) -> list[SearchHit]:
        """Return conversations with a message that has all words of `query`, newest first."""
        with self._reading() as reader:
            return search(reader, query) if reader else []

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        self._opened.wait()
        with self._lock:
            yield self._connection

    # -- writes

    def add(self, conversation: Conversation, *turns: Turn) -> None:
        """Save new turns, and the conversation itself when they are its first."""
        statements: list[tuple[str, tuple[Any, ...]]] = []
        if turns[0] is conversation.turns[0]:
            now = conversation.updated_at
            statements.append((_INSERT_CONVERSATION, (conversation.id, conversation.title, now, now)))
        for turn in turns:
            place = (turn.id, turn.conversation_id, turn.parent_id, turn.role)
            state = (turn.text, turn.status, turn.note, turn.created_at)
            statements.append((_INSERT_MESSAGE, (*place, *state, *_made_by(turn))))
            statements.append((_UPDATE_HEAD, (turn.id, turn.created_at, turn.conversation_id)))
        self._enqueue(_Write(tuple(statements)))

    def save_text(self, turn: Turn) -> None:
        """Save the text that a reply has so far, and whose it is."""
        self._enqueue(_Write(((_UPDATE_TEXT, (turn.text, turn.model, turn.id)),), key=turn.id))

    def finish(self, turn: Turn) -> None:
        """Save a reply that has ended."""
        values = (turn.text, turn.status, turn.note, *_made_by(turn), turn.id)
        self._enqueue(_Write(((_FINISH, values),), key=turn.id))

    def flush(self, timeout: float) -> bool:
        """Wait until everything is saved; False when that takes longer than `timeout` seconds."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._waiting, timeout)

    def close(self, timeout: float = 5.0) -> bool:
        """Save what waits, close the file and end the thread; False when something could not be saved."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._waiting and not self._lost

    # -- the thread

    def _enqueue(self, write: _Write) -> None:
        with self._wake:
            for place, other in enumerate(self._waiting):
                # The first may be on its way to the disk right now.
                if place and write.key is not None and other.key == write.key:
                    self._waiting[place] = write
                    return
            self._waiting.append(write)
            self._wake.notify_all()

    def _run(self) -> None:
        while (connection := self._open()) is None:
            if not self._pause():
                self._use(None)
                return
        while (write := self._next()) is not None:
            try:
                self._execute(connection, write)
            except sqlite3.OperationalError as error:
                self.trouble = str(error)
                if not self._pause():
                    break
                continue
            except (sqlite3.Error, UnicodeError) as error:  # no retry can mend it
                self._lost = str(error)
                self.notice = f"a change was not saved: {error}"
            else:
                self.trouble = ""
            with self._wake:
                self._waiting.popleft()
                self._wake.notify_all()
        self._use(None)

    def _open(self) -> sqlite3.Connection | None:
        """Open the database and close the replies that a crash left open; None when that fails now."""
        connection = None
        try:
            connection, notice = open_database(self.path)
            connection.execute(_RECOVER, (_INTERRUPTED,))
        except (OSError, sqlite3.Error, NewerDatabaseError) as error:
            if connection is not None:
                connection.close()
            why = error.strerror if isinstance(error, OSError) else error
            self.trouble = f"{self.path}: {why}"
            if not self._opened.is_set():
                self._use(open_for_reading(self.path))
            return None
        self.notice, self.trouble = notice, ""
        self._use(connection)
        return connection

    def _use(self, connection: sqlite3.Connection | None) -> None:
        """Serve reads from `connection` from now on, and close the one before."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = connection
        self._opened.set()

    def _next(self) -> _Write | None:
        """Return the oldest write, waiting for one; None when the store closes and none is left."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._closing)
            return self._waiting[0] if self._waiting else None

    def _pause(self) -> bool:
        """Wait before a retry; False when the store closes."""
        with self._wake:
            return not self._wake.wait_for(lambda: self._closing, RETRY_S)

    def _execute(self, connection: sqlite3.Connection, write: _Write) -> None:
        with self._lock:
            connection.execute("BEGIN IMMEDIATE")
            try:
                for statement, values in write.statements:
                    connection.execute(statement, values)
                connection.execute("COMMIT")
            except (sqlite3.Error, UnicodeError):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


def _made_by(turn: Turn) -> tuple[str, str | None, str | None]:
    sampling = json.dumps(asdict(turn.sampling)) if turn.sampling is not None else None
    return turn.model, sampling, json.dumps(asdict(turn.stats)) if turn.role == "assistant" else None


def _turn(row: dict[str, Any]) -> Turn:
    sampling, stats = row.pop("sampling_json"), row.pop("stats_json")
    return Turn(
        **{**row, "status": TurnStatus(row["status"])},
        sampling=SamplingParams(**_known(SamplingParams, sampling)) if sampling else None,
        stats=GenerationStats(**_known(GenerationStats, stats)) if stats else GenerationStats(),
    )


def _known(kind: type[SamplingParams | GenerationStats], stored: str) -> dict[str, Any]:
    """Return the stored fields of `kind`, without those that only a newer program knows."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in json.loads(stored).items() if name in names}
