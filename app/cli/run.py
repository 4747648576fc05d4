"""`tiercel run`: one answer from the shell. Text on standard output, everything else on standard error."""

from __future__ import annotations

import argparse
import json
import sys

from app.cli.arguments import add_model_arguments, chosen, load_options, natural_int, positive_int
from app.cli.decoding_arguments import add_decoding_arguments, decoding_options, draft_model, with_decoding
from app.cli.exit_codes import INTERRUPTED, OK, UsageError
from app.cli.inputs import piped_text
from app.cli.notices import device_notices, print_notices
from app.cli.progress import ProgressBar
from app.cli.run_report import as_json, summary, table
from app.models import resolve_model
from app.sanitize import sanitize
from engine import Engine, Message, Precision, Reply, ReplyStatus, Request, SamplingParams

NAME = "run"
HELP = "answer one prompt, or continue a text"

_DEFAULTS = SamplingParams()
_SAMPLING = {
    "temperature": (float, "0 always takes the most probable token"),
    "top_k": (int, "keep the k most probable tokens; 0 keeps all"),
    "top_p": (float, "keep the fewest tokens with this probability; 1 keeps all"),
    "min_p": (float, "drop tokens below this share of the best one; 0 keeps all"),
    "typical_p": (float, "locally typical sampling; 1 keeps all"),
    "repeat_penalty": (float, "weaken tokens of the last ones; 1 is off"),
    "presence_penalty": (float, "subtracted once per token seen; 0 is off"),
    "frequency_penalty": (float, "subtracted per occurrence; 0 is off"),
    "penalty_window": (int, "how many last tokens the penalties look at"),
    "seed": (int, "of the random draws; without it another one each time"),
}
"""Fields of SamplingParams as options: type and help."""
_FOR_ONE_ANSWER: dict[str, object] = {
    **dict.fromkeys(("prompt", "system", "max_tokens", "context", "threads", *_SAMPLING)),
    **dict.fromkeys(("raw", "json", "benchmark"), False),
    "stop": [],
    "precision": Precision.FAST,
}
"""Options that a chat has commands or settings for instead, and what they are when they are not given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the prompt, the model and how tokens are drawn."""
    add_model_arguments(parser)
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt; piped standard input is added")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is: no chat template")
    parser.add_argument("-n", "--max-tokens", type=natural_int, metavar="N", help="stop after so many tokens")
    parser.add_argument(
        "-c", "--context", type=positive_int, metavar="N", help="context in tokens (default: 8192 at most)"
    )
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be repeated"
    )
    for name, (kind, text) in _SAMPLING.items():
        default = getattr(_DEFAULTS, name)
        shown = "" if default is None else f" (default: {default})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="X", help=text + shown)
    add_decoding_arguments(parser)
    parser.add_argument(
        "--benchmark",
        action="store_true",
        help="greedy unless a temperature is given, and a table of rates after the reply",
    )
    parser.add_argument(
        "--chat", action="store_true", help="no prompt but a conversation: the same as `tiercel chat --plain`"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one object: text, finish_reason, prompt_tokens, cached_tokens, completion_tokens, "
        "ttft_ms, prefill_tok_s, decode_tok_s, predicted_prefill_tok_s, predicted_decode_tok_s, "
        "nvme_read_bytes, h2d_bytes, stall_ms (waiting for disk and copies), drafted_tokens, "
        "accepted_tokens, acceptance_rate, drafts_at_once, expected_speed_up (of drafts that were expected "
        "to lose and so not tried), from_draft (which tokens of the reply were drafts, from 0), "
        "skipped_blocks, perplexity_change (of what is left out; 0.01 is 1 %%), seed",
    )
    parser.epilog = "example: tiercel run -m smollm2 -p 'Why is the sky blue?' --temperature 0"


