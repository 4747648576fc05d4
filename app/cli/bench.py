"""`tiercel bench`: how fast models run on this machine, and the products that they are made of."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from app import locations
from app.cli.arguments import add_device_arguments, load_options, natural_int, one_of, positive_int
from app.cli.bench_help import EPILOG
from app.cli.bench_matrix import run_matrix
from app.cli.bench_table import kernel_lines, model_lines, op_lines
from app.cli.exit_codes import OK, UsageError
from app.cli.interruptible import run_interruptible
from app.cli.notices import print_notices
from app.devices import for_engine
from app.models import resolve_model
from app.sanitize import sanitize_line
from engine import Precision

if TYPE_CHECKING:
    from engine import Cell, KernelCell, LoadOptions, OpCell, QuantType, Report

NAME = "bench"
HELP = "measure tokens per second"

_PROMPT_TOKENS = 512
_DECODE_TOKENS = 64
_REPETITIONS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the models, what is swept, the lengths and the repetitions."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "-m",
        "--model",
        action="append",
        dest="models",
        metavar="MODEL",
        help="a path, or a name from `tiercel models`; may be repeated",
    )
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="instead of a model, time the matrix product of each quant type, with 1 to 512 columns "
        "(on a GPU 1 to 8)",
    )
    parser.add_argument(
        "--ops",
        action="store_true",
        help="instead of tokens per second, time the operations of one decode step on a GPU",
    )
    parser.add_argument(
        "--matrix",
        type=Path,
        metavar="FILE.toml",
        help="instead, measure speed and quality of every combination of the settings in a file, see below",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="NAME",
        help="with --matrix: write NAME.csv and NAME.json (default: the file's name, in this folder)",
    )
    parser.add_argument(
        "-p",
        "--prompt-tokens",
        type=natural_int,
        metavar="N",
        help=f"prompt length, measured at depth 0 ({_PROMPT_TOKENS})",
    )
    parser.add_argument(
        "-n", "--decode-tokens", type=natural_int, metavar="N", help=f"tokens to decode ({_DECODE_TOKENS})"
    )
    parser.add_argument(
        "-d",
        "--depths",
        type=_list_of(natural_int),
        metavar="N,N",
        help="how many tokens are in the context when decoding starts (0)",
    )
    parser.add_argument(
        "-t",
        "--threads",
        type=_list_of(positive_int),
        metavar="N,N",
        help="threads to compute on (default: the physical cores; beside a GPU one in eight is left free)",
    )
    parser.add_argument(
        "-r",
        "--repetitions",
        type=positive_int,
        metavar="N",
        help=f"medians of so many ({_REPETITIONS})",
    )
    parser.add_argument(
        "--precision",
        type=one_of(Precision),
        choices=list(Precision),
        help="fast (default) rounds activations to 8 bits, on a GPU to 15; float keeps all in float32",
    )
    add_device_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one object, see below")
    parser.epilog = EPILOG


def _list_of(number: Callable[[str], int]) -> Callable[[str], list[int]]:
    """Read numbers with commas between them, each once."""

    def read(text: str) -> list[int]:
        values = [number(part) for part in text.split(",")]
        if len(set(values)) < len(values):
            raise argparse.ArgumentTypeError(f"{text!r} has a number twice")
        return values

    return read


def run(args: argparse.Namespace) -> int:
    """Measure and print: a table that grows, or one object at the end."""
    if args.matrix is not None:
        return _run_matrix(args)
    if args.output is not None:
        raise UsageError("-o names the files of --matrix: leave it out")
    args.repetitions = args.repetitions or _REPETITIONS
    if args.kernels:
        kernel_reports = _kernel_reports(args)
        return _print_object(kernel_reports) if args.json else _print_lines(kernel_lines(kernel_reports))
    if args.ops:
        op_reports = _op_reports(args)
        return _print_object(op_reports) if args.json else _print_lines(op_lines(op_reports))
    model_reports = _model_reports(args)
    return _print_object(model_reports) if args.json else _print_lines(model_lines(model_reports))


def _run_matrix(args: argparse.Namespace) -> int:
    """All settings but the output are the file's."""
    others = {name: value for name, value in vars(args).items() if name not in ("matrix", "output", "json")}
    if any(value is not None and value is not False for value in others.values()):
        raise UsageError("--matrix takes its settings from the file: leave out all others but -o and --json")
    return run_matrix(args.matrix, args.output, as_json=args.json)


def _print_object(reports: Iterable[Report[Cell] | Report[KernelCell] | Report[OpCell]]) -> int:
    measured = list(reports)
    cells = [asdict(cell) for report in measured for cell in report.cells]
    print(json.dumps({"device": measured[0].device, "cells": cells}))
    return OK


def _print_lines(lines: Iterable[str]) -> int:
    for line in lines:
        print(line, flush=True)
    return OK


def _model_reports(args: argparse.Namespace) -> Iterator[Report[Cell]]:
    """Measure every model on every number of threads, each loaded alone; wrong usage is told before that."""
    if not args.models:
        raise UsageError("there is nothing to measure: give -m/--model, or --kernels")
    n_prompt = _PROMPT_TOKENS if args.prompt_tokens is None else args.prompt_tokens
    n_decode = _DECODE_TOKENS if args.decode_tokens is None else args.decode_tokens
    depths = args.depths or [0]
    if 0 not in depths:
        if args.prompt_tokens:
            raise UsageError(f"prompts are measured at depth 0: add 0 to -d, or leave out -p {n_prompt}")
        n_prompt = 0
    if not n_decode and (any(depths) or not n_prompt):
        raise UsageError("there is nothing to measure: give -n, or at depth 0 -p, a number above 0")
    paths = _different_files(args.models)
    for path in paths:
        _check_context(path, n_prompt, max(depths), n_decode)
    for path in paths:
        for threads in args.threads or [None]:
            yield _measure_model(
                _load_options(args, path, threads),
                n_prompt=n_prompt,
                n_decode=n_decode,
                depths=depths,
                repetitions=args.repetitions,
            )


