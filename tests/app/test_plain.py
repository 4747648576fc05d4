"""The chat line by line: what goes where, what is kept, and that nothing in it moves a cursor."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app import locations
from app.plain import PlainChat
from app.store import Store
from engine import Budget, EngineState, Overflow, Reply, Request, TierSnapshot
from tests.app.tiers.models import mixed_tiers, tiers
from tests.fakes import FakeEngine, Script
from tests.tiny_gguf import CHATML, write_tiny_model

MODEL = Path("fake.gguf")


def quick(*replies: str, **others: Any) -> Script:
    """A script that takes no time."""
    return Script(replies or Script.replies, token_s=0.0, load_s=0.0, **others)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Chat:
    """A chat whose input is a script, and what came of it."""

    def __init__(self, *lines: str, script: Script | None = None, terminal: bool = False) -> None:
        stream = Terminal if terminal else io.StringIO
        self.engine = FakeEngine(script or quick())
        out, err = stream(), stream()
        text = "".join(f"{line}\n" for line in lines)
        self.chat = PlainChat(self.engine, stdin=stream(text), stdout=out, stderr=err)
        self.code = self.chat.run(MODEL)
        self.out, self.err = out.getvalue(), err.getvalue()

    def stored(self) -> list[list[tuple[str, str]]]:
        """Role and text of the turns of every conversation that was kept, newest first."""
        store = Store(locations.data_dir() / "conversations.db")
        store.start()
        try:
            return [[(turn.role, turn.text) for turn in each.turns] for each in store.everything()]
        finally:
            store.close()


@pytest.fixture(autouse=True)
def english(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.setenv(name, "C.UTF-8")


def test_replies_go_to_standard_output_and_the_rest_beside_it() -> None:
    chat = Chat("one", "two", script=quick("First.", "Second\n"))
    assert (chat.code, chat.out) == (0, "First.\nSecond\n")
    assert "Fake-1M-Instruct is ready" in chat.err
    assert chat.err.count(" per second]") == 2
    assert chat.stored() == [
        [("user", "one"), ("assistant", "First."), ("user", "two"), ("assistant", "Second\n")]
    ]
    assert chat.engine.loaded == [MODEL]
    assert chat.engine.snapshot.state is EngineState.CLOSED


def test_a_terminal_shows_who_speaks_and_no_control_characters() -> None:
    script = quick("\x1b[2Jno\x9b1m", model_name="Bad\x1bModel")
    chat = Chat("hello", terminal=True, script=script)
    assert chat.err.count("You: ") == 2
    assert "Bad␛Model: " in chat.out
    for text in (chat.out, chat.err):
        assert not {character for character in text if not character.isprintable()} - {"\n"}


def test_a_backslash_at_the_end_of_a_line_begins_another_one() -> None:
    chat = Chat("one \\", "two\\", "three", "four\\")
    asked = [request.messages[-1].content for request in chat.engine.requests]
    assert asked == ["one \ntwo\nthree", "four"]


def test_blank_lines_are_no_messages_and_two_slashes_are_one() -> None:
    chat = Chat("", "   ", "//help me")
    assert [request.messages[-1].content for request in chat.engine.requests] == ["/help me"]


def test_commands_lead_the_conversation() -> None:
    chat = Chat(
        "/system be brief",
        "/set temperature 0.5",
        "/set top-k 3",
        "/overflow",
        "one",
        "/new",
        "two",
    )
    first, second = chat.engine.requests
    assert [message.content for message in first.messages] == ["be brief", "one"]
    assert (first.sampling.temperature, first.sampling.top_k) == (0.5, 3)
    assert first.overflow is Overflow.STOP
    assert [message.content for message in second.messages] == ["two"]
    assert second.overflow is Overflow.DROP_OLDEST
    assert second.sampling.temperature != 0.5
    assert len(chat.stored()) == 2


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("/set", "top_p 0.95"),
        ("/set seed", "seed random"),
        ("/set temperature hot", "between 0 and 5"),
        ("/set colour 1", "no 'colour'"),
        ("/nwe", "did you mean /new?"),
        ("/settings", "part of the application"),
        ("/open 1", "/history lists"),
        ("/open x", "/history lists"),
        ("/undo", "nothing to bring back"),
        ("/delete", "there is none"),
        ("/history", "there is none"),
        ("/retry", "there is no message yet"),
        ("/model", "Fake-1M-Instruct is loaded"),
        ("/model nowhere.gguf", "no file 'nowhere.gguf'"),
        ("/budget much", "is no size"),
        ("/vram much", "is no size"),
        ("/help", "/quit: "),
        ("/system", "system prompt of this conversation: none"),
        ("look at @no/such.txt", "no such file"),
    ],
)
def test_every_command_answers(line: str, answer: str) -> None:
    chat = Chat(line)
    assert answer in chat.err
    assert chat.engine.requests == []


def test_a_seed_is_set_and_made_random_again() -> None:
    chat = Chat("/set seed 7", "one", "/set seed random", "two")
    assert [request.sampling.seed for request in chat.engine.requests] == [7, None]


def test_another_reply_stands_beside_the_first() -> None:
    chat = Chat("one", "/retry", script=quick("First.", "Second."))
    assert chat.stored() == [[("user", "one"), ("assistant", "Second.")]]
    conversation = chat.chat.workspace.current
    assert [turn.text for turn in conversation.siblings(conversation.turns[-1])] == ["First.", "Second."]


def test_an_earlier_conversation_is_found_and_goes_on() -> None:
    Chat(
        "about cats",
        script=quick(
            "Cats purr.",
        ),
    )
    Chat("about dogs")
    chat = Chat("/history cats", "/open 1", "and more", "/history")
    assert "1. about cats" in chat.err
    assert "Fake-1M-Instruct: Cats purr." in chat.err
    assert [message.content for message in chat.engine.requests[0].messages] == [
        "about cats",
        "Cats purr.",
        "and more",
    ]
    assert "2. about dogs" in chat.err


def test_a_conversation_is_deleted_and_brought_back() -> None:
    assert Chat("one", "/delete").stored() == []
    back = Chat("one", "/delete", "/undo", "two")
    assert [text for _role, text in back.stored()[0]][::2] == ["one", "two"]


def test_the_budget_reaches_the_engine() -> None:
    chat = Chat("/budget 2G", "/budget")
    assert chat.engine.budgets == [Budget(2 * 10**9), None]


def test_the_budget_of_the_gpu_reaches_the_engine_and_holds_for_the_next_model() -> None:
    chat = Chat("/vram 2G", script=replace(quick("Hello."), tiers=mixed_tiers()))
    assert (chat.engine.vram_budgets, chat.engine.budgets) == ([Budget(2 * 10**9)], [])
    assert chat.chat.chosen.vram_budget == Budget(2 * 10**9)


@pytest.mark.parametrize("placed", [None, tiers()])
def test_without_a_gpu_there_is_no_budget_of_one(placed: TierSnapshot | None) -> None:
    chat = Chat("/vram", "/vram 4G", script=quick(tiers=placed))
    assert chat.err.count("no GPU computes: there is no video memory to share out") == 2
    assert "before the next token" not in chat.err
    assert (chat.engine.vram_budgets, chat.chat.chosen.vram_budget) == ([], None)


def test_every_budget_that_is_refused_is_told_as_refused() -> None:
    why = "the memory budget was not changed: give at least 274M (--ram-budget)"
    chat = Chat("/budget 10M", "/budget 10M", script=quick(tiers=tiers(), refuse_budget=why))
    assert chat.err.count("note: the memory budget was not changed: give at least 274M (/budget)") == 2
    assert "before the next token" not in chat.err


def test_a_file_goes_with_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("remember the milk")
    chat = Chat("read @notes.txt")
    assert "remember the milk" in chat.engine.requests[0].messages[-1].content


def test_what_fails_is_said_and_is_the_exit_code_of_a_script() -> None:
    failed = Chat("one", script=quick("!no such luck (-c)"))
    assert failed.code == 1
    assert "the reply failed: no such luck (`context` in settings.toml)" in failed.err
    assert (
        Chat(
            "one",
            script=quick(
                "!no",
            ),
            terminal=True,
        ).code
        == 0
    )
    unloaded = Chat("one", script=quick(load_error="it is damaged"))
    assert unloaded.code == 1
    assert "loading failed: it is damaged" in unloaded.err
    assert "no model is loaded" in unloaded.err
    assert len(unloaded.stored()) == 2, "without a model nothing is sent"


def test_what_was_left_out_is_said() -> None:
    assert "2 messages did not fit" in Chat("one", script=quick(dropped_messages=(2,))).err


def interrupt_when(monkeypatch: pytest.MonkeyPatch, *conditions: Callable[[], bool]) -> None:
    """As if ctrl+c were pressed while the chat waits, once for each condition that comes true."""
    left, sleep = list(conditions), time.sleep

    def waits(seconds: float) -> None:
        sleep(seconds)
        if left and left[0]():
            del left[0]
            raise KeyboardInterrupt

    monkeypatch.setattr("app.plain.time.sleep", waits)


def test_ctrl_c_stops_a_reply_and_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    engine = FakeEngine(Script(("word " * 2000,), token_s=0.002, load_s=0.0))
    chat = PlainChat(engine, stdin=Terminal("one\ntwo\n"), stdout=out, stderr=io.StringIO())

    def grows() -> bool:
        turns = chat.workspace.current.turns
        return bool(turns) and len(turns) == 2 * len(engine.requests) and len(turns[-1].text) > 20

    interrupt_when(monkeypatch, grows, lambda: len(engine.requests) == 2 and grows())
    assert chat.run(MODEL) == 0
    first, reply, second, other = chat.workspace.current.turns
    assert (first.text, second.text) == ("one", "two")
    assert (reply.status, other.status) == ("cancelled", "cancelled")
    assert reply.text
    assert out.getvalue() == f"{reply.text}\n{other.text}\n".replace(" \n", " \n")


def test_ctrl_c_gives_up_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, err = FakeEngine(Script(load_s=5.0)), io.StringIO()
    chat = PlainChat(engine, stdin=Terminal("one\n"), stdout=io.StringIO(), stderr=err)
    interrupt_when(monkeypatch, lambda: chat.bridge.snapshot.state is EngineState.LOADING)
    assert chat.run(MODEL) == 0
    assert engine.loaded == []
    assert "no model is loaded" in err.getvalue()


def test_ctrl_c_twice_ends_the_program_and_everything_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(FakeEngine):
        def ask(self, request: Request) -> Reply:
            reply = super().ask(request)
            reply.cancel = lambda: None  # type: ignore[method-assign]
            return reply

    out = io.StringIO()
    engine = Deaf(Script(("word " * 4000,), token_s=0.002, load_s=0.0))
    chat = PlainChat(engine, stdin=Terminal("one\n"), stdout=out, stderr=io.StringIO())
    interrupt_when(monkeypatch, lambda: len(out.getvalue()) > 20, lambda: len(out.getvalue()) > 40)
    with pytest.raises(SystemExit) as ended:
        chat.run(MODEL)
    assert ended.value.code == 130
    stored = Store(locations.data_dir() / "conversations.db")
    stored.start()
    [conversation] = stored.everything()
    stored.close()
    assert conversation.turns[-1].text.startswith("word")


# -- the real thing, in a terminal

COMMAND = (
    "import argparse, sys; from app.cli import chat; p = argparse.ArgumentParser(); chat.add_arguments(p);"
    "sys.exit(chat.run(p.parse_args()))"
)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A model whose reply does not end: what it says is always the same, and its context is long."""
    settings = locations.settings_file()
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("greedy = true\ncontext = 100000\n")
    return write_tiny_model(tmp_path / "tiny.gguf", chat_template=CHATML, context=100_000)


