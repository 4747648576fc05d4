"""The real driver in a real pseudo-terminal: what reaches the terminal, and how it is left."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest
from gguf import GGUFWriter

from app.conversation import Conversation
from app.store import Store
from tests.app.pseudo_terminal import REPO, Terminal

EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b]0;owned\x07\x1b[31mred\x9b31mc1\u202eothgir\x1b[2J"
FORBIDDEN = (
    b"\x1b]52;c;ZXZpbA==",
    b"\x1b]0;owned",
    b"\x1b[31mred",
    b"\xc2\x9b",
    b"\xe2\x80\xae",
    b"othgir\x1b[2J",
)
OURS = re.compile(
    rb"\x1b\[[\d;]*[mH]"  # colours, places
    rb"|\x1b\[\?[\d;]+[hl]|\x1b\[\?\d+\$p"  # modes, and whether there are some
    rb"|\x1b\[>\d*u|\x1b\[<\d*u"  # the keyboard
    rb"|\x1b\]22;[a-z-]*(?:\x07|\x1b\\)"  # the mouse pointer
    rb"|\r\n"
)
"""Every command that Textual sends to a terminal by itself."""
CONTROL = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]")
"""Control characters C0 and C1, and those that turn the direction of text, in UTF-8."""
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
application.Engine = lambda niceness: FakeEngine(script)
signals.GRACE_S = 1.0
def crash(self):
    raise RuntimeError("on purpose")
ChatScreen.action_newest = crash
raise SystemExit(application.main(Path("/m/" + EVIL + ".gguf")))
"""


SLOW_START = """
import os
import sys
import time
from pathlib import Path
import app.app as application
from tests.fakes import FakeEngine, Script

class Clock(FakeEngine):
    \"""Says what time it is, twenty times a second for a minute, and notes in a file what it has said.\"""

    def _generate(self, reply, number):
        said = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for count in range(1200):
            if reply.cancel_token.cancelled or self._closing.wait(0.05):
                break
            text = f"{time.monotonic():.3f} "
            os.write(said, text.encode())
            reply.append(text, [count], reply.stats)

application.Engine = lambda niceness: Clock(Script())
raise SystemExit(application.main(Path("/m/fake.gguf")))
"""


class Screen(Terminal):
    """The application in a terminal, and what a person sees there."""

    def __init__(
        self,
        start: str = START,
        *arguments: str,
        size: tuple[int, int] = (80, 24),
        errors: Path | None = None,
    ) -> None:
        super().__init__(["-c", start, *arguments], size=size, errors=errors)
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)
        self._fed = 0

    @property
    def text(self) -> str:
        """What is on the screen, line by line."""
        new, self._fed = bytes(self.written[self._fed :]), len(self.written)
        self._stream.feed(new)
        return "\n".join(self._screen.display)

    def wait_to_see(self, words: str) -> None:
        try:
            self.until(lambda: words in self.text, words)
        except AssertionError as error:
            raise AssertionError(f"{words!r} is not on the screen:\n{self.text}") from error


