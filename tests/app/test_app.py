"""Starting: where the interface cannot work, and what it says about faulty files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app.app import main
from tests.app.driving import running


@pytest.mark.parametrize(("stdin", "stdout", "term"), [(True, False, "xterm"), (True, True, "dumb")])
def test_without_a_terminal_that_moves_its_cursor_it_says_what_works_instead(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stdin: bool, stdout: bool, term: str
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: stdin)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: stdout)
    monkeypatch.setenv("TERM", term)
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`tiercel chat --plain` works without one" in line


async def test_several_faults_in_the_settings_are_counted(home: Path) -> None:
    folder = home / "tiercel" / "config"
    folder.mkdir(parents=True)
    (folder / "settings.toml").write_text('threads = -1\n"[bold]k" = 1\ntheme = "none"\n')
    async with running(size=(80, 24)) as driver:
        await driver.ready()
        await driver.until(lambda: "(1 of 3) settings" in driver.screen_text(), "the notice")
        assert "threads = -1 cannot be used" in " ".join(driver.screen_text().split())
