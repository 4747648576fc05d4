"""Measure what the interface promises, on this machine, with the starter model.

    python -m tests.app.measure_interface [NAME ...] [--short]

NAME is one of the parts below; without one all are measured, which takes about an hour, none of the parts
more than nine minutes. Nothing else should run meanwhile. Each line is a median or a percentile with its
range, the mark, and whether it holds; shares are taken nine times, ratios of speeds 21 or 41 times, and the
worse end of the 95 % interval of their median decides. The exit code is 1 where one mark does not hold.
`--short` is for trying the script out.
TIERCEL_LARGE names a larger model to be loaded again and again while somebody types: the starter model loads
so fast that the beginning and the end of loading are most of it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from tests.app.measure_latency import first_paint, keys, keys_while_loading, opening
from tests.app.measure_share import growth, idle, share
from tests.app.measure_speed import speed_on_all_cores, speed_with_free_core
from tests.app.measuring import MODEL, Result

_LONG: dict[str, Callable[[], list[Result]]] = {
    "first-paint": lambda: first_paint(9),
    "idle": lambda: idle(9, 10.0),
    "keys": lambda: keys(200),
    "keys-loading": lambda: keys_while_loading(200),
    "opening": lambda: opening(9),
    "share": lambda: share(9, 6.0),
    "growth-mixed": lambda: growth("mixed", 9, 9_000),
    "growth-lists": lambda: growth("lists", 9, 9_000),
    "growth-tables": lambda: growth("tables", 9, 9_000),
    "growth-code": lambda: growth("code", 9, 9_000),
    "speed-free": lambda: speed_with_free_core(21),
    "speed-all": lambda: speed_on_all_cores(41),
}
_SHORT: dict[str, Callable[[], list[Result]]] = {
    "first-paint": lambda: first_paint(2),
    "idle": lambda: idle(1, 5.0),
    "keys": lambda: keys(30),
    "keys-loading": lambda: keys_while_loading(20),
    "opening": lambda: opening(2),
    "share": lambda: share(1, 5.0),
    "growth-mixed": lambda: growth("mixed", 1, 1_000),
    "growth-lists": lambda: growth("lists", 1, 1_000),
    "growth-tables": lambda: growth("tables", 1, 1_000),
    "growth-code": lambda: growth("code", 1, 1_000),
    "speed-free": lambda: speed_with_free_core(1),
    "speed-all": lambda: speed_on_all_cores(1),
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
        began = time.monotonic()
        for result in (_SHORT if arguments.short else _LONG)[name]():
            print(result, flush=True)
            passed = passed and result.passed
        print(f"  {name} took {time.monotonic() - began:.0f} s", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