@pytest.fixture
def terminal(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    monkeypatch.chdir(REPO)
    folder = home / "tiercel" / "data" / "models"
    folder.mkdir(parents=True)
    (folder / f"{EVIL}.gguf").write_bytes(b"")
    _welcomed(home)
    with Screen() as terminal:
        yield terminal


def _welcomed(home: Path, more: str = "") -> None:
    folder = home / "tiercel" / "config"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.toml").write_text(f"welcomed = true\n{more}")


def _texts(home: Path) -> list[str]:
    connection = sqlite3.connect(home / "tiercel" / "data" / "conversations.db")
    texts = [text for (text,) in connection.execute("SELECT text FROM message ORDER BY id")]
    connection.close()
    return texts


def _assert_restored(terminal: Terminal) -> None:
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert b"\x1b[?1049l" in terminal.written, "the alternate screen was not left"
    assert terminal.written.rfind(b"\x1b[?25h") > terminal.written.rfind(b"\x1b[?25l"), "no cursor"


def test_no_byte_of_foreign_text_commands_the_terminal(terminal: Screen, home: Path) -> None:
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


def hostile(place: str) -> str:
    """Return text that commands a terminal and can be told from that of another place."""
    return place + EVIL


def shown(place: str) -> str:
    return f"{place}␛]52"


def _write_model(path: Path, name: str, licence: str) -> None:
    """Write a GGUF header with two texts that people see."""
    writer = GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_license(licence)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def _write_foreign_text(home: Path) -> None:
    """Put hostile text wherever the application reads some."""
    config, data = home / "tiercel" / "config", home / "tiercel" / "data"
    personas, themes = config / "personas", config / "themes"
    for folder in (personas, themes, data / "models"):
        folder.mkdir(parents=True, exist_ok=True)
    own = {key: json.dumps(hostile(place)) for key, place in (("name", "pname"), ("note", "pnote"))}
    own["system"] = json.dumps(hostile("psystem"))
    (personas / f"{hostile('0file')}.toml").write_text("\n".join(f"{k} = {v}" for k, v in own.items()))
    (personas / f"{hostile('0broken')}.toml").write_text("name = ")
    (themes / f"{hostile('tname')}.toml").write_text('primary = "#ff8800"')
    (themes / f"{hostile('0tbroken')}.toml").write_text("primary = ")
    _write_model(data / "models" / f"{hostile('mfile')}.gguf", hostile("gname"), hostile("glic"))
    store = Store(data / "conversations.db")
    store.start()
    conversation = Conversation(title=hostile("htitle"), persona=hostile("hpersona"))
    question = conversation.add("user", hostile("hquestion"))
    reply = conversation.add("assistant", f"{hostile('hreply')}\n\n- {hostile('hlist')}\n")
    reply.model, reply.note = hostile("hmodel"), hostile("hnote")
    store.add(conversation, question, reply)
    store.save_draft(conversation.id, hostile("hdraft"))
    assert store.close()


def test_no_foreign_text_commands_the_terminal_from_any_screen(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPO)
    _welcomed(home, f"theme = {json.dumps(hostile('tname'))}")
    _write_foreign_text(home)
    with Screen(size=(160, 50)) as terminal:
        see, press = terminal.wait_to_see, terminal.type
        see("ready")
        see(shown("htitle"))
        press("\x1bOQ")  # F2
        terminal.read_for(2.0)
        press("\x1b[B\r")  # the stored conversation
        for place in ("hquestion", "hreply", "hlist", "hmodel", "hdraft"):
            see(shown(place))
        press("\x1bOR")  # F3
        see("Enter load")
        see(shown("mfile"))
        press("\x1b[B")
        see(shown("glic"))
        press("\x1b")
        terminal.until(lambda: "Enter load" not in terminal.text, "the list of models is gone")
        press("\x06")  # ^F
        see("History")
        press("hquestion")
        see("1 message")
        press("\x1b")
        terminal.until(lambda: "History" not in terminal.text, "the history is gone")
        press("\x1bOS")  # F4
        see("Esc closes")
        press("\x1b")
        terminal.until(lambda: "Esc closes" not in terminal.text, "the map is gone")
        press("\x1b[24~")  # F12
        see("Settings")
        see(shown("tname"))
        press("\x1b")
        terminal.until(lambda: "Settings" not in terminal.text, "the settings are gone")
        press("\x1bOP")  # F1
        see("Keys and commands")
        press("\x1b")
        terminal.until(lambda: "Keys and commands" not in terminal.text, "the help is gone")
        terminal.read_for(1.5)  # the cursor is in the message box again
        press("\x15")
        terminal.read_for(1.5)  # keys that come at once may overtake a command
        press("/persona ")  # the space: no list of commands takes the Enter
        see("│ /persona ")
        press("\r")
        see(shown("pname"))
        see(shown("pnote"))
        see(shown("0broken"))
        press("\x1b")
        terminal.until(lambda: "Personas" not in terminal.text, "the personas are gone")
        press("\x12")  # ^R
        see("looks back")
        press("\x10tname")  # ^P
        see(shown("Theme: tname"))
        press("\x11")
        assert terminal.wait_for_end() == 0
    written = bytes(terminal.written)
    for bytes_ in FORBIDDEN:
        assert bytes_ not in written
    assert (found := CONTROL.search(rest := OURS.sub(b"", written))) is None, rest[found.start() - 80 :][:160]


def test_standard_error_may_go_to_a_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)
    _welcomed(home)
    terminal = Screen(errors=home / "errors")
    terminal.wait_for(b"ready")
    terminal.type("\x11")
    assert terminal.wait_for_end() == 0
    _assert_restored(terminal)
    terminal.close()
    assert (home / "errors").read_bytes() == b""


