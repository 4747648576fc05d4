"""`tiercel perplexity`: how well a model predicts a text, or how close it is to reference logits."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from app.cli.arguments import add_model_arguments, load_options, positive_int
from app.cli.exit_codes import OK, UsageError
from app.cli.inputs import read_text
from app.cli.interruptible import run_interruptible
from app.cli.notices import print_notices

NAME = "perplexity"
HELP = "measure perplexity of a text, or distance to reference logits"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, what to compare with, and how ids are fed."""
    add_model_arguments(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("-f", "--file", metavar="TEXT", type=Path, help="a text file")
    source.add_argument("--reference", metavar="FILE", type=Path, help="reference logits (.npz)")
    parser.add_argument(
        "-c",
        "--window",
        type=positive_int,
        default=512,
        metavar="N",
        help="tokens of a window over the text; each token is scored once, with at least half a window "
        "before it (512)",
    )
    parser.add_argument(
        "--chunk",
        type=positive_int,
        default=512,
        metavar="N",
        help="tokens fed at a time (512); 1 goes through the kernels that decode",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one object: perplexity, tokens, and with a reference kl_mean, kl_p99, kl_max, top1",
    )
    parser.epilog = "example: tiercel perplexity -m smollm2 -f book.txt"


def run(args: argparse.Namespace) -> int:
    """Print the figures."""
    if args.window < 2:
        raise UsageError("a window of 1 token scores nothing: give -c at least 2")
    options = load_options(args, chunk=args.chunk)
    if args.reference is not None:
        from engine import score_against_reference  # numpy

        result = asdict(
            run_interruptible(
                lambda cancel: score_against_reference(
                    options, args.reference, cancel=cancel, on_notices=print_notices
                )
            )
        )
    else:
        text = read_text(args.file)
        from engine import score_text  # numpy

        result = asdict(
            run_interruptible(
                lambda cancel: score_text(
                    options, text, window=args.window, cancel=cancel, on_notices=print_notices
                )
            )
        )
    if args.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{name:<10}  {value:.6g}" for name, value in result.items()))
    return OK
