"""A command line of `tiercel`: without a command the application, otherwise one file of `app.cli` for each.

A command's file is imported when it is called for; only the general help needs all of them. Errors become one
line on standard error and an exit code (`app.cli.exit_codes`). Called by `app.__main__`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from app.cli.arguments import add_device_arguments, chosen
from app.cli.decoding_arguments import add_decoding_arguments, with_decoding
from app.cli.exit_codes import DOES_NOT_FIT, FAILED, MEANINGS, USAGE, UsageError, exit_code
from app.devices import gpu_words
from app.models import resolve_model
from app.sanitize import sanitize_line
from engine import EngineError

_COMMANDS = (
    "run",
    "chat",
    "history",
    "tiers",
    "plan",
    "bench",
    "probe",
    "perplexity",
    "calibrate",
    "tokenize",
    "render",
    "inspect",
    "models",
    "pull",
)


def run_command_line(arguments: Sequence[str]) -> int:
    """Run it and return the exit code; what goes wrong is told in one line. Raises KeyboardInterrupt."""
    _prepare_streams()
    try:
        code = _dispatch(list(arguments))
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _failed(error, USAGE)
    except EngineError as error:
        return _failed(error, exit_code(error))
    except MemoryError:
        return _failed("memory ran out: close other programs, then try again", DOES_NOT_FIT)
    except BrokenPipeError:
        # Whoever read our output has enough of it.
        _drop_output()
        return FAILED
    except OSError as error:
        # Files that are read have errors of their own: what is left is writing, to a disk that is full.
        _drop_output()
        reason = f"{error.filename or 'the output'}: {error.strerror or error}"
        return _failed(f"{reason}; check the place and the space on the disk", FAILED)


def _prepare_streams() -> None:
    """Make both output streams take any text; one that was closed by the caller takes it and loses it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  kept to the end
        elif hasattr(stream, "reconfigure"):
            # A terminal in another encoding shows replacements instead of failing.
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """Lose what could not be written, which Python would try again, and complain about, at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in _COMMANDS:
        parser = _Parser(prog=f"tiercel {arguments[0]}")
        command = import_module(f"app.cli.{arguments[0]}")
        parser.description = command.HELP[0].upper() + command.HELP[1:] + "."
        command.add_arguments(parser)
        code: int = command.run(parser.parse_args(arguments[1:]))
        return code
    parser = _Parser(
        prog="tiercel",
        description="Chat with language models on this machine. Without a command the application starts.",
        usage="tiercel [-m MODEL] [--device DEVICE] [--ram-budget SIZE] ... | tiercel COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_epilog() if {"-h", "--help"} & set(arguments) else None,
    )
    parser.add_argument(
        "--version", action=_ShowVersion, nargs=0, help="show the version and what can compute here, and exit"
    )
    parser.add_argument("-m", "--model", metavar="MODEL", help="the model to chat with: a path or a name")
    add_device_arguments(parser)
    add_decoding_arguments(parser)
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="see below")
    args = parser.parse_args(arguments)
    if args.command is not None:
        parser.error(f"there is no command {args.command!r}, only {', '.join(_COMMANDS)}")
    from app.app import main as run_application

    model = resolve_model(args.model) if args.model is not None else None
    return run_application(model, with_decoding(chosen(args), args))


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong in one line, like every other error, and not in the usage of twenty options."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


class _ShowVersion(argparse.Action):
    """Looks the version and the devices up only when asked: both would delay the first frame."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        from engine import computing_devices  # numpy

        print(f"tiercel {version('tiercel')}", flush=True)
        processor, gpus, reason = computing_devices()
        print(sanitize_line(processor))
        for gpu in gpus:
            print(f"cuda:{gpu.number}: {gpu_words(gpu)}")
        if not gpus:
            print(f"no GPU: {sanitize_line(reason)}")
        parser.exit()


def _epilog() -> str:
    """The commands with their help, and the exit codes."""
    lines = [f"  {name:<12} {import_module(f'app.cli.{name}').HELP}" for name in _COMMANDS]
    return "\n".join(
        [
            "commands:",
            *lines,
            "",
            "`tiercel COMMAND --help` has the rest.",
            "example: tiercel -m smollm2",
            MEANINGS,
        ]
    )


def _failed(error: object, code: int) -> int:
    with suppress(OSError):  # the code must be right even where nobody can be told
        print(f"tiercel: {sanitize_line(str(error))}", file=sys.stderr)
    return code
