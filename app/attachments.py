"""What goes with a message besides its words: files named `@path`, large pastes, and drafts that keep both.

Knows files and text, no widget. A file that cannot go with the message is one line of explanation, never half
an attachment.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from app.conversation import Attachment
from app.i18n import _
from app.sanitize import sanitize_line

MAX_BYTES: Final = 1_000_000
"""Size of the largest file that is taken: more would not fit any context."""
FOLD_CHARACTERS: Final = 2_000
"""A paste longer than this is folded."""
FOLD_LINES: Final = 20
"""A paste of more lines than this is folded."""
MAX_LISTED: Final = 4_000
"""Names looked at while a path is completed: a home folder has millions."""
MAX_DEPTH: Final = 6
"""Folders below the one where the search begins."""

# Not in an e-mail address; Chinese has no spaces, and its punctuation ends a name that stands without quotes.
_MENTION: Final = re.compile(
    r'(?<![!-~])@(?:"(?P<quoted>[^"\n]+)"|(?P<plain>[^\s"，。；：！？、（）【】「」“”]+))'
)
_CODE: Final = re.compile(r"^(`{3,}|~{3,}).*?(?:^\1|\Z)|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_TRAILING: Final = ".,;:!?)]}'\""
_DRAFT: Final = "\x1e"
"""Begins a draft that is more than its text. Control characters never reach the message box."""


# -- files


def mentions(text: str) -> list[tuple[str, str]]:
    """Return `(@name as written, path)` of the files that `text` may name, outside of code."""
    plain = _CODE.sub(lambda match: " " * len(match[0]), text)
    found = {match[0]: match["quoted"] or match["plain"] for match in _MENTION.finditer(plain)}
    return list(found.items())


def names_file(text: str, name: str) -> bool:
    """Whether `text` names the file that goes by `name`, which is as `Attachment` has it."""
    return any(name in (mention, mention.rstrip(_TRAILING)) for mention, _path in mentions(text))


def read_attachments(
    text: str, folder: Path, kept: Collection[str] = ()
) -> tuple[list[Attachment], list[str]]:
    """Return the files that `text` names and what is wrong with those that cannot be attached, a line each.

    `@word` that is no file, and does not look like one, is just a word. The names in `kept` are left out.
    """
    attachments: list[Attachment] = []
    problems: list[str] = []
    for name, path in mentions(text):
        if name in kept or name.rstrip(_TRAILING) in kept:
            continue
        try:
            found = _read(name, path, folder)
        except OSError as error:
            problems.append(f"{name}: {error.strerror or error}")
        except ValueError as error:
            problems.append(f"{name}: {error}")
        else:
            if found is not None and found not in attachments:
                attachments.append(found)
    return attachments, problems


def _read(name: str, path: str, folder: Path) -> Attachment | None:
    quoted = name.startswith('@"')
    place = _place(folder, path)
    while not _exists(place) and not quoted and path[-1:] in _TRAILING and len(path) > 1:
        # The mark belongs to the sentence: "look at @notes.txt, please".
        path, name = path[:-1], name[:-1]
        place = _place(folder, path)
    if not _exists(place):
        if not quoted and not re.search(r"[./\\~]", path):
            return None
        raise ValueError(_("there is no such file; `backticks` around it make it plain text"))
    mode = place.stat().st_mode
    if stat.S_ISDIR(mode):
        raise ValueError(_("this is a folder; only text files can be attached"))
    if not stat.S_ISREG(mode):  # reading a pipe or a device may never end
        raise ValueError(_("this is not a regular file"))
    with place.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(_("more than 1 MB; attach a part of it"))
    if b"\0" in data:
        raise ValueError(_("this is not a text file"))
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(_("not UTF-8 text (at byte {n})").format(n=error.start)) from None
    return Attachment("file", name, content.replace("\r\n", "\n").replace("\r", "\n"))


def _place(folder: Path, path: str) -> Path:
    try:
        return folder / Path(path).expanduser()
    except RuntimeError:  # nobody of that name has a home
        return folder / path


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long
        return False


# -- completing a path


def complete_path(typed: str, folder: Path, limit: int = 8) -> list[str]:
    """Return paths below `folder` that may be meant by `typed`, best first; folders end with a slash.

    Hidden names are only offered for a last part that begins with a dot. Looks at a bounded number of names.
    """
    base, slash, word = typed.rpartition("/")
    start = _place(folder, base + slash)
    if not start.is_dir():
        start, base, slash, word = folder, "", "", typed
    hidden = word.startswith(".")
    ranked = []
    for name in _names_below(start, hidden):
        if (rank := _rank(word.lower(), name.lower())) is not None:
            ranked.append((rank, name.rstrip("/").count("/"), len(name), name))
    return [base + slash + name for *_rank_of, name in sorted(ranked)[:limit]]


def _names_below(start: Path, hidden: bool) -> Iterator[str]:
    """Yield names below `start`, those close to it first."""
    looked_at = 0
    level = [("", start)]
    for _depth in range(MAX_DEPTH):
        below: list[tuple[str, Path]] = []
        for prefix, place in level:
            try:
                entries = sorted(islice(os.scandir(place), MAX_LISTED), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                looked_at += 1
                if looked_at > MAX_LISTED:
                    return
                if (entry.name.startswith(".") and not hidden) or sanitize_line(entry.name) != entry.name:
                    continue  # a name that cannot be shown cannot be typed either
                if entry.is_dir(follow_symlinks=False):
                    yield f"{prefix}{entry.name}/"
                    below.append((f"{prefix}{entry.name}/", Path(entry.path)))
                else:
                    yield prefix + entry.name
        level = below


def _rank(word: str, path: str) -> int | None:
    """Return how well `word` fits `path`, 0 best, or None for not at all.

    Best is the beginning of the name, then a part of it, a part of the path, letters in the right order.
    """
    name = path.rstrip("/").rpartition("/")[2]
    if name.startswith(word):
        return 0
    if word in name:
        return 1
    if word in path:
        return 2
    letters = iter(path)
    return 3 if all(letter in letters for letter in word) else None


def mention_of(path: str) -> str:
    """Return how a message names `path`."""
    return f'@"{path}"' if re.search(r"\s", path) else f"@{path}"


# -- pastes and drafts


def is_large(text: str) -> bool:
    """Whether a paste is folded."""
    return len(text) > FOLD_CHARACTERS or text.count("\n") >= FOLD_LINES


def paste_name(text: str, taken: Iterable[str]) -> str:
    """Return what stands for a paste in the message, other than the names that are `taken`."""
    lines = len(text.splitlines())
    if lines > 1:
        name = _("[paste {n:,} lines]").format(n=lines)
    else:
        name = _("[paste {n:,} characters]").format(n=len(text))
    number, names = 2, set(taken)
    free = name
    while free in names:
        free = f"{name[:-1]} #{number}]"
        number += 1
    return free


def pack_draft(text: str, attachments: Iterable[Attachment]) -> str:
    """Return one string that holds a message and what goes with it; a plain message is its own draft."""
    parts = [[part.kind, part.name, part.text] for part in attachments]
    return _DRAFT + json.dumps([text, parts], ensure_ascii=False) if parts else text


def unpack_draft(draft: str) -> tuple[str, list[Attachment]]:
    """Return what `pack_draft` packed; a damaged draft is taken as text."""
    if draft.startswith(_DRAFT):
        try:
            text, parts = json.loads(draft[1:])
            return str(text), [Attachment(str(kind), str(name), str(of)) for kind, name, of in parts]
        except (ValueError, TypeError):
            pass
    return draft, []
