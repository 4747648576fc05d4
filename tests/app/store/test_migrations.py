"""Migrations: all steps or none, with a copy of the file first."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.conversation import TurnStatus
from app.store import Store
from app.store.db import open_beside
from app.store.migrations import NewerDatabaseError, migrate
from app.store.schema import MIGRATIONS
from app.store.search import cjk_spaced
from engine import DecodingOptions, DraftKind, Overflow

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


def test_of_two_programs_that_start_at_once_one_makes_the_tables(tmp_path: Path) -> None:
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def begin() -> None:
        own = sqlite3.connect(tmp_path / "new.db", isolation_level=None, timeout=20)
        own.create_function("cjk_spaced", 1, cjk_spaced, deterministic=True)
        start.wait()
        try:
            migrate(own, tmp_path / "new.db", MIGRATIONS)
        except sqlite3.Error as error:
            failures.append(error)
        own.close()

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_shipped_steps_lead_from_nothing_to_the_schema(connection: sqlite3.Connection) -> None:
    migrate(connection, None, MIGRATIONS)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert {"conversation", "message", "message_fts"} <= names
    assert _version(connection) == len(MIGRATIONS)
    assert {"draft", "attachment"} <= names


FIXTURES = Path(__file__).parent
FIRST, REPLY, GROWING = 1700000000000000011, 1700000000000000012, 1700000000000000013


def old_file(path: Path, version: int) -> Path:
    """Make a database file as version `version` left it."""
    file = sqlite3.connect(path)
    file.create_function("cjk_spaced", 1, cjk_spaced, deterministic=True)
    file.executescript((FIXTURES / f"schema_v{version}.sql").read_text("utf-8"))
    file.close()
    return path


def test_conversations_of_version_1_survive(tmp_path: Path) -> None:
    path = old_file(tmp_path / "c.db", 1)
    store = Store(path)
    store.start()
    assert [(info.title, info.persona, info.model) for info in store.conversations()] == [
        ("Streaming weights", "", "SmolLM2"),
        ("Empty", "", ""),
    ]
    conversation = store.load(1700000000000000001)
    question, reply = conversation.turns
    assert (question.id, reply.id, reply.parent_id) == (FIRST, REPLY, FIRST)
    assert (question.text, reply.text) == ("How to stream weights?", "如何加载权重 Café")
    assert reply.sampling is not None and reply.sampling.temperature == 0.25
    assert (reply.stats.prompt_tokens, reply.made_by, reply.attachments) == (3, {}, ())
    (cut_off,) = (turn for turn in conversation.siblings(reply) if turn.id == GROWING)
    assert (cut_off.text, cut_off.status) == ("half of", TurnStatus.CANCELLED)
    for words in ("权重", "weights", "half"):
        assert store.search(words), words
    assert store.close() and not store.notice


def test_conversations_of_version_2_survive(tmp_path: Path) -> None:
    store = Store(old_file(tmp_path / "c.db", 2))
    store.start()
    (info,) = store.conversations()
    conversation = store.load(info)
    question, reply = conversation.turns
    assert (info.persona, conversation.system, conversation.overflow) == ("Terse", "be brief", Overflow.STOP)
    assert [part.text for part in question.attachments] == ["a note"]
    assert (reply.made_by["threads"], reply.stats.completion_tokens) == (2, 2)
    assert reply.sampling is not None and reply.sampling.temperature == 0.25
    assert (reply.decoding, reply.stats.skip_effect, reply.stats.drafted_tokens) == (None, None, 0)
    reply.decoding = DecodingOptions(draft=DraftKind.NGRAM)
    store.finish(reply)
    assert store.flush(5)
    assert store.load(info).turns == conversation.turns
    assert store.close() and not store.notice


def test_a_copy_of_version_1_is_made_first(tmp_path: Path) -> None:
    path = old_file(tmp_path / "c.db", 1)
    open_beside(path).close()
    copy = sqlite3.connect(tmp_path / "c.db.v1.bak")
    assert _version(copy) == 1
    assert copy.execute("SELECT count(*) FROM message").fetchone() == (3,)
    assert "deleted_at" not in {row[1] for row in copy.execute("PRAGMA table_info(message)")}
    copy.close()


@pytest.mark.parametrize("version", [1, 2])
def test_the_fixtures_are_what_the_steps_make(
    tmp_path: Path, connection: sqlite3.Connection, version: int
) -> None:
    """A step that was shipped is never edited; this fails when one is."""
    migrate(connection, None, MIGRATIONS[:version])
    tables = "SELECT type, name, sql FROM sqlite_schema ORDER BY name"
    file = sqlite3.connect(old_file(tmp_path / "old.db", version))
    assert file.execute(tables).fetchall() == connection.execute(tables).fetchall()
    file.close()


def test_without_a_copy_version_1_is_left_alone(tmp_path: Path) -> None:
    path = old_file(tmp_path / "c.db", 1)
    before = path.read_bytes()
    (tmp_path / "c.db.v1.bak").mkdir()  # no copy can be made there
    store = Store(path)
    store.start()
    assert store.conversations() == []
    assert "c.db" in store.trouble
    store.close()
    assert path.read_bytes() == before