def _different_files(names: Sequence[str]) -> list[Path]:
    """The models' files; UsageError when one is named twice."""
    paths: list[Path] = []
    for name in names:
        path = resolve_model(name)
        if any(path.samefile(other) for other in paths):
            raise UsageError(f"{sanitize_line(name)} is the same model as another -m: name each once")
        paths.append(path)
    return paths


def _check_context(path: Path, n_prompt: int, depth: int, n_decode: int) -> None:
    """Refuse lengths that the model is not made for."""
    from engine import training_context  # numpy

    context = training_context(path)
    if max(n_prompt, depth + n_decode) > context:
        what = f"-d {depth} with -n {n_decode}" if depth + n_decode > context else f"-p {n_prompt}"
        raise UsageError(
            f"{what} goes beyond the context of {sanitize_line(path.name)}, {context} tokens: "
            "give smaller numbers"
        )


def _load_options(args: argparse.Namespace, path: Path, threads: int | None) -> LoadOptions:
    precision = args.precision or Precision.FAST
    own = {"model": str(path), "threads": threads, "precision": precision}
    return load_options(argparse.Namespace(**{**vars(args), **own}))


def _measure_model(
    options: LoadOptions, *, n_prompt: int, n_decode: int, depths: Sequence[int], repetitions: int
) -> Report[Cell]:
    from engine import measure_speed  # numpy

    report = run_interruptible(
        lambda cancel: measure_speed(
            options,
            n_prompt=n_prompt,
            n_decode=n_decode,
            depths=depths,
            repetitions=repetitions,
            cancel=cancel,
        )
    )
    print_notices(report.notices)
    return report


def _op_reports(args: argparse.Namespace) -> Iterator[Report[OpCell]]:
    """Time the operations of every model; wrong usage is told before anything is loaded."""
    unused = {"-p": args.prompt_tokens, "-n": args.decode_tokens, "-t": args.threads}
    if given := [option for option, value in unused.items() if value is not None]:
        raise UsageError(f"--ops times one step on a GPU: leave out {', '.join(given)}")
    if not args.models:
        raise UsageError("there is nothing to measure: give -m/--model")
    depths = args.depths or [_PROMPT_TOKENS]
    paths = _different_files(args.models)
    for path in paths:
        _check_context(path, 0, max(depths), 1)
    for path in paths:
        yield _measure_ops(_load_options(args, path, None), depths, args.repetitions)


def _measure_ops(options: LoadOptions, depths: Sequence[int], repetitions: int) -> Report[OpCell]:
    from engine import measure_ops  # numpy

    report = run_interruptible(
        lambda cancel: measure_ops(options, depths=depths, repetitions=repetitions, cancel=cancel)
    )
    print_notices(report.notices)
    return report


def _kernel_reports(args: argparse.Namespace) -> Iterator[Report[KernelCell]]:
    """Measure every quant type, on every number of threads or on a GPU."""
    of_models = {
        "-m": args.models,
        "-p": args.prompt_tokens,
        "-n": args.decode_tokens,
        "-d": args.depths,
        "--precision": args.precision,
        "--ram-budget": args.ram_budget,
        "--vram-budget": args.vram_budget,
        "--kv-type": args.kv_type,
        "--gpu-layers": args.gpu_layers,
        "--place": args.place,
        "--executor or --streaming": args.executor,
        "--prefetch": args.prefetch,
        "--link-limit": args.link_limit,
        "--ops": args.ops or None,
    }
    if given := [option for option, value in of_models.items() if value is not None]:
        raise UsageError(f"--kernels measures no model: leave out {', '.join(given)}")
    from engine import QuantType

    if _on_gpu(args):
        for quant_type in QuantType:
            yield _measure_gpu_kernel(quant_type, for_engine(args.device), args.repetitions)
        return
    for threads in args.threads or [None]:
        for quant_type in QuantType:
            yield _measure_kernel(quant_type, threads, args.repetitions)


def _on_gpu(args: argparse.Namespace) -> bool:
    """Whether a GPU's products are asked for: threads are a processor's."""
    device = for_engine(args.device)
    if device is None and not args.threads:
        from engine import find_gpus

        return bool(find_gpus().devices)
    if device in (None, "cpu"):
        return False
    if args.threads:
        raise UsageError("threads are those of the processor: leave out -t, or give --device cpu")
    return True


def _measure_kernel(quant_type: QuantType, threads: int | None, repetitions: int) -> Report[KernelCell]:
    from engine import measure_kernel  # numpy

    return run_interruptible(
        lambda cancel: measure_kernel(quant_type, threads=threads, repetitions=repetitions, cancel=cancel)
    )


def _measure_gpu_kernel(quant_type: QuantType, device: str | None, repetitions: int) -> Report[KernelCell]:
    from engine import measure_gpu_kernel  # numpy

    return run_interruptible(
        lambda cancel: measure_gpu_kernel(
            quant_type,
            device=device,
            cache_dir=locations.cache_dir(),
            repetitions=repetitions,
            cancel=cancel,
        )
    )