class Screen:
    """The other end of a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "dumb"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=environment,
        )
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, text: str, after: int = 0) -> None:
        self.until(lambda: text in self.seen[after:], text)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, f"{what!r} never came: {self.seen[-500:]}"
            if select.select([self.master], [], [], 0.2)[0]:
                with suppress(OSError):
                    self.seen += os.read(self.master, 65536).decode("utf-8", "replace")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        os.close(self.master)


def test_a_dumb_terminal_gets_the_plain_chat(tiny: Path) -> None:
    with closing(Screen("-m", str(tiny))) as screen:
        screen.wait_for("TERM=dumb): line by line")
        screen.wait_for("You: ")
        screen.type("hello\n")
        screen.wait_for("tiny llama: ")
        mark = len(screen.seen)
        os.kill(screen.process.pid, signal.SIGINT)
        screen.wait_for("per second]", mark)
        mark = len(screen.seen)
        screen.wait_for("You: ", mark - 5)
        os.kill(screen.process.pid, signal.SIGINT)
        screen.wait_for("/quit ends the program", mark)
        screen.type("\x04")
        assert screen.process.wait(30) == 0
        assert "\x1b" not in screen.seen
        assert "Traceback" not in screen.seen


def stored_reply() -> str:
    path = locations.data_dir() / "conversations.db"
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        row = connection.execute("SELECT text FROM message WHERE role = 'assistant'").fetchone()
        return row[0] if row else ""
    return ""


def test_a_killed_chat_has_kept_most_of_its_reply(tiny: Path) -> None:
    with closing(Screen("-m", str(tiny))) as screen:
        screen.wait_for("You: ")
        screen.type("hello\n")
        deadline = time.monotonic() + 60
        while not stored_reply():
            assert time.monotonic() < deadline
            with suppress(OSError):
                select.select([screen.master], [], [], 0.05)
                os.read(screen.master, 65536)
    assert stored_reply()


def test_a_signal_ends_it_and_everything_is_saved(tiny: Path) -> None:
    with closing(Screen("-m", str(tiny))) as screen:
        screen.wait_for("You: ")
        screen.type("hello\n")
        screen.wait_for("tiny llama: ")
        mark = len(screen.seen)
        screen.until(lambda: len(screen.seen) > mark + 100, "a reply that grows")
        screen.process.terminate()
        deadline = time.monotonic() + 30
        while screen.process.poll() is None:
            assert time.monotonic() < deadline
            with suppress(OSError):
                if select.select([screen.master], [], [], 0.05)[0]:
                    os.read(screen.master, 65536)
        assert screen.process.returncode == 128 + signal.SIGTERM
    assert stored_reply()


def test_nothing_of_it_needs_textual(tiny: Path) -> None:
    code = "import sys; sys.modules['textual'] = None; import app.plain, app.cli.chat"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_bytes_that_are_no_text_are_replaced_and_the_message_is_kept() -> None:
    chat = Chat("caf\udce9")
    assert chat.code == 0, chat.err
    assert chat.stored()[0][0] == ("user", "caf\ufffd")
