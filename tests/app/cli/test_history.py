"""`tiercel history`: what it prints, which conversation it means, and what it says when it cannot."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from app import locations
from app.cli import history
from app.cli.exit_codes import UsageError
from app.conversation import Conversation
from app.store import Store
from app.store.history_file import open_history
from app.store.trees import ImportFault
from engine import InputFileError

EVIL = "evil\x1b]0;x\x07 title"


def _run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    history.add_arguments(parser)
    return history.run(parser.parse_args(words))


@pytest.fixture
def talks(home: Path) -> list[Conversation]:
    """Three conversations, newest first, as the list has them."""
    made = []
    for number, title in enumerate((EVIL, "About weights", "最新的权重")):
        conversation = Conversation(title, updated_at=1_700_000_000_000 + number * 86_400_000)
        conversation.id = 1_700_000_000_012_340_001 + number * 10_000_000
        for role, text in (("user", f"Question {number}\x1b[2J"), ("assistant", f"Answer {number} 权重")):
            turn = conversation.add(role, text)
            turn.created_at = conversation.updated_at = 1_700_000_000_000 + number * 86_400_000
            turn.model = "SmolLM2" if role == "assistant" else ""
        made.append(conversation)
    with open_history(locations.data_dir() / "conversations.db", create=True) as file:
        file.take_in(made)
    return made[::-1]


def test_the_list_is_newest_first_and_numbered(
    talks: list[Conversation], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("list") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["#", "ID", "CHANGED", "MODEL", "TITLE"]
    assert [row.split()[0] for row in rows] == ["1", "2", "3"]
    assert rows[0].endswith("最新的权重") and "SmolLM2" in rows[0]
    assert all(row.isprintable() for row in rows)
    _run("list", "-n", "1", "--json")
    (only,) = json.loads(capsys.readouterr().out)
    assert (only["place"], only["id"], only["title"]) == (1, talks[0].id, "最新的权重")


def test_an_empty_history_is_no_failure_and_makes_no_file(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("list") == 0 and _run("search", "x") == 0 and _run("export", "--all") == 0
    assert "no conversations yet" in capsys.readouterr().err
    assert not locations.data_dir().exists()


@pytest.mark.parametrize("wanted", ["2", "{id}", "22340001"])
def test_a_conversation_is_meant_by_place_id_or_its_last_digits(
    talks: list[Conversation], capsys: pytest.CaptureFixture[str], wanted: str
) -> None:
    assert _run("show", wanted.format(id=talks[1].id)) == 0
    out = capsys.readouterr().out
    assert out.startswith("# About weights") and "Question 1" in out and "SmolLM2" in out


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("0", "there are 3 conversations"),
        ("4", "4 is not one of them"),
        ("0001", "3 conversations with an id that ends in 0001"),
        ("9999", "no conversation with an id"),
        ("x", "'x' is no ID"),
        ("²", "is no ID"),
    ],
)
def test_what_means_no_one_conversation_says_why(talks: list[Conversation], wanted: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        _run("show", wanted)


def test_show_as_json_has_every_fact(talks: list[Conversation], capsys: pytest.CaptureFixture[str]) -> None:
    _run("show", "1", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert shown["title"] == "最新的权重"
    assert [(message["role"], message["model"]) for message in shown["messages"]] == [
        ("user", ""),
        ("assistant", "SmolLM2"),
    ]


def test_a_terminal_gets_no_control_characters_and_a_pipe_gets_the_text(
    talks: list[Conversation], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _run("show", "3")
    assert "Question 0\x1b[2J" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _run("show", "3")
    _run("search", "question")
    _run("export", "--all", "--format", "jsonl")
    out = capsys.readouterr().out
    assert "Question 0␛[2J" in out
    assert all(line.isprintable() for line in out.splitlines())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("权重",), 3),
        (("answ",), 3),
        (("answer", "1"), 1),
        (("question", "--role", "assistant"), 0),
        (("question", "--role", "user"), 3),
        (("answer", "--model", "smollm"), 3),
        (("answer", "--model", "llama"), 0),
        (("answer", "--since", "2023-11-15T12:00"), 2),
        (("answer", "--since", "30d"), 0),
        (("answer", "-n", "2"), 2),
    ],
)
def test_search_finds_messages_and_narrows_down(
    talks: list[Conversation], capsys: pytest.CaptureFixture[str], words: tuple[str, ...], found: int
) -> None:
    assert _run("search", *words, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == found
    assert _run("search", *words) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2 * found
    assert ("nothing found" in err) == (found == 0)


def test_a_day_that_is_none_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _run("search", "x", "--since", "yesterday")
    assert "neither a day such as" in capsys.readouterr().err


def test_what_was_exported_is_imported_beside_what_is_there(
    talks: list[Conversation], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "all.jsonl"
    assert _run("export", "--all", "-o", str(file)) == 0
    assert _run("import", str(file), str(file)) == 0
    out, err = capsys.readouterr()
    assert "imported 6 conversations, 12 messages" in out and "wrote" in err
    _run("list", "--json")
    listed = json.loads(capsys.readouterr().out)
    assert len({info["id"] for info in listed}) == 9
    assert {talk.id for talk in talks} <= {info["id"] for info in listed}


def test_the_format_is_that_of_the_file_s_name_or_the_one_that_is_asked_for(
    talks: list[Conversation], tmp_path: Path
) -> None:
    _run("export", "1", "-o", str(tmp_path / "a.html"))
    assert (tmp_path / "a.html").read_text("utf-8").startswith("<!doctype html>")
    _run("export", "1", "2", "-o", str(tmp_path / "a.txt"), "--format", "sharegpt")
    assert len(json.loads((tmp_path / "a.txt").read_text("utf-8"))) == 2


@pytest.mark.parametrize("words", [("export",), ("export", "1", "--all")])
def test_an_export_must_say_what(talks: list[Conversation], words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="IDs or --all"):
        _run(*words)


def test_of_several_files_all_or_none_are_imported(
    talks: list[Conversation], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.json"
    _run("export", "1", "-o", str(good))
    bad.write_text("[{]")
    with pytest.raises(ImportFault, match=r"bad\.json: is not JSON"):
        _run("import", str(good), str(bad))
    capsys.readouterr()
    _run("list", "--json")
    assert len(json.loads(capsys.readouterr().out)) == 3


def test_a_file_that_is_refused_makes_no_database(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ImportFault, match="No such file"):
        _run("import", str(tmp_path / "missing.json"))
    assert not locations.data_dir().exists()


def test_it_works_while_the_application_writes(
    talks: list[Conversation], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(locations.data_dir() / "conversations.db")
    store.start()
    conversation = Conversation()
    store.add(conversation, conversation.add("user", "written meanwhile"))
    assert store.flush(5)
    _run("search", "meanwhile", "--json")
    assert len(json.loads(capsys.readouterr().out)) == 1
    _run("export", "1", "-o", str(tmp_path / "x.jsonl"))
    _run("import", str(tmp_path / "x.jsonl"))
    store.add(conversation, conversation.add("user", "and on"))
    assert store.flush(5) and len(store.conversations()) == 5
    assert store.close()


def test_a_damaged_or_newer_database_is_said_in_one_line_and_left_alone(home: Path) -> None:
    path = locations.data_dir() / "conversations.db"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(InputFileError, match="damaged"):
        _run("list")
    assert [file.name for file in path.parent.iterdir()] == ["conversations.db"]
    path.unlink()
    with open_history(path, create=True) as file:
        assert file._connection is not None
        file._connection.execute("PRAGMA user_version = 99")
    with pytest.raises(InputFileError, match="version 99"):
        _run("list")
