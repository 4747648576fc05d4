"""The command line as a whole: exit codes, one-line errors, help, broken pipes and ctrl+c."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from app.__main__ import main
from engine import GpuSearch
from tests.app.tiers.models import GPU
from tests.tiny_gguf import CHATML, write_tiny_model

COMMANDS = (
    *("run", "chat", "history", "tiers", "bench", "probe"),
    *("perplexity", "tokenize", "render", "inspect", "models", "pull"),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Enough context for a reply that is still running when it is interrupted.
    path = tmp_path_factory.mktemp("cli") / "tiny.gguf"
    return write_tiny_model(path, chat_template=CHATML, context=100_000)


def tiercel(*arguments: str | Path, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "app", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def test_the_general_help_names_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {command} " in shown for command in COMMANDS)
    assert "130 interrupted" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_each_help_ends_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "example: " in capsys.readouterr().out.strip().rpartition("\n\n")[2]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (GpuSearch((), "no NVIDIA driver is installed", False), "no GPU: no NVIDIA driver is installed"),
        (
            GpuSearch((GPU, replace(GPU, number=1)), "", True),
            "cuda:1: NVIDIA RTX 0000, compute capability 8.6, 24.0 GB, driver 580.65.06",
        ),
    ],
)
def test_the_version_comes_with_what_can_compute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, found: GpuSearch, said: str
) -> None:
    monkeypatch.setattr("engine.inventory.find_gpus", lambda: found)
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code in (0, None)
    version, processor, *gpus = capsys.readouterr().out.splitlines()
    assert version.startswith("tiercel 0.")
    assert processor.startswith(("cpu ", "numpy"))
    assert len(gpus) == max(1, len(found.devices))
    assert gpus[-1] == said


def test_an_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chatt"]) == 2
    assert "'chatt'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "-m", "{tmp}/none.gguf", "-p", "x"], 3, "none.gguf"),
        (["run", "-m", "{tmp}", "-p", "x"], 3, "folder"),
        (["run", "-m", "{tmp}/empty.gguf", "-p", "x"], 3, "empty.gguf"),
        (["run", "-m", "{tiny}", "-p", "hello " * 99, "-c", "50"], 4, "context holds 50"),
        (
            ["run", "-m", "{tiny}", "-p", "x", "-c", "999999999"],
            4,
            "for reading weights as they are used, and the memory budget is",
        ),
        (["run", "-m", "{tiny}", "-p", "x", "--ram-budget", "1K"], 4, "M (--ram-budget)"),
        (["run", "-m", "{tiny}", "-p", "x", "--ram-budget", "0"], 2, "no size above 0"),
        (["run", "-m", "{tiny}", "-p", "x", "--top-p", "2"], 2, "top_p is 2.0"),
        (["run", "-m", "{tiny}", "-p", "x", "--colour", "red"], 2, "--colour red; see `tiercel run --help`"),
        (["run", "-p", "x"], 2, "-m/--model"),
        (["run", "-m", "{tiny}", "-p", ""], 2, "no prompt"),
        (["run", "-m", "{tiny}", "-p", "x", "--raw", "--system", "s"], 2, "--system"),
        (["bench", "-m", "{tmp}/empty.gguf"], 3, "empty.gguf"),
        (["run", "-m", "~no such account/x.gguf", "-p", "x"], 3, "no file"),
        (["bench", "-m", "{tiny}", "-p", "0", "-n", "0"], 2, "nothing to measure"),
        (["perplexity", "-m", "{tiny}", "-f", "{tmp}/none.txt"], 3, "none.txt"),
        (["perplexity", "-m", "{tiny}", "-f", "{tmp}/short.txt"], 4, "longer text"),
        (["perplexity", "-m", "{tiny}", "--reference", "{tmp}/short.txt"], 3, "short.txt"),
        (["perplexity", "-m", "{tiny}", "-f", "{tmp}/short.txt", "-c", "1"], 2, "window of 1"),
    ],
)
def test_what_goes_wrong_is_one_line_and_an_exit_code(
    tiny: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.setattr("app.cli.run.piped_text", lambda: "")
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "short.txt").write_text("short")
    assert main([argument.format(tmp=tmp_path, tiny=tiny) for argument in arguments]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("tiercel: ")
    assert shown.err.count("\n") == 1
    assert said in shown.err


@pytest.mark.parametrize("number", ["0", "-1", "x", "1.5", "99999999999999999999"])
def test_a_count_that_is_none_is_wrong_usage(
    tiny: Path, capsys: pytest.CaptureFixture[str], number: str
) -> None:
    assert main(["run", "-m", str(tiny), "-p", "x", f"--context={number}"]) == 2
    assert "not a whole number" in capsys.readouterr().err


def test_a_reader_that_has_enough_is_no_traceback(tiny: Path) -> None:
    arguments = ("run", "-m", tiny, "-p", "hello", "--temperature", "3", "--seed", "1")
    process = tiercel(*arguments, stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(60) == 1
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()


@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">/dev/full", 1, "No space left on device"),
        ("2>/dev/full", 1, ""),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
    ],
)
@pytest.mark.parametrize(
    "arguments", [["run", "-p", "hello", "-n", "2", "--seed", "1"], ["tokenize", "--text", "hello"]]
)
def test_streams_that_are_closed_or_full_are_no_traceback(
    tiny: Path, arguments: list[str], redirection: str, code: int, said: str
) -> None:
    if arguments[0] == "tokenize" and redirection == "2>/dev/full":
        code = 0  # it has nothing to say there
    line = shlex.join([sys.executable, "-m", "app", *arguments, "-m", str(tiny)])
    done = subprocess.run(
        f"{line} </dev/null {redirection}", shell=True, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert said in done.stderr
    assert "tiercel:" not in done.stdout


def test_an_error_has_its_exit_code_even_when_nobody_can_be_told(tmp_path: Path) -> None:
    for redirection in ("2>/dev/full", "2>&-"):
        line = shlex.join([sys.executable, "-m", "app", "inspect", str(tmp_path / "none.gguf")])
        done = subprocess.run(
            f"{line} {redirection}", shell=True, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (3, "")


def test_what_native_code_cannot_allocate_is_one_line(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr("engine.measure_speed", fail)
    assert main(["bench", "-m", str(tiny)]) == 4
    assert capsys.readouterr().err.startswith("tiercel: memory ran out")


@pytest.mark.parametrize("module", ["argparse", "app.cli.dispatch", "engine", "app.cli.models"])
@pytest.mark.parametrize("presses", [1, 3])
def test_ctrl_c_while_modules_are_imported_is_one_line(module: str, presses: int) -> None:
    code = f"""
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            for _ in range({presses}):
                os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["tiercel", "models"]
