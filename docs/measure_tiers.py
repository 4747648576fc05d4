"""Measure a model that is larger than the card: the figures of "Larger than the card" in PERFORMANCE.md.

    python docs/measure_tiers.py measure RESULTS MODEL.gguf [NAME ...] [--minutes 9] [--device cuda]
    python docs/measure_tiers.py table RESULTS
    python docs/measure_tiers.py list

`measure` runs each configuration NAME (without one, all but those for other models) in a process of its
own, which loads MODEL once, and writes every figure to RESULTS (JSON) as soon as it is there: what is stopped
loses nothing, what fails or hangs is noted, and the rest goes on. What has been measured is not measured
again (`--again` does that). After `--minutes` the configuration that runs is stopped, and those that are left
are named. `table` prints figures, bounds and marks from RESULTS, on any machine; `list` names the
configurations.

The page cache should be warm but for `cold`, so run that one last: after it the file is in the cache again.
Other work on the machine falsifies the figures.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from tier_runs import (  # noqa: E402
    CONFIGURATIONS,
    Failed,
    Subject,
    put,
    read_results,
    take_all_memory,
)
from tier_table import table  # noqa: E402

from engine import EngineError  # noqa: E402

FOR_OTHER_MODELS = ("ram34", "vram6")
"""Configurations for a larger and a smaller file."""
_LEAST_S = 20.0
"""A configuration is not begun with less time."""
_ENDING_S = 10.0
"""For a process that is told to stop."""


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="measure configurations of a model")
    measuring.add_argument("results", type=Path, metavar="RESULTS", help="a JSON file; figures are added")
    measuring.add_argument("model", type=Path, metavar="MODEL.gguf", help="the path of a model")
    measuring.add_argument("names", nargs="*", metavar="NAME", help="configurations; see `list`")
    measuring.add_argument("--minutes", type=float, default=9.0, help="when to stop (default: 9)")
    measuring.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (default: cuda)")
    measuring.add_argument("--again", action="store_true", help="also what has been measured")
    one = commands.add_parser("one", help="what `measure` starts for each configuration")
    one.add_argument("results", type=Path)
    one.add_argument("model", type=Path)
    one.add_argument("name")
    one.add_argument("device")
    commands.add_parser("take", help="what `crowd` starts").add_argument("device")
    commands.add_parser("table", help="print what was measured").add_argument("results", type=Path)
    commands.add_parser("list", help="name the configurations")
    args = parser.parse_args()
    if args.command == "list":
        for name, configuration in CONFIGURATIONS.items():
            print(f"{name:12} {configuration.words} (at most {configuration.limit_s:.0f} s)")
    elif args.command == "table":
        print("\n".join(table(read_results(args.results))))
    elif args.command == "take":
        take_all_memory(args.device)
    elif args.command == "one":
        measure_one(args.results, args.model, args.name, args.device)
    elif unknown := set(args.names) - set(CONFIGURATIONS):
        parser.error(f"there is no {min(unknown)}, only {', '.join(CONFIGURATIONS)}")
    elif not args.model.is_file():
        parser.error(f"there is no file {args.model}")
    else:
        names = args.names or [name for name in CONFIGURATIONS if name not in FOR_OTHER_MODELS]
        measure(args.results, args.model, names, args.device, 60 * args.minutes, args.again)


def measure(results: Path, model: Path, names: list[str], device: str, seconds: float, again: bool) -> None:
    """Run configurations one after another, and say after each how it went."""
    deadline = time.perf_counter() + seconds
    for name in names:
        key = f"{model.stem} {name}"
        if read_results(results).get(key, {}).get("done") and not again:
            continue
        started = time.perf_counter()
        limit_s = min(CONFIGURATIONS[name].limit_s, deadline - started)
        if limit_s < _LEAST_S:
            print(f"{key}: left out, {limit_s:.0f} s are left", flush=True)
            continue
        _begin(results, key, model, name)
        problem = _run(("one", str(results), str(model), name, device), limit_s)
        entry = read_results(results)[key]
        if not entry["done"] and not entry["error"]:
            put(results, key, error=problem)
        seconds = time.perf_counter() - started
        put(results, key, seconds=seconds)
        print(f"{key}: {read_results(results)[key]['error'] or 'done'} ({seconds:.1f} s)", flush=True)
    print("\n".join(table(read_results(results))), flush=True)


def _begin(results: Path, key: str, model: Path, name: str) -> None:
    """An entry with what is known before anything is measured."""
    configuration = CONFIGURATIONS[name]
    put(
        results,
        key,
        model=model.stem,
        name=name,
        file_bytes=model.stat().st_size,
        threads=configuration.threads,
        link_limit=configuration.link_limit,
        done=False,
        error="",
    )


def _run(arguments: tuple[str, ...], limit_s: float) -> str:
    """Run this script for so many seconds at most -> what went wrong, in words."""
    process = subprocess.Popen([sys.executable, __file__, *arguments])
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return f"was stopped after {limit_s:.0f} s"
    return f"ended with status {status}" if status else ""


def measure_one(results: Path, model: Path, name: str, device: str) -> None:
    """Measure one configuration in this process, and note what stopped it."""
    configuration = CONFIGURATIONS[name]
    subject = Subject(model, device, configuration, results, f"{model.stem} {name}")
    try:
        configuration.measure(subject)
        subject.put(done=True)
    except (EngineError, Failed) as error:
        subject.put(error=str(error))
    except Exception as error:
        subject.put(error=f"{type(error).__name__}: {error}")
        raise  # a fault of ours: its traceback belongs on the screen


if __name__ == "__main__":
    main()
