"""Write conversations for other programs and for people: Markdown, JSON lines, ShareGPT, one HTML page.

Knows the formats and files. JSON lines keep everything (see `jsonl`); the others hold the line that is shown.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Final

from app.conversation import Conversation, Turn
from app.decoding_words import turn_approximation
from app.sanitize import sanitize, sanitize_line
from app.store.jsonl import write_lines

_LONGEST_NAME: Final = 60
"""Characters of a file's name that is made from a title."""
# Colours of the reader's own system, which differ between light and dark.
_STYLE: Final = """
:root { color-scheme: light dark; }
body { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.55 system-ui, sans-serif;
  background: Canvas; color: CanvasText; }
article { margin: 1.25rem 0; padding: .25rem 0 .25rem 1rem; border-left: .25rem solid GrayText; }
article.user { border-left-color: LinkText; }
h2 { margin-top: 3rem; }
h3 { margin: 0 0 .35rem; font-size: 1rem; }
h3 small, header p { font-weight: normal; opacity: .75; }
pre { margin: 0; font: inherit; white-space: pre-wrap; overflow-wrap: anywhere; }
details pre { font: .9rem/1.45 ui-monospace, monospace; }
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def markdown(conversations: Iterable[Conversation]) -> Iterator[str]:
    """Yield Markdown: a heading for each conversation and each message, the text as it is."""
    for number, conversation in enumerate(conversations):
        if number:
            yield "\n---\n\n"
        yield f"# {_title(conversation)}\n\n{_when(conversation.updated_at)}\n"
        if conversation.system:
            yield f"\n## System prompt\n\n{conversation.system}\n"
        for turn in conversation.turns:
            yield f"\n## {_heading(conversation, turn)}\n\n{turn.text}\n"
            for part in turn.attachments:
                fence = "`" * max(3, 1 + max(map(len, re.findall("`+", part.text)), default=0))
                yield f"\n{sanitize_line(part.name)}\n\n{fence}\n{part.text}\n{fence}\n"


def jsonl(conversations: Iterable[Conversation]) -> Iterator[str]:
    """Yield JSON lines with everything, the whole tree included."""
    for conversation in conversations:
        yield from write_lines(conversation)


def sharegpt(conversations: Iterable[Conversation]) -> Iterator[str]:
    """Yield a JSON list of conversations as ShareGPT has them."""
    separator = "[\n"
    for conversation in conversations:
        said = [{"from": "system", "value": conversation.system}] if conversation.system else []
        said += [
            {"from": "human" if turn.role == "user" else "gpt", "value": turn.told}
            for turn in conversation.turns
        ]
        entry = {
            "id": str(conversation.id),
            "title": conversation.title,
            "updated_at": conversation.updated_at,
            "conversations": said,
        }
        yield separator + json.dumps(entry, ensure_ascii=False, indent=1)
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


def html(conversations: Iterable[Conversation]) -> Iterator[str]:
    """Yield one page that needs nothing else and runs nothing; every text in it is escaped."""
    yield (
        '<!doctype html>\n<html>\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>Conversations</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    )
    for conversation in conversations:
        yield f"<section>\n<header>\n<h2>{_escaped(_title(conversation))}</h2>\n"
        yield f"<p>{_when(conversation.updated_at)}</p>\n</header>\n"
        if conversation.system:
            yield f"<details>\n<summary>System prompt</summary>\n{_pre(conversation.system)}</details>\n"
        for turn in conversation.turns:
            who, _, rest = _heading(conversation, turn).partition(" · ")
            yield f'<article class="{escape(turn.role)}">\n'
            yield f"<h3>{_escaped(who)} <small>{_escaped(rest)}</small></h3>\n{_pre(turn.text)}"
            for part in turn.attachments:
                yield f"<details>\n<summary>{_escaped(part.name)}</summary>\n{_pre(part.text)}</details>\n"
            yield "</article>\n"
        yield "</section>\n"
    yield "</body>\n</html>\n"


Writer = Callable[[Iterable[Conversation]], Iterator[str]]

FORMATS: Final[dict[str, Writer]] = {"md": markdown, "jsonl": jsonl, "sharegpt": sharegpt, "html": html}
"""By the name that the command line has for them."""
SUFFIXES: Final = {"md": ".md", "jsonl": ".jsonl", "sharegpt": ".json", "html": ".html"}


def format_of(path: Path) -> str:
    """Return the format that a file's name asks for; Markdown where it says nothing."""
    return next((name for name, suffix in SUFFIXES.items() if path.suffix.lower() == suffix), "md")


def export_file(conversations: Iterable[Conversation], path: Path, kind: str) -> None:
    """Write a file, whole or not at all; one that is there is replaced. Raises OSError, sqlite3.Error."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(
            os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.writelines(FORMATS[kind](conversations))
        partial.replace(path)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()


def export_beside_others(conversation: Conversation, folder: Path, kind: str = "md") -> Path:
    """Write one conversation to a new file in `folder`, named after it, and return where. Raises OSError."""
    name = re.sub(r"[^\w]+", "-", sanitize_line(conversation.title).lower())[:_LONGEST_NAME].strip("-")
    name = name or "conversation"
    path = free_path(folder / f"{name}{SUFFIXES[kind]}")
    export_file([conversation], path, kind)
    return path


def free_path(path: Path) -> Path:
    """Return `path`, or where there is something already the first free one that is numbered."""
    free, number = path, 1
    while os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free


def _title(conversation: Conversation) -> str:
    return sanitize_line(conversation.title) or "Untitled"


def _heading(conversation: Conversation, turn: Turn) -> str:
    facts = ["You" if turn.role == "user" else "Assistant", _when(turn.created_at)]
    if turn.model:
        facts.append(sanitize_line(turn.model))
    siblings = conversation.siblings(turn)
    if len(siblings) > 1:
        facts.append(f"{siblings.index(turn) + 1} of {len(siblings)}")
    facts += filter(None, [sanitize_line(turn.note), turn_approximation(turn)])
    return " · ".join(facts)


def _when(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000).strftime("%Y-%m-%d %H:%M")


def _escaped(text: str) -> str:
    return escape(sanitize(text))


def _pre(text: str) -> str:
    return f"<pre>\n{_escaped(text)}</pre>\n"  # the first line break is not shown