import app.__main__
sys.exit(app.__main__.main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tiercel: interrupted\n")


# A context that takes the tiny model far longer than a test.
LONG_REPLY = ("-p", "hello", "--temperature", "0", "-c", "200000")


def test_ctrl_c_keeps_what_was_said(tiny: Path) -> None:
    process = tiercel("run", "-m", tiny, *LONG_REPLY, stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 1)
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "interrupted" in err


def test_ctrl_c_keeps_what_was_said_for_json(tiny: Path) -> None:
    # Nobody sees from outside when there is text: it is pressed as soon as there is.
    code = f"""
import os, signal, sys
import app.__main__, app.cli.run
wait, pressed = app.cli.run._await, []
def wait_and_press(engine, reply, offset, bar):
    wait(engine, reply, offset, bar)
    if offset and not pressed:
        pressed.append(True)
        os.kill(os.getpid(), signal.SIGINT)
app.cli.run._await = wait_and_press
sys.argv = ["tiercel", "run", "-m", {str(tiny)!r}, *{LONG_REPLY!r}, "--json"]
sys.exit(app.__main__.main())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert json.loads(out)["finish_reason"] == "cancelled"


@pytest.mark.parametrize("command", ["run", "bench", "perplexity"])
def test_ctrl_c_while_the_model_loads_is_one_line_and_does_not_wait_for_the_tokenizer(
    tiny: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "text.txt").write_text("hello " * 600)
    options = {"run": ["-p", "hello"], "bench": [], "perplexity": ["-f", str(tmp_path / "text.txt")]}
    code = f"""
import os, signal, sys, time
import engine.loading
def load_tokenizer(gguf):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(20)
engine.loading.load_tokenizer = load_tokenizer
sys.argv = ["tiercel", {command!r}, "-m", {str(tiny)!r}, *{options[command]!r}]
import app.__main__
sys.exit(app.__main__.main())
"""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tiercel: interrupted\n")
    assert time.monotonic() - started < 15


def test_text_on_a_terminal_is_not_wiped_by_the_progress_line(tiny: Path) -> None:
    command = [sys.executable, "-m", "app", "run", "-m", str(tiny), "-p", "hello", "-n", "20", "--seed", "1"]
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    with suppress(OSError):  # how Linux tells that the other side is closed
        while data := os.read(leader, 65536):
            shown += data
    os.close(leader)
    assert process.wait(60) == 0
    text, _, summary = shown.rpartition(b"\x1b[K")[2].rpartition(b"[")
    assert len(text) > 20
    assert b"20 tokens" in summary
