"""`tiercel bench`: how fast a model runs on this machine."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from app.cli.arguments import add_model_arguments, load_options, natural_int, positive_int
from app.cli.exit_codes import OK, UsageError
from app.cli.interruptible import run_interruptible

NAME = "bench"
HELP = "measure tokens per second"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, the lengths and the repetitions."""
    add_model_arguments(parser)
    parser.add_argument(
        "-p", "--prompt-tokens", type=natural_int, default=512, metavar="N", help="prompt length (512)"
    )
    parser.add_argument(
        "-n",
        "--decode-tokens",
        type=natural_int,
        default=64,
        metavar="N",
        help="tokens to decode, from an empty context (64)",
    )
    parser.add_argument(
        "-r", "--repetitions", type=positive_int, default=5, metavar="N", help="medians of so many (5)"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one object: prefill_tok_s, decode_tok_s, ttft_ms, device, threads",
    )
    parser.epilog = "example: tiercel bench -m smollm2 -p 512 -n 64"


def run(args: argparse.Namespace) -> int:
    """Print the medians."""
    if not args.prompt_tokens and not args.decode_tokens:
        raise UsageError("there is nothing to measure: give -p or -n a number above 0")
    options = load_options(args)
    from engine import measure_speed  # numpy

    speed = run_interruptible(
        lambda cancel: measure_speed(
            options,
            n_prompt=args.prompt_tokens,
            n_decode=args.decode_tokens,
            repetitions=args.repetitions,
            cancel=cancel,
        )
    )
    if args.json:
        print(json.dumps(asdict(speed)))
        return OK
    print(f"{speed.device}, {speed.threads} threads, medians of {args.repetitions}")
    if args.prompt_tokens:
        lengths = f"{args.prompt_tokens} tokens, {speed.ttft_ms:.0f} ms"
        print(f"prefill {speed.prefill_tok_s:9.1f} tok/s   ({lengths})")
    if args.decode_tokens:
        print(f"decode  {speed.decode_tok_s:9.1f} tok/s   ({args.decode_tokens} tokens)")
    return OK