def run(args: argparse.Namespace) -> int:
    """Print the answer as it comes, or one object at its end."""
    if args.chat:
        return _chat(args)
    request = _request(args)
    options = load_options(args, context=args.context, draft_model=draft_model(args))
    engine = Engine()
    try:
        engine.load(options)
        reply = engine.ask(request)
        interrupted = _follow(engine, reply, quiet=args.json)
        snapshot = engine.snapshot
    finally:
        engine.close()
    print_notices([*device_notices(snapshot), *snapshot.notices])
    if reply.error is not None:
        raise reply.error
    if args.json:
        print(json.dumps(as_json(reply, snapshot.tiers)))
    else:
        print(table(reply, snapshot.tiers) if args.benchmark else summary(reply), file=sys.stderr)
    return INTERRUPTED if interrupted else OK


def _chat(args: argparse.Namespace) -> int:
    """Chat line by line. Raises UsageError for options of one answer."""
    given = [name for name, unset in _FOR_ONE_ANSWER.items() if getattr(args, name) != unset]
    if given:
        option = given[0].replace("_", "-")
        raise UsageError(f"--{option} is for one answer, not for --chat, which has /help instead")
    from app.plain import run_plain

    return run_plain(Engine(), resolve_model(args.model), with_decoding(chosen(args), args))


def _request(args: argparse.Namespace) -> Request:
    piped = piped_text()
    if not args.raw:
        piped = piped.rstrip("\r\n")
    prompt = "\n\n".join(part for part in (args.prompt, piped) if part)
    if not prompt:
        raise UsageError("there is no prompt: give one with -p, or pipe text in")
    said = {name: value for name in _SAMPLING if (value := getattr(args, name)) is not None}
    if args.benchmark:
        said.setdefault("temperature", 0.0)
    try:
        sampling = SamplingParams(**said)
    except ValueError as error:
        raise UsageError(str(error)) from None
    limits = {
        "sampling": sampling,
        "decoding": decoding_options(args),
        "max_tokens": args.max_tokens,
        "stop": tuple(args.stop),
    }
    if args.raw:
        if args.system:
            raise UsageError("--system needs the chat template, which --raw leaves out: put it in the prompt")
        return Request(prompt=prompt, **limits)
    system = (Message("system", args.system),) if args.system else ()
    return Request(messages=(*system, Message("user", prompt)), **limits)


def _follow(engine: Engine, reply: Reply, *, quiet: bool) -> bool:
    """Write the reply as it grows; ctrl+c stops it and keeps what came. Returns whether that happened.

    Raises KeyboardInterrupt while there is nothing to keep, and when it is pressed again.
    """
    bar, interrupted, offset, last = ProgressBar(), False, 0, ""
    try:
        ended = False
        while not ended:
            try:
                _await(engine, reply, offset, bar)
            except KeyboardInterrupt:
                if interrupted or reply.status is ReplyStatus.QUEUED:
                    raise
                interrupted = True
                reply.cancel()
            ended = reply.done
            text, offset = reply.read(offset)
            if text and not quiet:
                bar.close()
                last = text
                sys.stdout.write(sanitize(text) if sys.stdout.isatty() else text)
                sys.stdout.flush()
    finally:
        bar.close()
        if last and not last.endswith("\n"):
            print(flush=True)  # before the summary or an error, which go another way
    return interrupted


def _await(engine: Engine, reply: Reply, offset: int, bar: ProgressBar) -> None:
    """Wait for text after `offset` or the end; before the first text only a moment, to show how far it is."""
    if reply.status is ReplyStatus.QUEUED:
        snapshot = engine.snapshot
        bar.update(f"{snapshot.load_stage or 'starting'} {snapshot.load_progress:.0%}", 0, 0)
        reply.wait(offset, 0.1)
    elif reply.status is ReplyStatus.CALIBRATE:
        bar.share("measuring what leaving blocks out does, once", reply.stats.calibrated_share)
        reply.wait(offset, 0.1)
    elif reply.status is ReplyStatus.PREFILL:
        stats = reply.stats
        done = stats.prefilled_tokens / (stats.prompt_tokens - stats.cached_tokens)
        bar.update(f"reading the prompt {done:.0%}", 0, 0)
        reply.wait(offset, 0.1)
    else:
        bar.close()
        reply.wait(offset)
