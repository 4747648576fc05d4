"""Write a message in the person's own editor. Knows the terminal's programs, not the message box."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from textual.app import App, SuspendNotSupported

from app.i18n import _

_FALLBACKS: Final = ("nano", "vi")


class EditorError(Exception):
    """Why there is no new text, in one line; the old text is unchanged."""


def edit_text(app: App[Any], text: str) -> tuple[str, str]:
    """Return the text as it was left in the editor, and a line to tell the person, or ''.

    The application stands still meanwhile. Raises EditorError.
    """
    command, note = _editor()
    try:
        with tempfile.TemporaryDirectory(prefix="tiercel-") as folder:
            path = Path(folder, "message.md")
            path.write_text(text, encoding="utf-8")
            with app.suspend():
                code = subprocess.call([*command, str(path)])
            written = path.read_text(encoding="utf-8").removesuffix("\n")
    except SuspendNotSupported:
        raise EditorError(_("this terminal cannot be handed to an editor")) from None
    except UnicodeDecodeError:
        raise EditorError(_("the editor did not save UTF-8 text")) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise EditorError(
            _("{editor} cannot be used: {reason}").format(editor=command[0], reason=reason)
        ) from None
    if code:
        raise EditorError(_("{editor} ended with an error ({code})").format(editor=command[0], code=code))
    return written, note


def _editor() -> tuple[list[str], str]:
    """Return the command of the editor, and what to say about the choice."""
    for variable in ("VISUAL", "EDITOR"):
        if (value := os.environ.get(variable, "")).strip():
            try:
                return shlex.split(value), ""
            except ValueError:
                raise EditorError(
                    _("{variable} is not a command: {value}").format(variable=variable, value=value)
                ) from None
    for name in _FALLBACKS:
        if shutil.which(name):
            return [name], _("neither VISUAL nor EDITOR is set, so {editor} was used").format(editor=name)
    raise EditorError(_("no editor: set VISUAL or EDITOR (nano and vi were not found either)"))
