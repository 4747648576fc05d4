"""Slash commands come from the registry; everything else is a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.actions import ACTIONS
from app.slash import COMMANDS, Command, Problem, complete, message_of, parse


def test_every_name_is_one_word_and_belongs_to_one_action() -> None:
    names = [action.slash for action in ACTIONS if action.slash]
    assert len(set(names)) == len(names)
    assert all(name.isalpha() and name.islower() for name in names)
    assert all(action.method for action in COMMANDS.values())


def test_a_command_with_and_without_argument() -> None:
    assert parse("/help") == Command(COMMANDS["help"])
    assert parse("  /HELP ") == Command(COMMANDS["help"])
    assert parse("/rename  A new title ") == Command(COMMANDS["rename"], "A new title")
    assert parse("/system Be brief.\nAlways.") == Command(COMMANDS["system"], "Be brief.\nAlways.")


@pytest.mark.parametrize("text", ["", "hello", "a / b", "//help", "see /help"])
def test_a_message_is_no_command(text: str) -> None:
    assert parse(text) is None


def test_a_doubled_slash_sends_one() -> None:
    assert message_of("//etc/hosts is a file") == "/etc/hosts is a file"
    assert message_of("hello // there") == "hello // there"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("/hepl", "/help"),
        ("/etc/hosts", "//"),
        ("/", "/help"),
        ("/ help", "/help"),
        ("/undo it", "takes nothing"),
    ],
)
def test_what_looks_like_a_command_and_is_none_says_what_to_do(text: str, named: str) -> None:
    problem = parse(text)
    assert isinstance(problem, Problem)
    assert named in problem.text
    assert "\n" not in problem.text


@given(st.text())
def test_every_text_is_a_command_a_problem_or_a_message(text: str) -> None:
    assert (parse(text) is None) == (not text.strip().startswith("/") or text.strip().startswith("//"))


def test_names_are_completed_those_that_begin_so_first() -> None:
    assert [action.slash for action in complete("/ex")] == ["export"]
    names = [action.slash for action in complete("/de")]
    assert names[0] == "delete"
    assert "model" in names
    assert len(complete("/")) == len(COMMANDS)


@pytest.mark.parametrize("text", ["", "he", "//he", "/rename a", "/xyzzy", "a/he"])
def test_there_is_nothing_to_complete(text: str) -> None:
    assert complete(text) == []
