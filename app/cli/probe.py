"""`tiercel probe`: measures how fast this machine and its GPU are, for loading to go by, and shows it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from app import locations
from app.cli.arguments import device, positive_int
from app.cli.exit_codes import OK
from app.cli.interruptible import run_interruptible
from app.cli.notices import print_notices
from app.cli.progress import ProgressBar
from app.devices import for_engine, gpu_words
from app.models import resolve_model
from app.sanitize import sanitize_line

if TYPE_CHECKING:  # numpy
    from engine import GpuRates, MachineRates

NAME = "probe"
HELP = "measure memory, kernels, disk and GPU again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model, the device and the output format."""
    parser.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        help="measure the disk of this model too, and search for the best way to launch its products on the "
        "GPU, which takes minutes: a path or a name",
    )
    parser.add_argument(
        "--device",
        type=device,
        metavar="DEVICE",
        help="cpu measures no GPU, cuda or cuda:N the GPU only (default: both, the first GPU)",
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
        help="print one object: device, threads, dram_gb_s, gemv_gb_s by quant type, disk_gb_s (null where "
        "only the GPU was measured), and gpu: null, or an object with name, number, compute_capability, "
        "total_bytes, driver, read_gb_s, copy_gb_s, h2d_gb_s, gemv_gb_s by quant type, placement: null or "
        "the rates for models larger than its memory (quant_type, decode_gb_s, h2d_gb_s, "
        "h2d_beside_cpu_gb_s, cpu_beside_h2d, prefill_tflop_s, cpu_prefill_tflop_s, crossing_us), and "
        "searched: a list of quant_type, rows, row_length, tokens, us, us_before",
    )
    parser.epilog = "example: tiercel probe -m smollm2"


def run(args: argparse.Namespace) -> int:
    """Print the rates, in GB (1e9 bytes) per second."""
    path = resolve_model(args.model) if args.model is not None else None
    name = for_engine(args.device)
    only_gpu = name is not None and name != "cpu"
    machine = None if only_gpu else _measure_machine(path, args.threads)
    gpu = _measure_gpu(path, name, args.threads) if only_gpu or (name is None and _has_gpu()) else None
    for rates in (machine, gpu):
        print_notices(rates.notices if rates is not None else ())
    if args.json:
        print(json.dumps({**_machine_json(machine), "gpu": None if gpu is None else _gpu_json(gpu)}))
    else:
        print("\n".join([*_machine_lines(machine), *_gpu_lines(gpu)]))
    return OK


def _has_gpu() -> bool:
    from engine import find_gpus

    return bool(find_gpus().devices)


def _measure_machine(path: Path | None, threads: int | None) -> MachineRates:
    from engine import measure_machine  # numpy

    return run_interruptible(lambda cancel: measure_machine(path, threads, locations.rates_file(), cancel))


def _measure_gpu(path: Path | None, name: str | None, threads: int | None) -> GpuRates:
    from engine import measure_gpu  # numpy

    bar = ProgressBar()
    try:
        return run_interruptible(
            lambda cancel: measure_gpu(
                path,
                name,
                threads,
                locations.cache_dir(),
                locations.rates_file(),
                on_progress=lambda stage, share: bar.update(f"{stage} {share:.0%}", 0, 0),
                cancel=cancel,
            )
        )
    finally:
        bar.close()


def _machine_json(rates: MachineRates | None) -> dict[str, object]:
    if rates is None:
        return dict.fromkeys(("device", "threads", "dram_gb_s", "gemv_gb_s", "disk_gb_s"))
    return {
        "device": rates.device,
        "threads": rates.threads,
        "dram_gb_s": rates.dram / 1e9,
        "gemv_gb_s": {name: rate / 1e9 for name, rate in rates.gemv.items()},
        "disk_gb_s": None if rates.disk is None else rates.disk / 1e9,
    }


