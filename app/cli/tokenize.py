"""`tiercel tokenize -m MODEL`: the token ids of a text, and what each of them stands for."""

from __future__ import annotations

import argparse
import json

from app.cli.inputs import standard_input
from app.models import resolve_model
from engine import Tokenizer, load_tokenizer, open_gguf

NAME = "tokenize"
HELP = "show the token ids of a text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, the text and how special tokens are treated."""
    parser.add_argument(
        "-m",
        "--model",
        required=True,
        metavar="MODEL",
        help="path or name; a vocabulary without weights will do",
    )
    parser.add_argument(
        "--text", help="the text; without it, standard input is read as UTF-8, nothing stripped"
    )
    parser.add_argument(
        "--special", action="store_true", help="read control tokens such as <|im_end|> out of the text"
    )
    parser.add_argument("--bos", action="store_true", help="put the model's begin-of-text token first")
    parser.add_argument("--json", action="store_true", help="print one object: ids, pieces")
    parser.epilog = "example: printf 'Hello' | tiercel tokenize -m smollm2 --json"


def run(args: argparse.Namespace) -> int:
    """Print one line per token, or one JSON object."""
    with open_gguf(resolve_model(args.model)) as gguf:
        tokenizer = load_tokenizer(gguf)
    text = standard_input() if args.text is None else args.text
    ids = tokenizer.encode(text, parse_special=args.special, add_bos=args.bos)
    pieces = [_piece(tokenizer, token_id) for token_id in ids]
    if args.json:
        print(json.dumps({"ids": ids, "pieces": pieces}))
    else:
        for token_id, piece in zip(ids, pieces, strict=True):
            print(f"{token_id:>7}  {piece!r}")
    return 0


def _piece(tokenizer: Tokenizer, token_id: int) -> str:
    """Return what the token adds to a text; bytes that are no whole character are spelled <0xNN>."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in data)
