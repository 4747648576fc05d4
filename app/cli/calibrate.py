"""`tiercel calibrate`: what a model does without some of its blocks, and how much faster it is then."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.arguments import add_model_arguments, load_options, positive_int
from app.cli.calibration_table import calibration_lines, grown_effects
from app.cli.exit_codes import OK
from app.cli.inputs import read_text
from app.cli.interruptible import run_interruptible
from app.cli.notices import print_notices
from app.cli.progress import ProgressBar
from app.sanitize import sanitize_line
from engine import SkipEffect

if TYPE_CHECKING:  # numpy
    from engine import CalibrationReport, CancelToken

NAME = "calibrate"
HELP = "measure what leaving blocks of a model out does, and keep it for replies that do so"

_EPILOG = """\
Each block of a layer, attention and feed-forward, is left out alone, then sets
are grown by the block that saves most for what it changes. KL is the mean
divergence of the next token's distribution from the whole model's in nats,
top-1 the share of positions with the same best token; intervals are 95 %.
cosine is how alike a layer's input and output are. What is found is kept until
the model's file changes: --skip kl=..., --skip cos=... and --draft self go by
it, and measure it themselves where it is not there.

--json prints one object:
  model, n_blocks, tokens, text, perplexity, tok_s
  cosines                      of each layer
  alone                        of each block: skipped (numbers of blocks: 2i is
                               the attention of layer i, 2i + 1 its feed-forward
                               block), kl, perplexity_change, perplexity_low,
                               perplexity_high, top1
  grown                        of each set: the same, and tok_s

example: tiercel calibrate -m smollm2"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, the text and the output format."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_model_arguments(parser)
    parser.add_argument(
        "-f", "--file", metavar="TEXT", type=Path, help="a text such as you will ask for (default: our own)"
    )
    parser.add_argument(
        "--tokens",
        type=positive_int,
        default=512,
        metavar="N",
        help="tokens of the text that are scored at most (512), at least 256: more take longer, and tell "
        "small changes from chance",
    )
    parser.add_argument("--json", action="store_true", help="print one object, see below")
    parser.epilog = _EPILOG


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    options = load_options(args)
    text = None if args.file is None else read_text(args.file)
    from engine import report_calibration  # numpy

    bar = ProgressBar()

    def report(cancel: CancelToken) -> CalibrationReport:
        return report_calibration(
            options,
            text,
            args.file,
            args.tokens,
            cancel,
            on_loading=lambda stage, share: bar.update(f"{sanitize_line(stage)} {share:.0%}", 0, 0),
            on_progress=bar.share,
        )

    try:
        found = run_interruptible(report)
    finally:
        bar.close()
    print_notices(found.notices)
    if args.json:
        print(json.dumps(_as_json(options.path, found)))
    else:
        print("\n".join(calibration_lines(options.path, found)))
    return OK


def _as_json(path: Path, report: CalibrationReport) -> dict[str, object]:
    found = report.calibration
    return {
        "model": str(path),
        "n_blocks": found.n_blocks,
        "tokens": found.tokens,
        "text": found.text,
        "perplexity": found.perplexity,
        "tok_s": report.tok_s,
        "cosines": found.cosines,
        "alone": [_plain(effect) for effect in found.effects if len(effect.skipped) == 1],
        "grown": [
            {**_plain(effect), "tok_s": tok_s}
            for effect, tok_s in zip(grown_effects(found), report.grown_tok_s, strict=True)
        ],
    }


def _plain(effect: SkipEffect) -> dict[str, object]:
    return {**asdict(effect), "skipped": sorted(effect.skipped)}
