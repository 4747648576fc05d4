"""What a message will take of the context, in words, before it is sent: its text and each attachment.

Knows texts and a counter of tokens; knows no widget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from app.attachments import read_attachments
from app.conversation import Attachment
from app.i18n import _


def message_cost(
    text: str, pastes: Sequence[Attachment], folder: Path, count: Callable[[str], int | None]
) -> str:
    """Return "34 tok · @notes.txt 1,200 tok", or "" while nobody can count. Reads files: not for the loop."""
    total = count(text)
    if total is None:
        return ""
    files, _problems = read_attachments(text, folder)
    costs = [_("{count:,} tok").format(count=total)]
    costs += [
        _("{name} {count:,} tok").format(name=part.name, count=count(part.text) or 0)
        for part in (*pastes, *files)
    ]
    return " · ".join(costs)
