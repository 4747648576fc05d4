"""Migrations: all steps or none, with a copy of the file first."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.store.migrations import NewerDatabaseError, migrate
from app.store.schema import MIGRATIONS
from app.store.search import cjk_spaced

ONE = "CREATE TABLE a (x); INSERT INTO a VALUES (1);"
TWO = """
CREATE TABLE b (y);
CREATE TRIGGER t AFTER INSERT ON a BEGIN
    INSERT INTO b VALUES (new.x);
END;
INSERT INTO a VALUES (2);
"""


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "c.db", isolation_level=None)
    connection.create_function("cjk_spaced", 1, cjk_spaced, deterministic=True)
    yield connection
    connection.close()


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_steps_run_in_order_and_only_once(connection: sqlite3.Connection, tmp_path: Path) -> None:
    migrate(connection, tmp_path / "c.db", (ONE,))
    migrate(connection, tmp_path / "c.db", (ONE, TWO))
    migrate(connection, tmp_path / "c.db", (ONE, TWO))
    assert connection.execute("SELECT x FROM a").fetchall() == [(1,), (2,)]
    assert connection.execute("SELECT y FROM b").fetchall() == [(2,)]
    assert _version(connection) == 2


def test_a_copy_of_the_old_version_is_kept(connection: sqlite3.Connection, tmp_path: Path) -> None:
    migrate(connection, tmp_path / "c.db", (ONE,))
    assert not list(tmp_path.glob("*.bak")), "an empty database needs none"
    migrate(connection, tmp_path / "c.db", (ONE, TWO))
    copy = sqlite3.connect(tmp_path / "c.db.v1.bak")
    assert copy.execute("SELECT x FROM a").fetchall() == [(1,)]
    copy.close()


def test_a_failing_step_leaves_everything_as_it_was(connection: sqlite3.Connection, tmp_path: Path) -> None:
    migrate(connection, tmp_path / "c.db", (ONE,))
    with pytest.raises(sqlite3.OperationalError):
        migrate(
            connection, tmp_path / "c.db", (ONE, "INSERT INTO a VALUES (3); INSERT INTO missing VALUES (1);")
        )
    assert connection.execute("SELECT x FROM a").fetchall() == [(1,)]
    assert _version(connection) == 1


def test_a_database_of_a_newer_program_is_not_touched(connection: sqlite3.Connection, tmp_path: Path) -> None:
    migrate(connection, tmp_path / "c.db", (ONE, TWO))
    with pytest.raises(NewerDatabaseError, match="version 2, this program knows up to 1"):
        migrate(connection, tmp_path / "c.db", (ONE,))


def test_the_shipped_steps_lead_from_nothing_to_the_schema(connection: sqlite3.Connection) -> None:
    migrate(connection, None, MIGRATIONS)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert {"conversation", "message", "message_fts"} <= names
    assert _version(connection) == len(MIGRATIONS)
