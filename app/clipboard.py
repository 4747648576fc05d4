"""Copy text so that it arrives: by the desktop's own tool when local, else through the terminal (OSC 52).

What a terminal does with OSC 52 is never known, so the answer only says what was sent. Knows no widget.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from typing import Any, Final

from textual.app import App

from app.background import in_thread
from app.i18n import _
from app.sanitize import sanitize

WAYS: Final = ("auto", "native", "osc52")
"""How text may be copied; auto is native where the screen is this machine's."""
LARGE: Final = 74_000
"""Bytes of OSC 52 that terminals are known to take."""
_TOOLS: Final = (
    ("WAYLAND_DISPLAY", ("wl-copy",)),
    ("DISPLAY", ("xclip", "-selection", "clipboard")),
    ("DISPLAY", ("xsel", "--clipboard", "--input")),
)
_TIMEOUT_S: Final = 3.0


async def copy(app: App[Any], text: str, way: str = "auto") -> str:
    """Copy `text`, cleaned, in one of `WAYS`; return a line that says what was done, and no more."""
    text = sanitize(text)
    app._clipboard = text  # what ctrl+v of our own boxes inserts, however it leaves
    count = _("{n:,} characters").format(n=len(text))
    if way == "native" or (way == "auto" and not _is_remote()):
        tool = await in_thread(lambda: _copy_natively(text))
        if tool:
            return _("{count} copied with {tool}").format(count=count, tool=tool)
        if way == "native":
            return _("not copied: no clipboard tool works here (wl-copy, xclip, xsel, pbcopy)")
    size = _send(app, text)
    if size > LARGE:
        return _("{count} sent to the terminal's clipboard; many terminals refuse so much").format(
            count=count
        )
    return _("{count} sent to the terminal's clipboard").format(count=count)


def _is_remote() -> bool:
    """Whether the screen is another machine's, where our clipboard helps nobody."""
    return bool(os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"))


def _copy_natively(text: str) -> str:
    """Hand `text` to the first tool that takes it and return its name, or ''."""
    commands = [command for variable, command in _TOOLS if os.environ.get(variable)]
    if sys.platform == "darwin":
        commands.insert(0, ("pbcopy",))
    for command in commands:
        if shutil.which(command[0]) is None:
            continue
        try:
            # The tools stay in the background to serve the text: pipes from them would not close.
            subprocess.run(
                command,
                input=text.encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return command[0]
    return ""


def _send(app: App[Any], text: str) -> int:
    """Send `text` to the terminal as OSC 52 and return the size of that."""
    sequence = f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\a"
    driver = app._driver
    if driver is not None:
        driver.write(sequence)  # also heard by a tmux that keeps the clipboard itself (set-clipboard)
        if os.environ.get("TMUX"):
            escaped = sequence.replace("\x1b", "\x1b\x1b")
            driver.write(f"\x1bPtmux;{escaped}\x1b\\")
    return len(sequence)
