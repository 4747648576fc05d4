"""The conversations' database for a command that comes and goes, also while the application has it open.

Leaves alone what belongs to the application: replies that are being written, damage, what is to be purged.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from app.conversation import Conversation
from app.store.db import open_beside, open_database, open_for_reading
from app.store.ids import renumbered
from app.store.migrations import NewerDatabaseError
from app.store.reads import Reads
from app.store.rows import tree_of
from app.store.writes import add_tree
from engine import InputFileError


class HistoryFile(Reads):
    """What `open_history` opens."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        """Read from `connection`; without one there are no conversations."""
        self._connection = connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        yield self._connection

    def take_in(self, conversations: Iterable[Conversation]) -> tuple[int, int]:
        """Store conversations, all of them or, when that fails, none; what is there is never changed.

        Where an id is taken the whole conversation gets fresh ones. Returns how many conversations and
        messages there were. Raises sqlite3.Error.
        """
        connection = self._connection
        if connection is None:
            raise sqlite3.OperationalError("it cannot be written")
        counts = [0, 0]
        connection.execute("BEGIN IMMEDIATE")
        try:
            for conversation in conversations:
                for statement, values in add_tree(_with_free_ids(connection, conversation)).statements:
                    connection.execute(statement, values)
                counts[0] += 1
                counts[1] += len(tree_of(conversation))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return counts[0], counts[1]


@contextmanager
def open_history(path: Path, *, create: bool = False) -> Iterator[HistoryFile]:
    """Lend the database at `path`; one that is not there has no conversations, or is made with `create`.

    Raises InputFileError where it cannot be used, in one line that says why.
    """
    try:
        connection = _connect(path, create=create)
    except NewerDatabaseError as error:
        raise InputFileError(f"{path}: {error}") from None
    except sqlite3.OperationalError as error:
        raise InputFileError(f"{path}: {error}; close other programs that use it, then try again") from None
    except sqlite3.DatabaseError as error:
        raise InputFileError(
            f"{path} is damaged ({error}): start `tiercel` once, which keeps it and begins a fresh one"
        ) from None
    try:
        yield HistoryFile(connection)
    except sqlite3.Error as error:
        raise InputFileError(f"{path}: {error}") from None
    finally:
        if connection is not None:
            connection.close()


def _with_free_ids(connection: sqlite3.Connection, conversation: Conversation) -> Conversation:
    while _is_taken(connection, "conversation", conversation.id) or any(
        _is_taken(connection, "message", turn.id) for turn in tree_of(conversation)
    ):
        conversation = renumbered(conversation)
    return conversation


def _is_taken(connection: sqlite3.Connection, table: str, row_id: int) -> bool:
    return connection.execute(f"SELECT 1 FROM {table} WHERE id = ?", (row_id,)).fetchone() is not None


def _connect(path: Path, *, create: bool) -> sqlite3.Connection | None:
    if not path.exists():
        return open_database(path)[0] if create else None
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        if (connection := open_for_reading(path)) is None:
            raise sqlite3.OperationalError("it cannot be written, nor read as it is")
        return connection
    return open_beside(path)
