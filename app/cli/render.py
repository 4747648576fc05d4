"""`tiercel render`: the prompt text that a chat template makes of a conversation, to the character."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from app.cli.inputs import read_text
from app.models import resolve_model
from app.sanitize import sanitize, sanitize_line
from engine import ChatTemplate, InputFileError, open_template

T = TypeVar("T")

NAME = "render"
HELP = "show the prompt text of a conversation"

_KEYS = frozenset({"messages", "bos_token", "eos_token", "add_generation_prompt", "tools", "now"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where the template and the conversation come from."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("-m", "--model", metavar="MODEL", help="path or name; its own template is used")
    source.add_argument("--template", metavar="FILE", type=Path, help="a Jinja template instead")
    parser.add_argument(
        "--messages",
        metavar="FILE",
        type=Path,
        required=True,
        help="a JSON object: messages (objects with role and content), and optionally bos_token, eos_token, "
        "add_generation_prompt (true by default), tools, now (as 2025-01-31 or 2025-01-31T12:00:00)",
    )
    parser.epilog = "example: tiercel render -m smollm2 --messages chat.json"


def run(args: argparse.Namespace) -> int:
    """Print the prompt; to a pipe without a character more or less."""
    chat = _read_chat(args.messages)
    if args.template is None:
        path = resolve_model(args.model)
        template = open_template(path, bos_token=chat.bos_token, eos_token=chat.eos_token)
    else:
        template = ChatTemplate(
            read_text(args.template),
            bos_token=chat.bos_token or "",
            eos_token=chat.eos_token or "",
            origin=sanitize_line(str(args.template)),
        )
    text = template.render(
        chat.messages, add_generation_prompt=chat.add_generation_prompt, tools=chat.tools, now=chat.now
    )
    if sys.stdout.isatty():
        text = sanitize(text) + ("" if text.endswith("\n") else "\n")
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    return 0


@dataclass(frozen=True, slots=True)
class _Chat:
    """The content of a messages file."""

    messages: list[Mapping[str, object]]
    bos_token: str | None
    eos_token: str | None
    add_generation_prompt: bool
    tools: list[Mapping[str, object]] | None
    now: datetime | None


def _read_chat(path: Path) -> _Chat:
    text = read_text(path)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _fault(path, f"is not JSON: {sanitize_line(str(error))}") from None
    if not isinstance(data, dict):
        raise _fault(path, f"holds a {type(data).__name__} where an object with `messages` was expected")
    if unknown := sorted(data.keys() - _KEYS):
        print(f"tiercel: {sanitize_line(f'{path}: ignored: ' + ', '.join(unknown))}", file=sys.stderr)
    messages = _objects(path, data, "messages")
    if messages is None:
        raise _fault(path, "has no `messages`")
    for message in messages:
        if not isinstance(message.get("role"), str):
            raise _fault(path, f"has a message without a role: {sanitize_line(json.dumps(message))[:80]}")
    return _Chat(
        messages=messages,
        bos_token=_optional(path, data, "bos_token", str),
        eos_token=_optional(path, data, "eos_token", str),
        add_generation_prompt=_optional(path, data, "add_generation_prompt", bool) is not False,
        tools=_objects(path, data, "tools"),
        now=_time(path, _optional(path, data, "now", str)),
    )


def _objects(path: Path, data: Mapping[str, object], key: str) -> list[Mapping[str, object]] | None:
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _fault(path, f"has `{key}` that are not a list of objects")
    return value


def _optional(path: Path, data: Mapping[str, object], key: str, expected: type[T]) -> T | None:
    value = data.get(key)
    if value is not None and not isinstance(value, expected):
        raise _fault(path, f"has {value!r} for `{key}`, which must be a {expected.__name__}")
    return value


def _time(path: Path, text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise _fault(path, f"has {text!r} for `now`: write it as 2025-01-31T12:00:00") from None


def _fault(path: Path, what: str) -> InputFileError:
    return InputFileError(f"{sanitize_line(str(path))} {what}; see `tiercel render --help`")
