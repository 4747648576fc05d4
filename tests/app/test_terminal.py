"""The real driver in a real pseudo-terminal: what reaches the terminal, and how it is left."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import sqlite3
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b]0;owned\x07\x1b[31mred\x9b31mc1\u202eothgir\x1b[2J"
FORBIDDEN = (
    b"\x1b]52;c;ZXZpbA==",
    b"\x1b]0;owned",
    b"\x1b[31mred",
    b"\xc2\x9b",
    b"\xe2\x80\xae",
    b"othgir\x1b[2J",
)
START = f"""
from pathlib import Path
import app.app as application
import app.signals as signals
from app.screens.chat import ChatScreen
from engine import LoadOptions
from tests.fakes import FakeEngine, Script
EVIL = {EVIL!r}
reply = EVIL + " THE-END\\n\\n```\\n" + EVIL + "\\n```\\n"
script = Script(replies=(reply,), model_name="model" + EVIL, notices=(EVIL,))
application.Engine = lambda: FakeEngine(script)
signals.GRACE_S = 1.0
def crash(self):
    raise RuntimeError("on purpose")
ChatScreen.newest = crash
raise SystemExit(application.main(Path("/m/" + EVIL + ".gguf")))
"""


class Terminal:
    """A child process with a terminal of its own, and everything it has written."""

    def __init__(self, home: Path, errors: Path | None = None) -> None:
        self.written = b""
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(REPO)}
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        files: list[Any] = [(os.POSIX_SPAWN_DUP2, self.slave, number) for number in (0, 1, 2)]
        if errors is not None:
            files.append((os.POSIX_SPAWN_OPEN, 2, str(errors), os.O_WRONLY | os.O_CREAT, 0o600))
        self.child = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", START],
            environment,
            file_actions=files,
            setsid=True,
        )

    def type(self, keys: str | bytes) -> None:
        os.write(self.master, keys.encode() if isinstance(keys, str) else keys)

    def wait_for(self, text: bytes, seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while text not in self.written:
            assert time.monotonic() < end, f"{text!r} never came; the last was {self.written[-500:]!r}"
            self._read()

    def wait_for_end(self, seconds: float = 20.0) -> int:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ended, status = os.waitpid(self.child, os.WNOHANG)
            self._read()
            if ended:
                return os.waitstatus_to_exitcode(status)
        os.kill(self.child, signal.SIGKILL)
        raise TimeoutError(f"it never ended; the last was {self.written[-500:]!r}")

    def _read(self) -> None:
        if self.master < 0:
            time.sleep(0.05)
        elif select.select([self.master], [], [], 0.05)[0]:
            self.written += os.read(self.master, 65536)

    def close(self) -> None:
        if self.master >= 0:
            os.close(self.master)
            os.close(self.slave)
            self.master = -1


@pytest.fixture
def terminal(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.chdir(REPO)
    folder = home / "tiercel" / "data" / "models"
    folder.mkdir(parents=True)
    (folder / f"{EVIL}.gguf").write_bytes(b"")
    terminal = Terminal(home)
    yield terminal
    terminal.close()


def _texts(home: Path) -> list[str]:
    connection = sqlite3.connect(home / "tiercel" / "data" / "conversations.db")
    texts = [text for (text,) in connection.execute("SELECT text FROM message ORDER BY id")]
    connection.close()
    return texts


def _assert_restored(terminal: Terminal) -> None:
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert b"\x1b[?1049l" in terminal.written, "the alternate screen was not left"
    assert terminal.written.rfind(b"\x1b[?25h") > terminal.written.rfind(b"\x1b[?25l"), "no cursor"


def test_no_byte_of_foreign_text_commands_the_terminal(terminal: Terminal, home: Path) -> None:
    terminal.wait_for(b"ready")
    terminal.type("\x1b[200~pasted " + EVIL.replace("\x1b[2J", "") + "\x1b[201~")
    terminal.type("hello\r")
    terminal.wait_for(b"THE-END")
    terminal.wait_for(b"tok/s")
    terminal.type("\x1bOR")
    terminal.wait_for(b"Models")
    terminal.wait_for(b"Enter load")
    terminal.type("\x11")
    assert terminal.wait_for_end() == 0
    for bytes_ in FORBIDDEN:
        assert bytes_ not in terminal.written
    assert "␛]0;owned".encode() in terminal.written
    _assert_restored(terminal)
    assert _texts(home)[1].startswith(EVIL), "the store keeps what was generated, byte for byte"


def test_standard_error_may_go_to_a_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)
    terminal = Terminal(home, errors=home / "errors")
    terminal.wait_for(b"ready")
    terminal.type("\x11")
    assert terminal.wait_for_end() == 0
    _assert_restored(terminal)
    terminal.close()
    assert (home / "errors").read_bytes() == b""


def test_any_byte_may_be_typed_and_any_text_pasted(terminal: Terminal, home: Path) -> None:
    terminal.wait_for(b"ready")
    terminal.type(b"caf\xe9 \xff")
    terminal.type("👩\u200d👧 ")
    terminal.type("\x1b[200~a \x1b[31mred\r\x11 \x1b[A\x1bb\x1b[201~")
    terminal.type("\r")
    terminal.wait_for(b"THE-END")
    terminal.type("\x11")
    assert terminal.wait_for_end() == 0
    assert _texts(home)[0] == "caf\ufffd \ufffd👩\u200d👧 a ␛[31mred\n␑ ␛[A␛b"


def test_sigterm_saves_and_restores_the_terminal(terminal: Terminal, home: Path) -> None:
    terminal.wait_for(b"ready")
    terminal.type("hello\r")
    terminal.wait_for(b"hello")
    os.kill(terminal.child, signal.SIGTERM)
    assert terminal.wait_for_end() == 128 + signal.SIGTERM
    _assert_restored(terminal)
    assert _texts(home)[0] == "hello"


def test_sighup_in_a_terminal_that_is_still_there_restores_it(terminal: Terminal, home: Path) -> None:
    terminal.wait_for(b"ready")
    os.kill(terminal.child, signal.SIGHUP)
    assert terminal.wait_for_end() == 128 + signal.SIGHUP
    _assert_restored(terminal)


def test_a_signal_ends_it_even_when_nobody_reads_the_terminal(terminal: Terminal, home: Path) -> None:
    terminal.wait_for(b"ready")
    terminal.type("hello\r")
    terminal.wait_for(b"THE-END")
    for _ in range(10):  # each draws the screen anew, until the terminal takes no more
        terminal.type("\x1bOP")
        time.sleep(0.05)
        terminal.type("\x1b")
        time.sleep(0.15)
    os.kill(terminal.child, signal.SIGTERM)
    end = time.monotonic() + 20
    while not (ended := os.waitpid(terminal.child, os.WNOHANG))[0]:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert os.waitstatus_to_exitcode(ended[1]) == 128 + signal.SIGTERM
    assert _texts(home)[0] == "hello"


def test_a_crash_saves_and_restores_the_terminal(terminal: Terminal, home: Path) -> None:
    terminal.wait_for(b"ready")
    terminal.type("hello\r")
    terminal.wait_for(b"THE-END")
    terminal.type("\x1b[1;5F")
    assert terminal.wait_for_end() == 1
    assert b"on purpose" in terminal.written
    _assert_restored(terminal)
    assert _texts(home)[0] == "hello"


def test_a_terminal_that_goes_away_ends_the_program_and_loses_nothing(terminal: Terminal, home: Path) -> None:
    terminal.wait_for(b"ready")
    terminal.type("hello\r")
    terminal.wait_for(b"THE-END")
    terminal.close()
    assert terminal.wait_for_end() == 128 + signal.SIGHUP
    assert _texts(home)[0] == "hello"
