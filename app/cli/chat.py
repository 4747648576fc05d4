"""`tiercel chat`: the application, or with --plain the same conversations line by line."""

from __future__ import annotations

import argparse
import os
import sys

from app.cli.arguments import add_device_arguments, chosen
from app.cli.decoding_arguments import add_decoding_arguments, with_decoding
from app.models import resolve_model

NAME = "chat"
HELP = "chat in the terminal; --plain for screen readers and simple terminals"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, what computes it and the plain mode."""
    parser.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        help="a path, or a name from `tiercel models` (default: the last one)",
    )
    add_device_arguments(parser)
    add_decoding_arguments(parser)
    parser.add_argument(
        "--plain",
        "--chat",
        action="store_true",
        help="line by line: no colours, nothing that moves; ctrl+c stops a reply, ctrl+d quits",
    )
    parser.epilog = "example: tiercel chat --plain -m smollm2"


def run(args: argparse.Namespace) -> int:
    """Start what the terminal can show."""
    model = resolve_model(args.model) if args.model is not None else None
    said = with_decoding(chosen(args), args)
    reason = "" if args.plain else _why_plain()
    if not args.plain and not reason:
        from app.app import main as run_application

        return run_application(model, said)
    if reason:
        print(f"tiercel: {reason}: line by line, as with --plain", file=sys.stderr)
    from app.plain import run_plain
    from engine import Engine

    return run_plain(Engine(), model, said)


def _why_plain() -> str:
    """Why the application cannot be shown here; empty where it can."""
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        return "standard input or output is no terminal"
    if os.environ.get("TERM") == "dumb":
        return "the terminal says that it cannot move its cursor (TERM=dumb)"
    return ""
