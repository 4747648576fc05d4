"""`tiercel tiers`: where the weights of a model are and what moves, as text or JSON.

Runs a short reply, because only then does anything move. The numbers are those of the screen.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time

from app.cli.arguments import add_model_arguments, load_options, natural_int, positive_int
from app.cli.decoding_arguments import add_decoding_arguments, decoding_options, draft_model
from app.cli.exit_codes import INTERRUPTED, OK
from app.cli.notices import print_notices
from app.cli.progress import ProgressBar
from app.sanitize import sanitize
from app.tiers.report import TierReport, TierWatch
from app.tiers.text import as_json, as_lines
from engine import (
    DecodingOptions,
    Engine,
    EngineSnapshot,
    EngineState,
    Message,
    Reply,
    ReplyStatus,
    Request,
    SamplingParams,
)

NAME = "tiers"
HELP = "show where the weights of a model are, and what moves while it answers"

_LOOK_S = 0.05
_REDRAW_S = 0.5
_PROMPT = "Tell me about the sea."
_PLAIN_COLUMNS = 100
"""Width where there is no terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, what it answers and how the map is printed."""
    add_model_arguments(parser)
    add_decoding_arguments(parser)
    parser.add_argument("-p", "--prompt", default=_PROMPT, metavar="TEXT", help="what it answers meanwhile")
    parser.add_argument(
        "-n",
        "--max-tokens",
        type=natural_int,
        default=64,
        metavar="N",
        help="tokens of the answer (default: 64)",
    )
    parser.add_argument("-c", "--context", type=positive_int, metavar="N", help="context in tokens")
    parser.add_argument("--watch", action="store_true", help="print the map again and again while it answers")
    parser.add_argument(
        "--json", action="store_true", help="print one object; with --watch one in a line each time"
    )
    parser.epilog = "example: tiercel tiers -m smollm2 --ram-budget 400MB --watch"


def run(args: argparse.Namespace) -> int:
    """Print the map as it was at the end of a short reply; with --watch also on the way there."""
    decoding = decoding_options(args)
    options = load_options(args, context=args.context, draft_model=draft_model(args))
    engine, watch = Engine(), TierWatch()
    printer = _Printer(as_objects=args.json, again=args.watch)
    try:
        engine.load(options)
        snapshot = _await_load(engine)
        reply = engine.ask(_request(args, snapshot, decoding))
        interrupted = _follow(engine, reply, watch, printer)
        notices = engine.snapshot.notices
    finally:
        engine.close()
    if reply.error is not None:
        raise reply.error
    if not (args.json or args.watch):
        text = sanitize(reply.text) if sys.stdout.isatty() else reply.text
        print(text.strip() + "\n")
    printer.print_last()
    print_notices(notices)
    return INTERRUPTED if interrupted else OK


def _await_load(engine: Engine) -> EngineSnapshot:
    """Wait until the model is there, or is not to be had: then the reply's error says why."""
    bar = ProgressBar()
    try:
        while (snapshot := engine.snapshot).state in (EngineState.EMPTY, EngineState.LOADING):
            bar.update(f"{snapshot.load_stage or 'starting'} {snapshot.load_progress:.0%}", 0, 0)
            time.sleep(_LOOK_S)
    finally:
        bar.close()
    return snapshot


def _request(args: argparse.Namespace, snapshot: EngineSnapshot, decoding: DecodingOptions) -> Request:
    """A conversation where the model knows them, else a text to go on with; always the same reply."""
    greedy = SamplingParams(temperature=0.0)
    if snapshot.model is not None and snapshot.model.has_template:
        return Request(
            messages=(Message("user", args.prompt),),
            sampling=greedy,
            decoding=decoding,
            max_tokens=args.max_tokens,
        )
    return Request(prompt=args.prompt, sampling=greedy, decoding=decoding, max_tokens=args.max_tokens)


def _follow(engine: Engine, reply: Reply, watch: TierWatch, printer: _Printer) -> bool:
    """Look at the engine until the reply has ended; ctrl+c ends it. Returns whether that happened."""
    interrupted, bar = False, ProgressBar()
    while not reply.done:
        try:
            reply.wait(sys.maxsize, _LOOK_S)  # never so much text: until the end, or the time is over
            if reply.status is ReplyStatus.CALIBRATE:
                bar.share("measuring what leaving blocks out does, once", reply.stats.calibrated_share)
                continue
            bar.close()
            printer.take(watch.feed(engine.snapshot))
        except KeyboardInterrupt:
            if interrupted:
                raise
            interrupted = True
            reply.cancel()
    bar.close()
    printer.take(watch.feed(engine.snapshot))
    return interrupted


class _Printer:
    """Prints reports in one of three ways: objects, blocks of lines, or lines in place of the last ones."""

    def __init__(self, *, as_objects: bool, again: bool) -> None:
        self._as_objects, self._again = as_objects, again
        self._in_place = again and not as_objects and sys.stdout.isatty()
        self._last: TierReport | None = None
        """What is printed in the end: the last moment of the reply, when things still moved."""
        self._printed: TierReport | None = None
        self._printed_at = 0.0
        self._n_lines = 0
        """Printed last, to be overwritten."""

    def take(self, report: TierReport) -> None:
        """Keep a report, and print it where that was asked for and the last time was long enough ago."""
        if report.model is None:  # it did not load, which the reply's error tells
            return
        # A short reply may end between two looks; what it leaves out is told of from its first pass on.
        if report.generating or self._last is None or report.skipped != self._last.skipped:
            self._last = report
        now = time.monotonic()
        if self._again and self._last is not self._printed and now - self._printed_at >= _REDRAW_S:
            self._printed_at = now
            self._print(self._last)

    def print_last(self) -> None:
        """Print how it was in the end, unless that stands there already."""
        if self._last is not None and self._last is not self._printed:
            self._print(self._last)

    def _print(self, report: TierReport) -> None:
        if self._as_objects:
            print(json.dumps(as_json(report)), flush=True)
        else:
            size = shutil.get_terminal_size((_PLAIN_COLUMNS, 24))
            lines = as_lines(report, size.columns if sys.stdout.isatty() else _PLAIN_COLUMNS)
            if self._in_place:
                lines = lines[: size.lines - 1]  # what has left the screen cannot be overwritten
                if self._n_lines:
                    sys.stdout.write(f"\x1b[{self._n_lines}A\x1b[J")
            elif self._printed is not None:
                print()
            self._n_lines = len(lines)
            print("\n".join(lines), flush=True)
        self._printed = report