def _gpu_json(rates: GpuRates) -> dict[str, object]:
    facts = asdict(rates.gpu)
    del facts["free_bytes"]  # of a moment
    return {
        **facts,
        "read_gb_s": rates.ceilings.read / 1e9,
        "copy_gb_s": rates.ceilings.copy / 1e9,
        "h2d_gb_s": rates.ceilings.h2d / 1e9,
        "gemv_gb_s": {name: rate / 1e9 for name, rate in rates.gemv.items()},
        "placement": _placement_json(rates),
        "searched": [asdict(each) for each in rates.searched],
    }


def _placement_json(rates: GpuRates) -> dict[str, object] | None:
    if rates.placement is None:
        return None
    link, cpu_flops = rates.placement
    return {
        "quant_type": rates.quant_type,
        "decode_gb_s": link.vram / 1e9,
        "h2d_gb_s": link.h2d / 1e9,
        "h2d_beside_cpu_gb_s": link.h2d_beside_cpu / 1e9,
        "cpu_beside_h2d": link.cpu_beside_h2d,
        "prefill_tflop_s": link.matrix_flops / 1e12,
        "cpu_prefill_tflop_s": cpu_flops / 1e12,
        "crossing_us": link.crossing_s * 1e6,
    }


def _machine_lines(rates: MachineRates | None) -> Iterator[str]:
    if rates is None:
        return
    yield f"{sanitize_line(rates.device)}, {rates.threads} threads"
    yield f"memory {rates.dram / 1e9:8.2f} GB/s   (plain reads)"
    yield from _product_lines(rates.gemv, rates.dram)
    if rates.disk is not None:
        yield f"disk   {rates.disk / 1e9:8.2f} GB/s   (direct reads of the model)"


def _gpu_lines(rates: GpuRates | None) -> Iterator[str]:
    if rates is None:
        return
    yield gpu_words(rates.gpu)
    yield f"memory {rates.ceilings.read / 1e9:8.2f} GB/s   (plain reads)"
    yield f"copies {rates.ceilings.copy / 1e9:8.2f} GB/s   (read and written)"
    yield f"link   {rates.ceilings.h2d / 1e9:8.2f} GB/s   (to the GPU, from page-locked memory)"
    yield from _product_lines(rates.gemv, rates.ceilings.read)
    yield from _placement_lines(rates)
    for each in rates.searched:
        shape = f"{each.rows}x{each.row_length}"
        tokens = "1 token" if each.tokens == 1 else f"{each.tokens} tokens"
        gain = f"was {each.us_before:.2f}" if each.us < each.us_before else "kept"
        yield f"{each.quant_type:<6} {shape:>12} {tokens:<8} {each.us:8.2f} us   ({gain})"


def _placement_lines(rates: GpuRates) -> Iterator[str]:
    """What the planner goes by where a model does not fit the GPU's memory."""
    if rates.placement is None:
        return
    link, cpu_flops = rates.placement
    yield f"to place weights of {rates.quant_type}:"
    yield f"decode {link.vram / 1e9:8.2f} GB/s   (products in the GPU's memory)"
    yield f"copies {link.h2d / 1e9:8.2f} GB/s   (to the GPU, as blocks are copied)"
    yield f"beside {link.h2d_beside_cpu / 1e9:8.2f} GB/s   (while the processor multiplies as well,"
    yield f"{'':24}which keeps {link.cpu_beside_h2d:.0%} of its own speed)"
    yield f"prompt {link.matrix_flops / 1e12:8.2f} TFLOP/s (of the GPU; the processor {cpu_flops / 1e12:.2f})"
    yield f"cross  {link.crossing_s * 1e6:8.2f} us     (from the GPU to the processor and back)"


def _product_lines(gemv: Mapping[str, float], memory: float) -> Iterator[str]:
    for name, rate in gemv.items():
        yield f"{name:<6} {rate / 1e9:8.2f} GB/s   ({rate / memory:.0%} of memory)"
