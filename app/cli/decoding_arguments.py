"""Arguments for less work per token: what is left out, and who drafts. Knows words, not models."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.cli.arguments import one_of, positive_int
from app.cli.exit_codes import UsageError
from app.models import resolve_model
from app.models.options import Chosen
from engine import MOST_DRAFTS, DecodingOptions, DraftKind, parse_skip


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is left out and who drafts."""
    skips = parser.add_mutually_exclusive_group()
    skips.add_argument(
        "--skip",
        type=skip,
        metavar="RULE",
        help="leave blocks out of every pass, which is faster and changes the text: kl=0.05 as many as move "
        "the next token's distribution by no more nats, cos=0.98 layers whose input and output are so alike, "
        "or blocks such as blk.10-12,blk.20.attn; the first use of a rule measures the model, once",
    )
    skips.add_argument(
        "--skip-threshold",
        dest="skip",
        type=skip_threshold,
        nargs="?",
        const="0.98",
        metavar="T",
        help="the same as --skip cos=T, 0.98 without a T; 0 is off",
    )
    drafts = parser.add_mutually_exclusive_group()
    drafts.add_argument(
        "--draft",
        type=one_of(DraftKind),
        choices=list(DraftKind),
        help="who proposes tokens, which the model then verifies several at once; the text stays the same: "
        "ngram what followed the same words earlier, self the model without the blocks that matter least, "
        "resident the model without blocks that each pass would fetch, exit its first layers, model a "
        "smaller one",
    )
    drafts.add_argument(
        "--self-spec",
        dest="draft",
        action="store_const",
        const=DraftKind.SELF,
        help="the same as --draft self",
    )
    drafts.add_argument(
        "--early-exit",
        type=positive_int,
        nargs="?",
        const=0,
        metavar="L",
        help="the same as --draft exit, with the first L layers (default: half of them); an experiment",
    )
    parser.add_argument(
        "--draft-k",
        type=n_drafts,
        metavar="N",
        help="propose N tokens at a time (default: as many as pay, as measured, and none while none pay)",
    )
    parser.add_argument(
        "--draft-model",
        metavar="MODEL",
        help="a smaller model with the same vocabulary, a path or a name; it drafts (--draft model)",
    )


def decoding_options(args: argparse.Namespace) -> DecodingOptions:
    """What was said, for one answer. Raises UsageError for what does not go together."""
    options = DecodingOptions(**_said(args))
    if options.draft is DraftKind.MODEL and args.draft_model is None:
        raise UsageError("--draft model needs a model that drafts: --draft-model MODEL")
    if options.draft is DraftKind.OFF and options.draft_k is not None:
        raise UsageError("--draft-k needs somebody who drafts, such as --draft ngram")
    return options


def draft_model(args: argparse.Namespace) -> Path | None:
    """The file of the model that drafts; raises ModelNotFoundError."""
    return resolve_model(args.draft_model) if args.draft_model is not None else None


def with_decoding(chosen: Chosen, args: argparse.Namespace) -> Chosen:
    """What was said besides, for a chat. Raises UsageError, ModelNotFoundError."""
    return replace(chosen, decoding=_said(args), draft_model=draft_model(args))


def _said(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of DecodingOptions by name, only those that were given."""
    said: dict[str, Any] = {}
    if args.skip is not None:
        said["skip"] = parse_skip(args.skip)
    if args.draft is not None:
        said["draft"] = args.draft
    if args.early_exit is not None:
        said |= {"draft": DraftKind.EXIT, "exit_layer": args.early_exit or None}
    if args.draft_model is not None and said.setdefault("draft", DraftKind.MODEL) is not DraftKind.MODEL:
        raise UsageError(f"--draft-model goes with --draft model, not with {said['draft']}")
    if args.draft_k is not None:
        said["draft_k"] = args.draft_k
    return said


def skip(text: str) -> str:
    """A choice of blocks, checked; as text, because `off` is another thing than nothing said."""
    try:
        parse_skip(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def skip_threshold(text: str) -> str:
    """The cosine rule of NTransformer, whose threshold is off at 0."""
    try:
        threshold = float(text)
    except ValueError:
        threshold = -1.0
    if not 0 <= threshold <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no threshold: give a number from 0 to 1, such as 0.98")
    return f"cos={text}" if threshold else "off"


def n_drafts(text: str) -> int:
    """How many tokens are proposed at a time."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0
    if not 1 <= number <= MOST_DRAFTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {MOST_DRAFTS}")
    return number