def test_any_byte_may_be_typed_and_any_text_pasted(terminal: Screen, home: Path) -> None:
    terminal.wait_for(b"ready")
    terminal.type(b"caf\xe9 \xff")
    terminal.type("👩\u200d👧 ")
    terminal.type("\x1b[200~a \x1b[31mred\r\x11 \x1b[A\x1bb\x1b[201~")
    terminal.type("\r")
    terminal.wait_for(b"THE-END")
    terminal.type("\x11")
    assert terminal.wait_for_end() == 0
    assert _texts(home)[0] == "caf\ufffd \ufffd👩\u200d👧 a ␛[31mred\n␑ ␛[A␛b"


def test_sigterm_saves_and_restores_the_terminal(terminal: Screen, home: Path) -> None:
    terminal.wait_for(b"ready")
    terminal.type("hello\r")
    terminal.wait_for(b"hello")
    os.kill(terminal.child, signal.SIGTERM)
    assert terminal.wait_for_end() == 128 + signal.SIGTERM
    _assert_restored(terminal)
    assert _texts(home)[0] == "hello"


def test_sighup_in_a_terminal_that_is_still_there_restores_it(terminal: Screen, home: Path) -> None:
    terminal.wait_for(b"ready")
    os.kill(terminal.child, signal.SIGHUP)
    assert terminal.wait_for_end() == 128 + signal.SIGHUP
    _assert_restored(terminal)


def test_a_signal_ends_it_even_when_nobody_reads_the_terminal(terminal: Screen, home: Path) -> None:
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
    while terminal.exit_code() is None:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert terminal.exit_code() == 128 + signal.SIGTERM
    assert _texts(home)[0] == "hello"


def test_a_crash_saves_and_restores_the_terminal(terminal: Screen, home: Path) -> None:
    terminal.wait_for(b"ready")
    terminal.type("hello\r")
    terminal.wait_for(b"THE-END")
    terminal.type("\x1b[1;5F")
    assert terminal.wait_for_end() == 1
    assert b"on purpose" in terminal.written
    _assert_restored(terminal)
    assert _texts(home)[0] == "hello"


def test_a_terminal_that_goes_away_ends_the_program_and_loses_nothing(terminal: Screen, home: Path) -> None:
    terminal.wait_for(b"ready")
    terminal.type("hello\r")
    terminal.wait_for(b"THE-END")
    terminal.close()
    assert terminal.wait_for_end() == 128 + signal.SIGHUP
    assert _texts(home)[0] == "hello"


def test_kill_9_in_the_middle_of_a_reply_loses_two_seconds_at_most(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPO)
    _welcomed(home)
    said = home / "said"
    with Screen(SLOW_START, str(said)) as terminal:
        terminal.wait_for(b"ready")
        terminal.type("what time is it\r")
        terminal.until(said.exists, "a reply")
        terminal.read_for(1.0)
        terminal.type("the next message")
        terminal.read_for(4.3)  # between two saves
        terminal.kill()
    spoken = said.read_text().split()
    store = Store(home / "tiercel" / "data" / "conversations.db")
    store.start()
    try:
        (info,) = store.conversations(10)
        conversation = store.load(info)
        drafts = store.drafts()
    finally:
        assert store.close()
    question, reply = conversation.turns
    saved = reply.text.split()
    assert question.text == "what time is it"
    assert saved == spoken[: len(saved)]
    assert float(spoken[-1]) - float(saved[-1]) <= 2.0
    assert drafts == {conversation.id: "the next message"}
