"""Arguments that several commands share, and the kinds of number they take."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from app import locations
from app.devices import for_engine, parse_device
from app.models import resolve_model
from app.models.options import Chosen
from engine import (
    Budget,
    ExecutorChoice,
    KVType,
    LoadOptions,
    PlaceRule,
    Precision,
    parse_budget,
    parse_place,
)

_Named = TypeVar("_Named", bound=StrEnum)


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
        help="threads to compute on (default: the physical cores; beside a GPU one in eight is left free)",
    )
    parser.add_argument(
        "--precision",
        type=one_of(Precision),
        choices=list(Precision),
        default=Precision.FAST,
        help="fast (default) rounds activations to 8 bits, on a GPU to 15; float keeps all in float32",
    )
    add_device_arguments(parser)


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what computes, and how much memory of which kind the model may take."""
    parser.add_argument(
        "--device",
        type=device,
        metavar="DEVICE",
        help="what computes: auto (default) is the first GPU, with the processor for what it does not hold, "
        "or the processor alone; cpu, cuda or cuda:N insist",
    )
    parser.add_argument(
        "--ram-budget",
        type=budget,
        metavar="SIZE",
        help="memory for the model, such as 8G, 7.5GiB or 50%% of what is available (default: 70%%); weights "
        "beyond it are read from disk while it runs",
    )
    parser.add_argument(
        "--vram-budget",
        type=vram_budget,
        metavar="SIZE",
        help="video memory for the model, everything counted, such as 20G or 80%% of what is free there "
        "(default: 90%%)",
    )
    parser.add_argument(
        "--kv-type",
        type=one_of(KVType),
        choices=list(KVType),
        help="keys and values on a GPU: f16 (default), or q8_0, which takes about half the room",
    )
    _add_placement_arguments(parser)


def _add_placement_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where weights lie and who computes them beside a GPU, for who knows better than the plan."""
    parser.add_argument(
        "--gpu-layers",
        type=natural_int,
        metavar="N",
        help="keep the first N layers in video memory and no others (default: what the plan finds best)",
    )
    parser.add_argument(
        "--place",
        type=place,
        metavar="RULES",
        help="where blocks lie, such as 'blk.0-9.attn=vram,blk.70-79=nvme,blk.3.ffn=ram,head=ram'; later "
        "rules win, and the plan chooses the rest",
    )
    executors = parser.add_mutually_exclusive_group()
    executors.add_argument(
        "--executor",
        type=one_of(ExecutorChoice),
        choices=list(ExecutorChoice),
        help="who computes, for each token, the weights beyond video memory: auto (default) is whatever was "
        "measured as fastest, stream the GPU after copying them, cpu the processor, hybrid both at once",
    )
    executors.add_argument(
        "--streaming",
        dest="executor",
        action="store_const",
        const=ExecutorChoice.STREAM,
        help="the same as --executor stream",
    )
    parser.add_argument(
        "--prefetch",
        type=slots,
        metavar="N",
        help="slots in video memory through which blocks are copied ahead of their use, at least 2 (default: "
        "what the plan finds best)",
    )
    parser.add_argument(
        "--link-limit",
        type=link_rate,
        metavar="RATE",
        help="slow copies to the GPU down to so many bytes per second, such as 6.5G: for experiments, it "
        "imitates a machine with a slower link",
    )


def chosen(args: argparse.Namespace) -> Chosen:
    """What `add_device_arguments` declared, for the application and the plain chat."""
    return Chosen(
        device=args.device,
        ram_budget=args.ram_budget,
        vram_budget=args.vram_budget,
        kv_type=args.kv_type,
        gpu_layers=args.gpu_layers,
        place=args.place or (),
        executor=args.executor or ExecutorChoice.AUTO,
        prefetch=args.prefetch,
        link_limit=args.link_limit,
    )


def load_options(
    args: argparse.Namespace,
    *,
    context: int | None = None,
    chunk: int | None = None,
    draft_model: Path | None = None,
) -> LoadOptions:
    """What `add_model_arguments` declared, as the engine takes it; raises ModelNotFoundError."""
    return LoadOptions(
        path=resolve_model(args.model),
        context=context,
        threads=args.threads,
        precision=args.precision,
        chunk=chunk,
        ram_budget=args.ram_budget,
        rates_file=locations.rates_file(),
        device=for_engine(args.device),
        vram_budget=args.vram_budget,
        kv_type=args.kv_type or KVType.F16,
        cache_dir=locations.cache_dir(),
        gpu_layers=args.gpu_layers,
        place=args.place or (),
        executor=args.executor or ExecutorChoice.AUTO,
        prefetch=args.prefetch,
        link_limit=args.link_limit,
        draft_model=draft_model,
    )


def device(text: str) -> str:
    """The name of what computes."""
    try:
        return parse_device(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no device: it {error}") from None


def budget(text: str) -> Budget:
    """A size or a share of memory."""
    return _budget(text, "the available memory")


def vram_budget(text: str) -> Budget:
    """A size or a share of video memory."""
    return _budget(text, "the free video memory")


def _budget(text: str, of: str) -> Budget:
    try:
        return parse_budget(text, of=of)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def place(text: str) -> tuple[PlaceRule, ...]:
    """Blocks and the tiers that they are to have."""
    try:
        return parse_place(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def link_rate(text: str) -> float:
    """Bytes per second."""
    with suppress(ValueError):
        rate = parse_budget(text.removesuffix("/s"))
        if rate.n_bytes:
            return float(rate.n_bytes)
    raise argparse.ArgumentTypeError(
        f"{text!r} is no rate above 0: give bytes per second, such as 6.5G or 800M"
    )


def slots(text: str) -> int:
    """Slots of a staging ring."""
    return _bounded_int(text, 2)


def one_of(kind: type[_Named]) -> Callable[[str], _Named]:
    """Read a name of `kind`."""

    def read(text: str) -> _Named:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} must be {' or '.join(kind)}") from None

    return read


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
