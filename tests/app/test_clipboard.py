"""Copying: natively when local, through the terminal else, and never more said than is known."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app import clipboard
from app.clipboard import copy


class Terminal:
    """What the application's driver was given to write."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self._driver = SimpleNamespace(write=self.written.append)
        self._clipboard = ""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH, on a machine without a screen."""
    for name in ("SSH_CONNECTION", "SSH_TTY", "TMUX", "WAYLAND_DISPLAY", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def tool(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def osc52(text: str) -> str:
    return f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a"


async def test_a_local_tool_gets_the_text(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    tool(tools, "xclip", f'/bin/cat > "{tools}/got"; echo "$@" > "{tools}/arguments"')
    terminal: Any = Terminal()
    assert await copy(terminal, "中文\nx") == "4 characters copied with xclip"
    assert (tools / "got").read_text() == "中文\nx"
    assert (tools / "arguments").read_text().split() == ["-selection", "clipboard"]
    assert terminal.written == []
    assert terminal._clipboard == "中文\nx"


async def test_a_tool_that_fails_or_hangs_gives_way(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(clipboard, "_TIMEOUT_S", 0.2)
    tool(tools, "wl-copy", "exit 1")
    tool(tools, "xclip", "exec /bin/sleep 60")
    terminal: Any = Terminal()
    begin = time.monotonic()
    assert await copy(terminal, "x") == "1 characters sent to the terminal's clipboard"
    assert terminal.written == [osc52("x")]
    assert time.monotonic() - begin < 30


async def test_a_tool_that_stays_in_the_background_does_not_hold_us(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    tool(tools, "xsel", "/bin/cat > /dev/null; /bin/sleep 20 &")
    terminal: Any = Terminal()
    assert await copy(terminal, "x") == "1 characters copied with xsel"


@pytest.mark.parametrize("variable", ["SSH_CONNECTION", "SSH_TTY"])
async def test_over_ssh_only_the_terminal_can(
    tools: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("DISPLAY", "localhost:10.0")
    monkeypatch.setenv(variable, "1")
    tool(tools, "xclip", "exit 0")
    terminal: Any = Terminal()
    assert "terminal's clipboard" in await copy(terminal, "x")
    assert await copy(terminal, "x", "native") == "1 characters copied with xclip"


async def test_native_says_when_there_is_no_tool(tools: Path) -> None:
    terminal: Any = Terminal()
    assert (await copy(terminal, "x", "native")).startswith("not copied")
    assert terminal.written == []


async def test_tmux_gets_it_plain_and_passed_through(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMUX", "/tmp/tmux,1,0")
    terminal: Any = Terminal()
    await copy(terminal, "x", "osc52")
    plain = osc52("x")
    assert terminal.written == [plain, "\x1bPtmux;\x1b" + plain + "\x1b\\"]


async def test_a_large_text_is_sent_with_a_warning(tools: Path) -> None:
    terminal: Any = Terminal()
    assert (await copy(terminal, "x" * 55_000)).endswith("clipboard")
    assert "refuse" in await copy(terminal, "x" * 56_000)


async def test_what_is_copied_is_clean(tools: Path) -> None:
    terminal: Any = Terminal()
    await copy(terminal, "rm -rf /\x1b[2K\rls", "osc52")
    assert terminal.written == [osc52("rm -rf /␛[2Kls")]
