"""Bring a database to the present schema, step by step, with a copy put aside first.

Knows `PRAGMA user_version` and how to run a script in one transaction; not what the steps do.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path


class NewerDatabaseError(Exception):
    """The database was written by a newer program; one line with both versions."""


def migrate(connection: sqlite3.Connection, path: Path | None, steps: Sequence[str]) -> None:
    """Run the steps that are missing, all in one transaction: a failing one leaves everything as it was.

    `path` is the database's file, or None in memory; a file that holds a version gets a backup beside it.
    Raises NewerDatabaseError, or sqlite3.Error from a step.
    """
    version = _version(connection)
    if version > len(steps):
        raise NewerDatabaseError(
            f"conversations are of version {version}, this program knows up to {len(steps)}: "
            "update it, or move the file away"
        )
    if version == len(steps):
        return
    if version and path is not None:
        _back_up(connection, path.with_name(f"{path.name}.v{version}.bak"))
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in steps[_version(connection) :]:  # another program may have been quicker
            for statement in _statements(step):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(steps)}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _statements(script: str) -> Iterator[str]:
    """Split a script; `executescript` would commit our transaction before it starts."""
    pending = ""
    for part in script.split(";")[:-1]:
        pending += part + ";"
        if sqlite3.complete_statement(pending):  # not so inside a trigger
            yield pending
            pending = ""


def _back_up(connection: sqlite3.Connection, path: Path) -> None:
    copy = sqlite3.connect(path)
    try:
        connection.backup(copy)
    finally:
        copy.close()
