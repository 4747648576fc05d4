"""`tiercel models`: what was found on this machine, and where."""

from __future__ import annotations

import argparse
import json
import sys

from app.models import FoundModel, discover
from app.sanitize import sanitize_line

NAME = "models"
HELP = "list the models found on this machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the output format."""
    parser.add_argument(
        "--json", action="store_true", help="print a list of objects: name, path, bytes, origin"
    )
    parser.epilog = "example: tiercel models"


def run(args: argparse.Namespace) -> int:
    """Print the list; an empty one is no failure."""
    found = discover()
    if args.json:
        print(json.dumps([_as_json(model) for model in found], indent=2))
    elif found:
        _print_table(found)
    else:
        print("no models found: `tiercel pull smollm2` fetches a first one (98 MB)", file=sys.stderr)
    return 0


def _as_json(model: FoundModel) -> dict[str, object]:
    return {"name": model.name, "path": str(model.path), "bytes": model.size, "origin": model.origin}


def _print_table(found: list[FoundModel]) -> None:
    rows = [("NAME", "SIZE", "FROM", "PATH")]
    rows += [
        (
            sanitize_line(model.name),
            f"{model.size / 1e9:.2f} GB",
            model.origin.value,
            sanitize_line(str(model.path)),
        )
        for model in found
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for name, size, origin, path in rows:
        print(f"{name:<{widths[0]}}  {size:>{widths[1]}}  {origin:<{widths[2]}}  {path}")
