from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.models import pip as module
from app.models.pip import PullError, download, explain


def _fake_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> Path:
    """Let a script stand for `python`; it sees pip's arguments, and its process id is written down."""
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nimport os, sys, time, pathlib\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setattr(module.sys, "executable", str(script))
    into = tmp_path / "into"
    into.mkdir()
    return into


def test_pip_is_asked_for_one_wheel_and_nothing_it_depends_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body = "pathlib.Path(os.environ['TMPDIR'], 'seen').write_text(' '.join(sys.argv[1:]))"
    into = _fake_pip(monkeypatch, tmp_path, body)
    download("tiny==1.0", into, lambda: None)
    seen = (into / "seen").read_text()
    assert seen.startswith("-m pip download --no-deps")
    assert seen.endswith(f"--dest {into} tiny==1.0")


def test_progress_is_told_while_pip_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    into = _fake_pip(monkeypatch, tmp_path, "time.sleep(0.5)")
    ticks: list[None] = []
    download("tiny==1.0", into, lambda: ticks.append(None))
    assert len(ticks) >= 2


def test_an_interrupt_ends_pip_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    body = "pathlib.Path(os.environ['TMPDIR'], 'id').write_text(str(os.getpid())); time.sleep(60)"
    into = _fake_pip(monkeypatch, tmp_path, body)

    def interrupt_once_it_runs() -> None:
        if (into / "id").exists() and (into / "id").read_text():
            raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        download("tiny==1.0", into, interrupt_once_it_runs)
    assert time.monotonic() - started < 30
    assert not Path("/proc", (into / "id").read_text()).exists()


def test_a_failure_of_pip_becomes_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    body = "print('looking'); print('ERROR: \\x1b[31mbad thing'); sys.exit(1)"
    into = _fake_pip(monkeypatch, tmp_path, body)
    with pytest.raises(PullError, match=r"could not download tiny==1\.0: .*bad thing") as error:
        download("tiny==1.0", into, lambda: None)
    assert str(error.value).isprintable()


def test_a_disk_that_was_full_meanwhile_is_the_reason_whatever_pip_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    into = _fake_pip(monkeypatch, tmp_path, "time.sleep(0.3); print('incomplete-download'); sys.exit(1)")
    usage = shutil.disk_usage(tmp_path)
    free = iter([10**9, 1000])
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage._replace(free=next(free, 10**9)))
    with pytest.raises(PullError, match="the disk is full"):
        download("tiny==1.0", into, lambda: None)


def test_a_python_without_pip_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PullError, match="-m ensurepip"):
        download("tiny==1.0", tmp_path, lambda: None)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "disk is full"),
        (
            "WARNING: Retrying ... NewConnectionError('Temporary failure in name resolution')\n"
            "ERROR: No matching distribution found for tiny==1.0",
            "no network",
        ),
        ("ERROR: No matching distribution found for tiny==1.0", "index has no tiny==1.0, or does not answer"),
        ("WARNING: Connection interrupted while downloading.\nerror: incomplete-download", "broke off"),
        ("", "no output"),
    ],
)
def test_pips_failures_are_told_apart(log: str, message: str) -> None:
    text = explain("tiny==1.0", log)
    assert message in text
    assert "\n" not in text


def test_an_index_that_cannot_be_reached_reads_as_no_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_RETRIES", "1")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "PIP_PROXY", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PullError, match="no network"):
        download("tiny==1.0", tmp_path, lambda: None)


def test_no_process_outlives_a_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    into = _fake_pip(monkeypatch, tmp_path, "pass")
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def remember(*args: object, **kwargs: object) -> subprocess.Popen[bytes]:
        process = real(*args, **kwargs)  # type: ignore[call-overload]
        started.append(process)
        return process

    monkeypatch.setattr(module.subprocess, "Popen", remember)
    download("tiny==1.0", into, lambda: None)
    assert [process.returncode for process in started] == [0]
