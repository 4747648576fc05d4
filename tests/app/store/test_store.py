"""The store: what is written is read, in order, whatever the disk does."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import app.store.store as store_module
from app.conversation import Conversation, TurnStatus
from app.store import Store
from engine import DecodingOptions, DraftKind, GenerationStats, SamplingParams, SkipEffect, parse_skip

REPO = Path(__file__).resolve().parents[3]


def chat(store: Store, question: str = "Question?", answer: str = "Answer.") -> Conversation:
    conversation = Conversation()
    message = conversation.add("user", question)
    reply = conversation.add("assistant", status=TurnStatus.STREAMING)
    store.add(conversation, message, reply)
    reply.text, reply.status = answer, TurnStatus.DONE
    reply.model, reply.sampling = "M", SamplingParams(temperature=0.25)
    reply.stats = GenerationStats(prompt_tokens=3, completion_tokens=2, decode_s=0.5)
    store.finish(reply)
    assert store.flush(5)
    return conversation


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_conversation_is_read_as_it_was_written(store: Store) -> None:
    conversation = chat(store)
    (info,) = store.conversations()
    assert info.title == "Question?"
    assert store.load(info).turns == conversation.turns


EFFECT = SkipEffect(frozenset({3, 8}), 0.02, 0.012, 0.008, 0.016, 0.97)


def test_how_a_reply_was_computed_and_what_that_gave_is_kept(store: Store) -> None:
    conversation = chat(store)
    reply = conversation.turns[-1]
    reply.decoding = DecodingOptions(parse_skip("blk.1.ffn,blk.4.attn"), DraftKind.SELF, draft_k=4)
    reply.stats = replace(reply.stats, drafted_tokens=9, accepted_tokens=7, skip_effect=EFFECT)
    store.finish(reply)
    assert store.flush(5)
    (info,) = store.conversations()
    assert store.load(info).turns == conversation.turns


def test_an_effect_beyond_all_bounds_is_not_kept(store: Store) -> None:
    conversation = chat(store)
    reply = conversation.turns[-1]
    endless = replace(EFFECT, perplexity_change=math.inf)
    reply.stats = replace(reply.stats, skipped_blocks=2, skip_effect=endless)
    store.finish(reply)
    assert store.flush(5)
    (info,) = store.conversations()
    assert store.load(info).turns[-1].stats == replace(reply.stats, skip_effect=None)


def test_the_whole_tree_is_loaded_and_the_last_line_shown(store: Store) -> None:
    conversation = chat(store)
    conversation.cut(conversation.turns[1])
    other = conversation.add("assistant", "Another answer.")
    store.add(conversation, other)
    store.flush(5)
    (info,) = store.conversations()
    loaded = store.load(info)
    assert [turn.text for turn in loaded.turns] == ["Question?", "Another answer."]
    assert [turn.text for turn in loaded.siblings(loaded.turns[1])] == ["Answer.", "Another answer."]


def test_conversations_come_newest_first(store: Store) -> None:
    first, second = chat(store, "first"), chat(store, "second")
    first.add("user", "again")
    first.turns[-1].created_at += 1000
    store.add(first, first.turns[-1])
    store.flush(5)
    assert [info.id for info in store.conversations()] == [first.id, second.id]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("weights", "How to stream weights?"),
        ("WEI", "How to stream weights?"),
        ("weights stream", "How to stream weights?"),
        ("weights zebra", None),
        ("wei stream", None),
        ("权重", "如何加载权重 Café"),
        ("权", "如何加载权重 Café"),
        ("权重 cafe", "如何加载权重 Café"),
        ("重权", None),
        ('"', None),
        ("AND OR NOT (", None),
        ("x\x00y", None),
        (" ", None),
    ],
)
def test_search_finds_words_beginnings_and_chinese(store: Store, query: str, found: str | None) -> None:
    chat(store, "How to stream weights?", "如何加载权重 Café")
    assert [hit.snippet for hit in store.search(query)] == ([found] if found else [])


def test_a_growing_reply_is_found_only_when_it_has_ended(store: Store) -> None:
    conversation = Conversation()
    reply = conversation.add("assistant", "needle", TurnStatus.STREAMING)
    store.add(conversation, reply)
    store.save_text(reply)
    store.flush(5)
    assert not store.search("needle")
    reply.status = TurnStatus.CANCELLED
    store.finish(reply)
    store.flush(5)
    (hit,) = store.search("needle")
    assert hit.snippet == "needle"


def test_a_changed_text_is_found_by_its_new_words_only(store: Store) -> None:
    conversation = chat(store, answer="old words")
    conversation.turns[1].text = "new words"
    store.finish(conversation.turns[1])
    store.flush(5)
    assert store.search("new") and not store.search("old")


def test_writes_before_the_database_is_open_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "c.db")
    conversation = Conversation()
    store.add(conversation, conversation.add("user", "early"))
    store.start()
    assert store.flush(5)
    assert [info.title for info in store.conversations()] == ["early"]
    assert store.close()


def test_closing_saves_what_waits_and_leaves_one_file(tmp_path: Path) -> None:
    store = Store(tmp_path / "c.db")
    store.start()
    conversation = Conversation()
    for number in range(50):
        store.add(conversation, conversation.add("user", str(number)))
    assert store.close()
    assert [file.name for file in tmp_path.iterdir()] == ["c.db"]
    assert not any(thread.name == "tiercel-store" for thread in threading.enumerate())


def test_a_full_disk_is_said_and_tried_again_in_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "RETRY_S", 0.05)
    full = threading.Event()
    full.set()
    execute = Store._execute

    def fail_while_full(self: Store, *arguments: Any) -> None:
        if full.is_set():
            raise sqlite3.OperationalError("database or disk is full")
        execute(self, *arguments)

    monkeypatch.setattr(Store, "_execute", fail_while_full)
    conversation = Conversation()
    reply = conversation.add("assistant", status=TurnStatus.STREAMING)
    store.add(conversation, reply)
    for number in range(100):
        reply.text += f"{number} "
        store.save_text(reply)
    wait_for(lambda: "disk is full" in store.trouble)
    assert len(store._waiting) <= 3, "saves of one text replace each other"
    full.clear()
    assert store.flush(5)
    assert store.trouble == ""
    assert store.load(store.conversations()[0]).turns[0].text == reply.text


def test_closing_with_a_full_disk_says_that_something_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Store, "_execute", full)
    store = Store(tmp_path / "c.db")
    store.start()
    conversation = Conversation()
    store.add(conversation, conversation.add("user", "lost"))
    assert not store.close()
    assert store.unsaved == "database or disk is full"


def test_a_damaged_file_is_kept_and_a_fresh_one_begun(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    path.write_bytes(b"not a database, but long enough to look like one" * 100)
    store = Store(path)
    store.start()
    chat(store)
    assert "damaged" in store.notice
    store.close()
    (kept,) = tmp_path.glob("c.db.damaged-*")
    assert kept.read_bytes().startswith(b"not a database")


@pytest.mark.parametrize("page", [1, 2, 5])
def test_a_file_damaged_in_the_middle_is_kept_and_a_fresh_one_begun(tmp_path: Path, page: int) -> None:
    path = tmp_path / "c.db"
    store = Store(path)
    store.start()
    for number in range(20):
        chat(store, f"Question {number}?", "words " * 500)
    store.close()
    content = bytearray(path.read_bytes())
    content[page * 4096 : (page + 3) * 4096] = b"Z" * 3 * 4096
    path.write_bytes(content)
    store = Store(path)
    store.start()
    chat(store, "after")
    assert [info.title for info in store.conversations()] == ["after"]
    assert "damaged" in store.notice
    assert store.close()
    (kept,) = tmp_path.glob("c.db.damaged-*")
    assert kept.read_bytes() == content


def test_a_place_that_cannot_be_written_is_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "RETRY_S", 0.05)
    (tmp_path / "file").write_bytes(b"")
    store = Store(tmp_path / "file" / "c.db")
    store.start()
    assert store.conversations() == []
    conversation = Conversation()
    store.add(conversation, conversation.add("user", "kept"))
    assert "File exists" in store.unsaved
    (tmp_path / "file").unlink()
    assert store.flush(5)
    assert store.unsaved == store.trouble == ""
    assert [info.title for info in store.conversations()] == ["kept"]
    assert store.close()


def test_what_cannot_be_written_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "c.db")
    store.start()
    conversation = chat(store, "old")
    store.close()

    def fail(path: Path) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(store_module, "open_database", fail)
    store = Store(tmp_path / "c.db")
    store.start()
    (info,) = store.conversations()
    assert store.load(info).turns == conversation.turns
    assert store.search("old")
    store.add(conversation, conversation.add("user", "new"))
    assert not store.close()
    assert store.unsaved.endswith("c.db: Read-only file system")
    assert [file.name for file in tmp_path.iterdir()] == ["c.db"]


def test_the_file_of_a_newer_program_is_left_alone_until_it_is_moved_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "RETRY_S", 0.05)
    path = tmp_path / "c.db"
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    before = path.read_bytes()
    store = Store(path)
    store.start()
    assert store.conversations() == []
    assert "version 99" in store.trouble
    assert path.read_bytes() == before
    path.rename(tmp_path / "elsewhere.db")
    chat(store)
    assert store.close()


def test_a_text_that_cannot_be_stored_is_said_and_stops_no_other(store: Store) -> None:
    conversation = chat(store)
    store.add(conversation, conversation.add("user", "half a character: \ud800"))
    chat(store, "next")
    assert "not saved" in store.notice
    assert "surrogates" in store.unsaved
    assert not store.close()


def test_fields_that_only_a_newer_program_knows_are_passed_over(store: Store, tmp_path: Path) -> None:
    conversation = chat(store)
    with sqlite3.connect(store.path) as connection:
        connection.create_function("cjk_spaced", 1, lambda text: text)
        connection.execute(
            "UPDATE message SET stats_json = json_set(stats_json, '$.drafted', 5),"
            " sampling_json = json_set(sampling_json, '$.magic', 1) WHERE role = 'assistant'"
        )
    connection.close()
    assert store.load(store.conversations()[0]).turns == conversation.turns


def test_only_their_owner_reads_conversations(store: Store) -> None:
    chat(store)
    for file in store.path.parent.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file


_STREAM_FOREVER = """
import sys, time
from pathlib import Path
from app.bridge import Bridge
from app.conversation import Conversation
from app.store import Store
from engine import LoadOptions, Overflow, SamplingParams
from tests.fakes import FakeEngine, Script

