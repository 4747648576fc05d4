"""`tiercel history`: list, show, search, export and import conversations, also while the application runs.

Knows the words of the command line; the store knows conversations, its exporters and importers the formats.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from app import locations
from app.cli.arguments import positive_int
from app.cli.exit_codes import UsageError
from app.conversation import Conversation
from app.sanitize import sanitize, sanitize_line
from app.store import ConversationInfo, SearchHit
from app.store.export import FORMATS, export_file, format_of
from app.store.history_file import HistoryFile, open_history
from app.store.importers import read_conversations
from app.store.jsonl import conversation_facts, message_facts

NAME = "history"
HELP = "list, show, search, export and import conversations"

_END_DIGITS = 8
"""Shown of an id in tables; enough to tell conversations apart."""
_LONGEST_PLACE = 3
"""A number of more digits is the end of an id, not a place in the list."""
_TITLE_WIDTH = 60
_EVERYTHING = 1 << 31
_ID_HELP = (
    "a conversation: its place in `tiercel history list` (1 is the newest), its id, or the last digits of "
    f"the id, at least {_LONGEST_PLACE + 1}"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the commands."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list conversations, newest first")
    listing.add_argument("-n", type=positive_int, default=20, metavar="N", help="how many (default: 20)")
    showing = commands.add_parser("show", help="print a conversation as Markdown")
    showing.add_argument("id", metavar="ID", help=_ID_HELP)
    searching = commands.add_parser("search", help="find messages by their words, newest first")
    searching.add_argument(
        "words", nargs="+", metavar="WORDS", help="all of them; the last may be a beginning"
    )
    searching.add_argument("--role", choices=("user", "assistant"), help="who wrote the message")
    searching.add_argument(
        "--model", metavar="NAME", default="", help="part of the name of the model that replied"
    )
    searching.add_argument(
        "--since", type=_since, default=0, metavar="WHEN", help="a day such as 2025-01-31, or 30d for 30 days"
    )
    searching.add_argument("-n", type=positive_int, default=50, metavar="N", help="how many (default: 50)")
    for command in (listing, showing, searching):
        command.add_argument("--json", action="store_true", help="print JSON instead")
    exporting = commands.add_parser("export", help="write conversations to a file, or to the output")
    exporting.add_argument("ids", nargs="*", metavar="ID", help=_ID_HELP)
    exporting.add_argument("--all", action="store_true", help="every conversation")
    exporting.add_argument(
        "-o", dest="file", type=Path, metavar="FILE", help="the file; one that is there is replaced"
    )
    exporting.add_argument(
        "--format",
        choices=tuple(FORMATS),
        help="md, jsonl (everything, branches too), sharegpt or html; default: as FILE is named, else md",
    )
    importing = commands.add_parser(
        "import",
        help="add conversations from exports of Tiercel, ChatGPT, ShareGPT or llama.cpp's web interface",
    )
    importing.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="JSON, JSON lines, or ChatGPT's archive; all or none",
    )
    parser.epilog = "example: tiercel history export 1 -o talk.html"


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    path = locations.data_dir() / "conversations.db"
    # Before a database is made for them.
    found = (
        [talk for file in args.files for talk in read_conversations(file)] if args.command == "import" else []
    )
    with open_history(path, create=bool(found)) as history:
        if args.command == "list":
            _list(history, args.n, as_json=args.json)
        elif args.command == "show":
            _show(history, args.id, as_json=args.json)
        elif args.command == "search":
            _search(history, args)
        elif args.command == "export":
            _export(history, args)
        else:
            conversations, messages = history.take_in(found)
            print(f"imported {_count(conversations, 'conversation')}, {_count(messages, 'message')}")
    return 0


def _list(history: HistoryFile, count: int, *, as_json: bool) -> None:
    infos = history.conversations(count)
    if as_json:
        print(json.dumps([_info_facts(place, info) for place, info in enumerate(infos, 1)], indent=2))
    elif infos:
        rows = [
            (
                str(place),
                _short(info.id),
                _when(info.updated_at),
                sanitize_line(info.model),
                _title(info.title),
            )
            for place, info in enumerate(infos, 1)
        ]
        _print_table([("#", "ID", "CHANGED", "MODEL", "TITLE"), *rows])
    else:
        print("no conversations yet", file=sys.stderr)


def _info_facts(place: int, info: ConversationInfo) -> dict[str, object]:
    return {
        "place": place,
        "id": info.id,
        "title": info.title,
        "updated_at": info.updated_at,
        "persona": info.persona,
        "model": info.model,
    }


def _show(history: HistoryFile, wanted: str, *, as_json: bool) -> None:
    conversation = history.load(_resolve(history, wanted))
    if as_json:
        messages = [message_facts(turn) for turn in conversation.turns]
        print(json.dumps({**conversation_facts(conversation), "messages": messages}, indent=2))
    else:
        _print_pieces(FORMATS["md"]([conversation]))


def _search(history: HistoryFile, args: argparse.Namespace) -> None:
    hits = history.search(
        " ".join(args.words),
        role=args.role or "",
        model=args.model,
        since_ms=args.since,
        limit=args.n,
        per_message=True,
    )
    if args.json:
        print(json.dumps([_hit_facts(hit) for hit in hits], indent=2))
    elif hits:
        for hit in hits:
            who = "you" if hit.role == "user" else sanitize_line(hit.model) or "assistant"
            print(f"{_short(hit.conversation_id)}  {_when(hit.created_at)}  {who}: {_title(hit.title)}")
            print(f"    {sanitize_line(hit.snippet)}")
    else:
        print("nothing found", file=sys.stderr)


def _hit_facts(hit: SearchHit) -> dict[str, object]:
    return {
        "conversation_id": hit.conversation_id,
        "message_id": hit.message_id,
        "title": hit.title,
        "role": hit.role,
        "model": hit.model,
        "created_at": hit.created_at,
        "snippet": hit.snippet,
    }


def _export(history: HistoryFile, args: argparse.Namespace) -> None:
    if bool(args.ids) == args.all:
        raise UsageError("say which conversations: their IDs or --all; see `tiercel history export --help`")
    conversations: Iterable[Conversation]
    if args.all:
        conversations = history.everything()
    else:
        ids = [_resolve(history, wanted) for wanted in args.ids]
        conversations = (history.load(conversation_id) for conversation_id in ids)
    kind = args.format or (format_of(args.file) if args.file is not None else "md")
    if args.file is None or str(args.file) == "-":
        _print_pieces(FORMATS[kind](conversations))
        return
    export_file(conversations, args.file, kind)
    print(f"wrote {sanitize_line(str(args.file))}", file=sys.stderr)


def _resolve(history: HistoryFile, wanted: str) -> int:
    """Return the id of the conversation that was meant. Raises UsageError."""
    if not (wanted.isascii() and wanted.isdigit()):
        raise UsageError(f"{wanted!r} is no ID: `tiercel history list` shows them")
    infos = history.conversations(_EVERYTHING)
    if len(wanted) <= _LONGEST_PLACE:
        if 0 < int(wanted) <= len(infos):
            return infos[int(wanted) - 1].id
        raise UsageError(f"there are {_count(len(infos), 'conversation')}, {wanted} is not one of them")
    found = [info.id for info in infos if str(info.id).endswith(wanted)]
    if len(found) != 1:
        many = f"{len(found)} conversations" if found else "no conversation"
        raise UsageError(f"{many} with an id that ends in {wanted}: `tiercel history list` shows them")
    return found[0]


def _since(text: str) -> int:
    """Read a day, or a number of days before now, as milliseconds since 1970."""
    if days := re.fullmatch(r"(\d{1,5})d", text):
        return max(0, int((time.time() - int(days[1]) * 86_400) * 1000))
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a day such as 2025-01-31 nor 30d") from None


def _print_pieces(pieces: Iterator[str]) -> None:
    """Print text as it is, or cleaned for a terminal."""
    for piece in pieces:
        sys.stdout.write(sanitize(piece) if sys.stdout.isatty() else piece)


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for *cells, last in rows:
        print("  ".join([*(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)), last]))


def _short(row_id: int) -> str:
    return str(row_id)[-_END_DIGITS:]


def _when(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000).strftime("%Y-%m-%d %H:%M")


def _title(text: str) -> str:
    title = sanitize_line(text)
    return title if len(title) <= _TITLE_WIDTH else title[: _TITLE_WIDTH - 1] + "…"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
