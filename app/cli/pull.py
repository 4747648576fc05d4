"""`tiercel pull NAME`: fetch a starter, or a GGUF file of the Hugging Face Hub, into our models folder."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from types import FrameType

from app import locations
from app.cli.progress import ProgressBar
from app.models.catalog import STARTERS
from app.models.hub import pull_hub_file
from app.models.hub_file import parse_hub_file
from app.models.pulling import OnProgress, Progress, Pulled
from app.models.starter import find_starter, pull

NAME = "pull"
HELP = "fetch a small model to start with, or one from the Hugging Face Hub"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare NAME and describe what can be fetched."""
    names = "; ".join(f"{starter.name}: {starter.summary}" for starter in STARTERS)
    form = "or hf:owner/repository/file.gguf, with @revision if need be; broken off, it goes on the next time"
    parser.add_argument("name", metavar="NAME", help=f"{names}; {form}")
    parser.epilog = (
        "example: tiercel pull smollm2, or tiercel pull "
        "hf:bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q4_K_M.gguf"
    )


def run(args: argparse.Namespace) -> int:
    """Fetch the model, or say that it is there; raises PullError and ModelNotFoundError."""
    name, fetch = _what(args.name)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)  # so that a closed terminal leaves neither pip nor files behind
    bar = ProgressBar()

    def show(progress: Progress) -> None:
        bar.update(f"{name}: {progress.stage}", progress.done, progress.total)

    try:
        result = fetch(show)
    finally:
        bar.close()
    print(f"{name}: {'saved as' if result.fetched else 'already there:'} {result.path}")
    return 0


def _what(text: str) -> tuple[str, Callable[[OnProgress], Pulled]]:
    """The name to show and the way to fetch what `text` means."""
    folder = locations.models_dir()
    if text.startswith(("hf:", "https:", "http:")):
        file = parse_hub_file(text)
        return file.file.rpartition("/")[2], lambda show: pull_hub_file(file, folder, show)
    starter = find_starter(text)
    return starter.name, lambda show: pull(starter, folder, show)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
