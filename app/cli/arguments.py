"""Arguments that several commands share, and the kinds of number they take."""

from __future__ import annotations

import argparse

from app import locations
from app.models import resolve_model
from engine import Budget, LoadOptions, Precision, parse_budget

BUDGET_HELP = (
    "memory for the model, such as 8G, 7.5GiB or 50%% of what is available (default: 70%%); weights beyond "
    "it are read from disk while it runs"
)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model and how it is computed."""
    parser.add_argument(
        "-m", "--model", required=True, metavar="MODEL", help="a path, or a name from `tiercel models`"
    )
    parser.add_argument(
        "-t",
        "--threads",
        type=positive_int,
        metavar="N",
        help="threads to compute on (default: the physical cores)",
    )
    parser.add_argument(
        "--precision",
        type=Precision,
        choices=list(Precision),
        default=Precision.FAST,
        help="fast (default) rounds activations to 8 bits; float keeps them and the cache in float32",
    )
    parser.add_argument("--ram-budget", type=budget, metavar="SIZE", help=BUDGET_HELP)


def load_options(args: argparse.Namespace, *, context: int | None = None, chunk: int = 512) -> LoadOptions:
    """What `add_model_arguments` declared, as the engine takes it; raises ModelNotFoundError."""
    return LoadOptions(
        path=resolve_model(args.model),
        context=context,
        threads=args.threads,
        precision=args.precision,
        chunk=chunk,
        ram_budget=args.ram_budget,
        rates_file=locations.rates_file(),
    )


def budget(text: str) -> Budget:
    """A size or a share of memory."""
    try:
        return parse_budget(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive_int(text: str) -> int:
    """A whole number of at least 1."""
    return _bounded_int(text, 1)


def natural_int(text: str) -> int:
    """A whole number of at least 0."""
    return _bounded_int(text, 0)


def _bounded_int(text: str, low: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= 1 << 30:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {low}")
    return value
