"""`tiercel perplexity`: how well a model predicts texts, what settings change, or distance to logits."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.arguments import add_model_arguments, load_options, positive_int
from app.cli.exit_codes import OK, UsageError
from app.cli.inputs import read_text
from app.cli.interruptible import run_interruptible
from app.cli.notices import print_notices
from app.cli.perplexity_table import score_lines
from app.cli.progress import ProgressBar
from app.sanitize import sanitize_line
from engine import Setting, parse_setting

if TYPE_CHECKING:
    from engine import Scores

NAME = "perplexity"
HELP = "measure perplexity of texts, what settings change, or distance to reference logits"

_WINDOW = 512

_EPILOG = """\
With --compare the model is computed in other settings too, each on the same
text: KL is the mean divergence of the next token's distribution from the whole
model's in nats (over its 64 best tokens and one bucket for the others), top-1
the share of positions with the same best token. Intervals are 95 %.

--json prints one object:
  perplexity, perplexity_low, perplexity_high, tokens
  files                        of each: file and the same
  settings                     of each: setting, skipped (numbers of blocks: 2i
                               is the attention of layer i, 2i + 1 its
                               feed-forward block), perplexity,
                               perplexity_change, perplexity_low,
                               perplexity_high (of the change), kl_mean, kl_p99,
                               kl_max, top1, tokens
With --reference: perplexity, tokens, kl_mean, kl_p99, kl_max, top1.

example: tiercel perplexity -m smollm2 -f book.txt --compare skip=0.98"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, what is scored, what is compared, and how ids are fed."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_model_arguments(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "-f", "--file", metavar="TEXT", type=Path, nargs="+", action="extend", help="text files"
    )
    source.add_argument("--reference", metavar="FILE", type=Path, help="reference logits (.npz)")
    parser.add_argument(
        "--compare",
        metavar="SETTING",
        type=_setting,
        action="append",
        help="also with this changed, and how far that is from the whole model: skip=0.98 (a cosine), "
        "skip=kl=0.05, skip=blk.3-5, kv=q8_0, precision=float; may be repeated",
    )
    parser.add_argument(
        "-c",
        "--window",
        type=positive_int,
        metavar="N",
        help=f"tokens of a window over a text ({_WINDOW}); each token is scored once",
    )
    parser.add_argument(
        "--stride",
        type=positive_int,
        metavar="N",
        help="tokens from one window to the next (half a window): each token has at least window - stride "
        "before it, so that a small stride is exact, and slow",
    )
    parser.add_argument(
        "--chunk",
        type=positive_int,
        default=512,
        metavar="N",
        help="tokens fed at a time (512); 1 goes through the kernels that decode",
    )
    parser.add_argument("--json", action="store_true", help="print one object, see below")
    parser.epilog = _EPILOG


def _setting(text: str) -> Setting:
    try:
        return parse_setting(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    """Print the figures."""
    return _score_texts(args) if args.reference is None else _compare_with_reference(args)


def _compare_with_reference(args: argparse.Namespace) -> int:
    of_texts = {"--compare": args.compare, "-c": args.window, "--stride": args.stride}
    if given := [option for option, value in of_texts.items() if value is not None]:
        raise UsageError(f"--reference has its own tokens: leave out {', '.join(given)}")
    options = load_options(args, chunk=args.chunk)
    from engine import score_against_reference  # numpy

    result = asdict(
        run_interruptible(
            lambda cancel: score_against_reference(
                options, args.reference, cancel=cancel, on_notices=print_notices
            )
        )
    )
    if args.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{name:<10}  {value:.6g}" for name, value in result.items()))
    return OK


def _score_texts(args: argparse.Namespace) -> int:
    window = args.window or _WINDOW
    stride = args.stride or window - window // 2
    if window < 2:
        raise UsageError("a window of 1 token scores nothing: give -c at least 2")
    if stride >= window:
        raise UsageError(f"--stride {stride} leaves gaps between windows of {window}: give less than -c")
    options = load_options(args, chunk=args.chunk)
    contents = [read_text(path) for path in args.file]
    from engine import CancelToken, ScoredText, Scorer, score_texts  # numpy

    texts = [ScoredText(str(path), text) for path, text in zip(args.file, contents, strict=True)]
    bar = ProgressBar()

    def score(cancel: CancelToken) -> Scores:
        scorer = Scorer(
            window,
            stride,
            cancel,
            on_notices=print_notices,
            on_progress=lambda stage, share: bar.update(f"{sanitize_line(stage)} {share:.0%}", 0, 0),
        )
        return score_texts(options, texts, args.compare or (), scorer)

    try:
        scores = run_interruptible(score)
    finally:
        bar.close()
    if args.json:
        print(json.dumps(_as_json(scores, args.file, args.compare or ())))
    else:
        for line in score_lines(scores, args.file, args.compare or ()):
            print(line)
    return OK


def _as_json(scores: Scores, files: Sequence[Path], settings: Sequence[Setting]) -> dict[str, object]:
    return {
        **_finite(asdict(scores.together)),
        "files": [
            {"file": str(path), **_finite(asdict(score))}
            for path, score in zip(files, scores.each, strict=True)
        ],
        "settings": [
            {"setting": setting.text, "skipped": sorted(score.skipped), **_finite(asdict(score.change))}
            for setting, score in zip(settings, scores.settings, strict=True)
        ],
    }


def _finite(figures: dict[str, float]) -> dict[str, float | None]:
    """Bounds that there are none of are null: JSON has no infinity."""
    return {name: value if isfinite(value) else None for name, value in figures.items()}
