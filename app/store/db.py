"""Open the database file: for writing, or, where that cannot be, for reading what is there.

Knows files, pragmas and what to do with a damaged one; not the rows.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from app.store.migrations import migrate
from app.store.schema import MIGRATIONS
from app.store.search import cjk_spaced

KEPT_DAYS: Final = 30
"""How long what was deleted can be brought back."""
_PURGE: Final = (
    "DELETE FROM draft WHERE conversation_id IN (SELECT id FROM conversation WHERE deleted_at < ?)",
    "DELETE FROM conversation WHERE deleted_at < ?",
    "DELETE FROM message WHERE deleted_at < ?",
)


def open_database(path: Path) -> tuple[sqlite3.Connection, str]:
    """Return a connection and a notice, empty when all is well.

    A damaged file is put aside and a fresh one started. Raises OSError or sqlite3.OperationalError where
    nothing can be written now, and NewerDatabaseError.
    """
    try:
        return _open(path), ""
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        path.replace(aside)
        for suffix in ("-wal", "-shm"):
            with suppress(FileNotFoundError):
                path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))
        return _open(path), f"the conversations file was damaged ({error}); it is kept as {aside}"


def open_beside(path: Path) -> sqlite3.Connection:
    """Open a database that exists while another connection may be writing to it. Raises what `open_database`
    does, and sqlite3.DatabaseError for a damaged file, which is left to the application to put aside.
    """
    connection = _connect(path, "?mode=rw")
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def purge(connection: sqlite3.Connection) -> None:
    """Remove what was deleted more than KEPT_DAYS ago."""
    before = (time.time_ns() // 1_000_000) - KEPT_DAYS * 86_400_000
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in _PURGE:
            connection.execute(statement, (before,))
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def open_for_reading(path: Path) -> sqlite3.Connection | None:
    """Return a connection that writes nothing, not even beside the file; None where there is nothing to read.

    What another program has not yet brought from the log into the file is not seen.
    """
    connection = None
    try:
        connection = _connect(path, "?mode=ro&immutable=1")
        if connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),):
            return connection
    except sqlite3.Error:
        pass
    if connection is not None:
        connection.close()
    return None


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Ours alone to read; SQLite gives the files beside it the same permissions.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    connection = _connect(path)
    try:
        # Found now, damage costs the old conversations their place in the list; found later, the new ones.
        (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(result)
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    migrate(connection, path, MIGRATIONS)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")


def _connect(path: Path, how: str = "") -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(path))}{how}"
    # Used by whichever thread reads or writes, one at a time; `Store` sees to that.
    connection = sqlite3.connect(uri, isolation_level=None, check_same_thread=False, uri=True)
    connection.create_function("cjk_spaced", 1, cjk_spaced, deterministic=True)
    return connection
