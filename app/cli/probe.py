"""`tiercel probe`: measures how fast this machine is, for the plans that loading makes, and shows it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from app import locations
from app.cli.arguments import positive_int
from app.cli.exit_codes import OK
from app.cli.interruptible import run_interruptible
from app.cli.notices import print_notices
from app.models import resolve_model
from app.sanitize import sanitize_line

if TYPE_CHECKING:  # numpy
    from engine import MachineRates

NAME = "probe"
HELP = "measure memory, kernels and disk again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model and the output format."""
    parser.add_argument(
        "-m", "--model", metavar="MODEL", help="measure the disk of this model too: a path or a name"
    )
    parser.add_argument(
        "-t",
        "--threads",
        type=positive_int,
        metavar="N",
        help="threads to measure with (default: the physical cores)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one object: device, threads, dram_gb_s, gemv_gb_s by quant type, disk_gb_s",
    )
    parser.epilog = "example: tiercel probe -m smollm2"


def run(args: argparse.Namespace) -> int:
    """Print the rates, in GB (1e9 bytes) per second."""
    path = resolve_model(args.model) if args.model is not None else None
    from engine import measure_machine  # numpy

    rates = run_interruptible(
        lambda cancel: measure_machine(path, args.threads, locations.rates_file(), cancel)
    )
    print_notices(rates.notices)
    print(json.dumps(_as_json(rates)) if args.json else "\n".join(_lines(rates)))
    return OK


def _as_json(rates: MachineRates) -> dict[str, object]:
    return {
        "device": rates.device,
        "threads": rates.threads,
        "dram_gb_s": rates.dram / 1e9,
        "gemv_gb_s": {name: rate / 1e9 for name, rate in rates.gemv.items()},
        "disk_gb_s": None if rates.disk is None else rates.disk / 1e9,
    }


def _lines(rates: MachineRates) -> Iterator[str]:
    yield f"{sanitize_line(rates.device)}, {rates.threads} threads"
    yield f"memory {rates.dram / 1e9:8.2f} GB/s   (plain reads)"
    for name, rate in rates.gemv.items():
        yield f"{name:<6} {rate / 1e9:8.2f} GB/s   ({rate / rates.dram:.0%} of memory)"
    if rates.disk is not None:
        yield f"disk   {rates.disk / 1e9:8.2f} GB/s   (direct reads of the model)"
