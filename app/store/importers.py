"""Read conversations from a file: which format it is, and how much of it is believed.

Knows files, JSON and how to tell formats apart; the formats are in `jsonl` and `foreign`. Stores nothing.
"""

from __future__ import annotations

import json
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from app.conversation import Conversation
from app.sanitize import sanitize_line
from app.store import foreign, jsonl
from app.store.trees import Fields, ImportFault, as_fields

MAX_BYTES: Final = 1 << 30
"""The largest file that is read; as objects in memory it is several times that."""
_SURROGATE: Final = "[\ud800-\udfff]"


def read_conversations(path: Path) -> list[Conversation]:
    """Return what the file holds. Raises ImportFault, in one line, and then nothing of it is to be used."""
    origin = sanitize_line(str(path))
    text = _text(path, origin)
    conversations = _parsed(text, origin)
    if not conversations:
        raise ImportFault(f"{origin}: holds no conversation")
    return conversations


def _text(path: Path, origin: str) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ImportFault(f"{origin}: is not a file; give an export of conversations")
        if status.st_size > MAX_BYTES:
            raise ImportFault(f"{origin}: has {status.st_size / 1e9:.1f} GB: more than 1 GB is not read")
        data = _unzipped(path, origin) if zipfile.is_zipfile(path) else path.read_bytes()
    except OSError as error:
        raise ImportFault(f"{origin}: {error.strerror or error}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ImportFault(f"{origin}: is not UTF-8 at byte {error.start}") from None


def _unzipped(path: Path, origin: str) -> bytes:
    """Return the conversations of an export as ChatGPT sends it: one archive with everything."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = next(
                (info for info in archive.infolist() if Path(info.filename).name == "conversations.json"),
                None,
            )
            if member is None:
                raise ImportFault(f"{origin}: has no conversations.json in it")
            if member.file_size > MAX_BYTES:
                raise ImportFault(
                    f"{origin}: claims {member.file_size / 1e9:.1f} GB: more than 1 GB is not read"
                )
            with archive.open(member) as stream:
                data = stream.read(member.file_size + 1)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise ImportFault(f"{origin}: is a damaged archive: {sanitize_line(str(error))}") from None
    return data


def _parsed(text: str, origin: str) -> list[Conversation]:
    try:
        whole = _json(text)
    except ValueError as error:
        first = text.lstrip().partition("\n")[0]
        if not text.lstrip().startswith("{") or not _is_json(first):
            raise ImportFault(f"{origin}: is not JSON: {sanitize_line(str(error))}") from None
        return _of_lines(list(_lines(text, origin)))
    if isinstance(whole, dict):
        return _of_lines([Fields(whole, origin)])
    if not isinstance(whole, list):
        raise ImportFault(f"{origin}: holds neither an object nor a list of them")
    items = [as_fields(item, f"{origin}, conversation {at}") for at, item in enumerate(whole, 1)]
    return _foreign(items)


def _lines(text: str, origin: str) -> Iterator[Fields]:
    # Not splitlines: JSON leaves U+2028 and its like inside strings as they are.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            place = f"{origin}, line {number}"
            try:
                value = _json(line)
            except ValueError as error:
                raise ImportFault(f"{place}: is not JSON: {sanitize_line(str(error))}") from None
            yield as_fields(value, place)


def _of_lines(lines: list[Fields]) -> list[Conversation]:
    if lines[0].values.get("format") == jsonl.FORMAT:
        return jsonl.read_lines(lines)
    return _foreign(lines)


def _foreign(items: list[Fields]) -> list[Conversation]:
    """Read another program's conversations; those in which nobody said anything are left out."""
    return [conversation for conversation in map(_one, items) if conversation.turns]


def _one(item: Fields) -> Conversation:
    for key, read in (
        ("mapping", foreign.chatgpt),
        ("conv", foreign.llama_web),
        ("conversations", foreign.sharegpt),
        ("messages", foreign.sharegpt),
    ):
        if key in item.values:
            return read(item)
    raise item.fault("is no conversation of a format that is known: tiercel, ChatGPT, ShareGPT, llama.cpp")


def _json(text: str) -> Any:
    """Parse, and refuse what JSON or the database has no place for. Raises ValueError."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\u" in text:  # only an escape can write half a character
        _refuse_halves(value)
    return value


def _is_json(text: str) -> bool:
    try:
        _json(text)
    except ValueError:
        return False
    return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _refuse_halves(value: Any) -> None:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            if re.search(_SURROGATE, value):
                shown = value[:40].encode("ascii", "backslashreplace").decode()
                raise ValueError(f"half a character in {shown!r}")
        elif isinstance(value, dict):
            waiting += value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
