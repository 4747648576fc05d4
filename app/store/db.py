"""Open the database file, whatever state it is in, and always return a usable connection.

Knows files, pragmas and what to do with a damaged one; not the rows.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from app.store.migrations import NewerDatabaseError, migrate
from app.store.schema import MIGRATIONS
from app.store.search import cjk_spaced


def open_database(path: Path) -> tuple[sqlite3.Connection, str]:
    """Return a connection and a notice, empty when all is well.

    A damaged file is put aside and a fresh one started; where that cannot be, the database lives in memory
    and the notice says that nothing is kept.
    """
    try:
        return _open(path), ""
    except (NewerDatabaseError, OSError, sqlite3.OperationalError) as error:
        return _open(None), f"conversations are NOT saved this time: {path}: {error}"
    except sqlite3.DatabaseError as error:
        aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        try:
            path.replace(aside)
            for suffix in ("-wal", "-shm"):
                with suppress(FileNotFoundError):
                    path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))
            return _open(path), f"the conversations file was damaged ({error}); it is kept as {aside}"
        except (OSError, sqlite3.Error) as second:
            return _open(None), f"conversations are NOT saved this time: {path}: {second}"


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    # One connection serves the writer thread and readers; `Store` guards it with a lock.
    connection = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.create_function("cjk_spaced", 1, cjk_spaced, deterministic=True)
        migrate(connection, path, MIGRATIONS)
    except BaseException:
        connection.close()
        raise
    return connection
