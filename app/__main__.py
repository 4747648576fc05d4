"""The `tiercel` command: without a command the application, otherwise one file of `app.cli` per command.

A command's file is imported when it is called for; only the general help needs all of them. Errors of the
engine become one line on standard error and an exit code (`app.cli.exit_codes`).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from app.cli.exit_codes import FAILED, INTERRUPTED, MEANINGS, USAGE, UsageError, exit_code
from app.sanitize import sanitize_line
from engine import EngineError

_COMMANDS = ("run", "bench", "perplexity", "tokenize", "render", "inspect", "models", "pull")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (the process's own by default) and return its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    for stream in (sys.stdout, sys.stderr):
        # A terminal in another encoding shows replacements instead of failing.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _failed(error, USAGE)
    except EngineError as error:
        return _failed(error, exit_code(error))
    except KeyboardInterrupt:
        return _failed("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has enough of it; without this Python complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in _COMMANDS:
        parser = argparse.ArgumentParser(prog=f"tiercel {arguments[0]}")
        command = import_module(f"app.cli.{arguments[0]}")
        parser.description = command.HELP[0].upper() + command.HELP[1:] + "."
        command.add_arguments(parser)
        code: int = command.run(parser.parse_args(arguments[1:]))
        return code
    parser = argparse.ArgumentParser(
        prog="tiercel",
        description="Chat with language models on this machine. Without a command the application starts.",
        usage="tiercel [-m MODEL] | tiercel COMMAND ...",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_epilog() if {"-h", "--help"} & set(arguments) else None,
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    parser.add_argument("-m", "--model", metavar="MODEL", help="the model to chat with: a path or a name")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="see below")
    args = parser.parse_args(arguments)
    if args.command is not None:
        parser.error(f"there is no command {args.command!r}: choose from {', '.join(_COMMANDS)}")
    return _application(args.model)


def _application(model: str | None) -> int:
    from app.app import main as run_application

    if model is None:
        return run_application()
    from app.models import resolve_model
    from engine import LoadOptions

    return run_application(LoadOptions(resolve_model(model)))


class _ShowVersion(argparse.Action):
    """Looks the version up only when asked: reading package metadata delays the first frame by 30 ms."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"tiercel {version('tiercel')}")
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
    print(f"tiercel: {sanitize_line(str(error))}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
