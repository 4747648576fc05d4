"""Measure what the interface promises, on this machine, with the starter model.

    python -m tests.app.measure_interface [NAME ...] [--short]

NAME is one of keys, share, speed, growth, opening, first-paint and idle; without one all are measured, which
takes about half an hour. Nothing else should run meanwhile. Each line is a median or a percentile with its
range, the mark, and whether it holds; the exit code is 1 where one does not. `--short` is for trying the
script out. TIERCEL_LARGE names a larger model to be loaded while somebody types: the starter model loads so
fast that the beginning and the end of loading are most of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from tests.app.measure_latency import first_paint, keys, opening
from tests.app.measure_share import growth, idle, share
from tests.app.measure_speed import speed
from tests.app.measuring import MODEL, Result

_LONG: dict[str, Callable[[], list[Result]]] = {
    "first-paint": lambda: first_paint(9),
    "idle": lambda: idle(3, 20.0),
    "keys": lambda: keys(200),
    "opening": lambda: opening(9),
    "share": lambda: share(3, 20.0),
    "growth": lambda: growth(3, 9_800),
    "speed": lambda: speed(9),
}
_SHORT: dict[str, Callable[[], list[Result]]] = {
    "first-paint": lambda: first_paint(2),
    "idle": lambda: idle(1, 5.0),
    "keys": lambda: keys(30),
    "opening": lambda: opening(2),
    "share": lambda: share(1, 5.0),
    "growth": lambda: growth(1, 1_800),
    "speed": lambda: speed(1),
}


def main() -> int:
    """Measure what the command line names, and print a line for each number."""
    parser = argparse.ArgumentParser(description="Measure what the interface promises.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(_LONG))
    parser.add_argument("--short", action="store_true", help="so few and short that the numbers mean little")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(_LONG):
        parser.error(f"there is no {min(unknown)}, only {', '.join(_LONG)}")
    if not MODEL.is_file():
        parser.error(f"no {MODEL.name} in {MODEL.parent}: run `make test-models`, or set TIERCEL_MODELS")
    passed = True
    for name in arguments.names or _LONG:
        for result in (_SHORT if arguments.short else _LONG)[name]():
            print(result, flush=True)
            passed = passed and result.passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
