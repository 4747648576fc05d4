"""Writing a message in another editor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.app import SuspendNotSupported

from app.editor import EditorError, edit_text


class Terminal:
    """An application that can be suspended, or not."""

    def __init__(self, can_suspend: bool = True) -> None:
        self.can_suspend = can_suspend
        self.suspended = 0

    @contextmanager
    def suspend(self) -> Iterator[None]:
        if not self.can_suspend:
            raise SuspendNotSupported
        self.suspended += 1
        yield


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def tool(folder: Path, name: str, body: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def edit(text: str = "old", terminal: Any = None) -> tuple[str, str]:
    return edit_text(terminal or Terminal(), text)


def test_the_editor_gets_the_text_and_its_own_arguments(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tools, "ed it", f'echo "$1 $2" > "{tools}/arguments"; echo more >> "$2"')
    monkeypatch.setenv("VISUAL", f"'{tools}/ed it' --wait")
    monkeypatch.setenv("EDITOR", "never-used")
    terminal = Terminal()
    assert edit("first\n中文\n", terminal) == ("first\n中文\nmore", "")
    assert terminal.suspended == 1
    first, path = (tools / "arguments").read_text().split()
    assert first == "--wait"
    assert path.endswith(".md")
    assert not Path(path).exists()


def test_without_an_editor_it_says_which_was_tried(tools: Path) -> None:
    with pytest.raises(EditorError, match="set VISUAL or EDITOR"):
        edit()
    tool(tools, "vi", "exit 0")
    assert edit() == ("old", "neither VISUAL nor EDITOR is set, so vi was used")
    tool(tools, "nano", "exit 0")
    assert "nano" in edit()[1]


@pytest.mark.parametrize(
    ("editor", "words"),
    [
        ("no-such-program", "No such file"),
        ("'open", "not a command"),
        ("fails", r"error \(3\)"),
        ("binary", "UTF-8"),
    ],
)
def test_what_goes_wrong_is_one_line(
    tools: Path, monkeypatch: pytest.MonkeyPatch, editor: str, words: str
) -> None:
    tool(tools, "fails", "exit 3")
    tool(tools, "binary", r'printf "\377" > "$1"')
    monkeypatch.setenv("EDITOR", editor)
    with pytest.raises(EditorError, match=words) as caught:
        edit()
    assert "\n" not in str(caught.value)


def test_a_terminal_that_cannot_be_lent_says_so(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "vi")
    with pytest.raises(EditorError, match="cannot be handed"):
        edit(terminal=Terminal(can_suspend=False))