class Nobody:
    def engine_changed(self, snapshot): pass
    def reply_grew(self, live): print(len(live.turn.text), flush=True)
    def reply_ended(self, live): pass

store = Store(Path(sys.argv[1])); store.start()
bridge = Bridge(store, Nobody())
bridge.attach(FakeEngine(Script(replies=("word " * 100000,), token_s=0.005)))
bridge.load(LoadOptions(Path("x.gguf")))
conversation = Conversation()
message = conversation.add("user", "tell me")
live = bridge.ask(conversation, "", SamplingParams(), Overflow.STOP)
store.add(conversation, message, live.turn)
while True:
    bridge.pull(); time.sleep(0.1)
"""


def test_killed_in_the_middle_of_a_reply_the_text_until_then_is_there(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    process = subprocess.Popen(
        [sys.executable, "-c", _STREAM_FOREVER, str(path)],
        cwd=REPO,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )
    assert process.stdout is not None
    lengths: list[tuple[float, int]] = []
    while not lengths or time.monotonic() - lengths[0][0] < 3.0:
        if length := int(process.stdout.readline()):
            lengths.append((time.monotonic(), length))
    process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    process.wait()
    process.stdout.close()
    store = Store(path)
    store.start()
    (info,) = store.conversations()
    turns = store.load(info).turns
    store.close()
    shown_two_seconds_before = max((length for at, length in lengths if at < killed - 2.0), default=0)
    assert turns[0].text == "tell me"
    assert len(turns[1].text) >= shown_two_seconds_before > 0
    assert turns[1].status is TurnStatus.CANCELLED
    assert "interrupted" in turns[1].note
