"""Measure layer skip on a model: what thresholds leave out, what that changes, and what it brings.

    python docs/measure_skip.py MODEL [--only thresholds] [--only shares] [--device cpu] [--busy]

`thresholds`: a table of blocks left out, KL, change in perplexity with its 95 % interval, top-1, speed
against all blocks. `shares`: how much of their share of the time leaving layers out saves, the first, the
middle and the last quarter, every second one, and the feed-forward blocks alone of every second one (mark:
90 %); the share of a layer is what all of them take of a decode step, divided by their number. All sets are
timed by turns, and what is told is the median of the repetitions.

Other work on the machine falsifies the figures. With --busy one thread computes, and what counts is the time
that the processor has worked for this program.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from engine import CancelToken, EngineError, LoadOptions, SkipChoice, SkipRule, SkipSet, parse_budget  # noqa: E402
from engine.loading import LoadedModel, load_model  # noqa: E402
from engine.skipping.calibrate import calibrate, chosen_set, ensure_calibrated, shipped_text  # noqa: E402
from engine.skipping.calibration_report import decode_step_times  # noqa: E402
from engine.skipping.skip_choice import NOTHING  # noqa: E402

COSINES = (0.99, 0.98, 0.97, 0.96, 0.95, 0.9, 0.8)
LEAST_SAVED = 0.9
"""The mark."""
Clock = Callable[[], float]
"""Seconds."""
NATS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--ram-budget", type=parse_budget)
    parser.add_argument("--only", action="append", choices=["thresholds", "shares"])
    parser.add_argument("--repetitions", type=int, default=21, help="of the shares")
    parser.add_argument("--busy", action="store_true", help="one thread, and its time of the processor")
    args = parser.parse_args()
    only, clock = args.only or ["thresholds", "shares"], process_time if args.busy else perf_counter
    options = LoadOptions(
        args.model,
        context=512,
        device=args.device,
        ram_budget=args.ram_budget,
        threads=1 if args.busy else None,
    )
    with closing(load_model(options, lambda stage, progress: None, CancelToken())) as loaded:
        loaded.settle(CancelToken())
        if "thresholds" in only:
            print_thresholds(loaded, args.tokens, clock)
            print()
        if "shares" in only:
            print_shares(loaded, args.repetitions, clock)


def print_thresholds(loaded: LoadedModel, n_scored: int, clock: Clock) -> None:
    """The table of thresholds."""
    cancel = CancelToken()
    calibrate(loaded, shipped_text(loaded), n_scored, cancel, lambda share: None)
    choices = [SkipChoice(SkipRule.COSINE, threshold) for threshold in COSINES]
    choices += [SkipChoice(SkipRule.KL, threshold) for threshold in NATS]
    chosen = {choice: choose(loaded, choice) for choice in choices}
    timed = [frozenset(), *(skip or frozenset() for skip in chosen.values())]
    whole, *times = decode_step_times(loaded, timed, cancel, clock=clock)
    print("| threshold | blocks left out | KL | top-1 | perplexity | 95 % interval | speed |")
    print("|---|---|---|---|---|---|---|")
    for (choice, skip), seconds in zip(chosen.items(), times, strict=True):
        if skip is None:
            print(f"| {choice} | refused: everything | | | | | |")
            continue
        effect = None if loaded.calibration is None else loaded.calibration.effect(skip)
        if effect is None:
            print(f"| {choice} | 0 of {2 * loaded.info.n_layers} | 0 | 100 % | +0 % | | 1.00 |")
            continue
        change = (
            f"{effect.perplexity_change:+.1%} | {effect.perplexity_low:+.1%}..{effect.perplexity_high:+.1%}"
        )
        left_out = f"{len(skip)} of {2 * loaded.info.n_layers}"
        speed = f"{whole / seconds:.2f}"
        print(f"| {choice} | {left_out} | {effect.kl:.4f} | {effect.top1:.1%} | {change} | {speed} |")


def choose(loaded: LoadedModel, choice: SkipChoice) -> SkipSet | None:
    """The set of a choice, its effect measured; None where it is refused."""
    try:
        calibration = ensure_calibrated(loaded, choice, (), CancelToken(), lambda share: None)
        return chosen_set(calibration, choice)
    except EngineError:
        return None


def print_shares(loaded: LoadedModel, repetitions: int, clock: Clock) -> None:
    """How much of their share of the time blocks save that are left out, and whether that is enough."""
    n_layers = loaded.info.n_layers
    quarter, everything = n_layers // 4, range(n_layers)
    both, feed_forward = (0, 1), (1,)
    subsets = {
        "first quarter": (range(quarter), both),
        "middle quarter": (range((n_layers - quarter) // 2, (n_layers + quarter) // 2), both),
        "last quarter": (range(n_layers - quarter, n_layers), both),
        "every second": (range(0, n_layers, 2), both),
        "every second, feed-forward alone": (range(0, n_layers, 2), feed_forward),
    }
    sets = [blocks(everything, parts) for parts in (both, feed_forward)]
    sets += [blocks(layers, parts) for layers, parts in subsets.values()]
    times, saved = list[list[float]](), list[list[float]]()
    for _ in range(repetitions):
        # All blocks before each set and after it: what a set saves is small against what a machine does.
        beside = [NOTHING, *(skip for left_out in sets for skip in (left_out, NOTHING))]
        seconds = decode_step_times(loaded, beside, CancelToken(), clock=clock)
        whole, without = seconds[::2], seconds[1::2]
        saves = [
            (before + after) / 2 - step
            for before, step, after in zip(whole, without, whole[1:], strict=False)
        ]
        of_all = dict(zip((both, feed_forward), saves, strict=False))
        shares = [len(layers) / n_layers * of_all[parts] for layers, parts in subsets.values()]
        times.append([median(whole), *without])
        saved.append([save / share for save, share in zip(saves[2:], shares, strict=True)])
    ms = [median(of_set) * 1e3 for of_set in zip(*times, strict=True)]
    typical = [median(of_set) for of_set in zip(*saved, strict=True)]
    print("| layers left out | ms of a step | saved of their share |")
    print("|---|---|---|")
    for name, of_step in zip(("none", "all", "all, feed-forward alone"), ms, strict=False):
        print(f"| {name} | {of_step:.2f} | |")
    for (name, (layers, _)), of_step, share in zip(subsets.items(), ms[3:], typical, strict=True):
        print(f"| {name}, {len(layers)} of {n_layers} | {of_step:.2f} | {share:.0%} |")
    print()
    words = f"shares: {min(typical):.0%} of their share of the time at least, the mark is {LEAST_SAVED:.0%}"
    print(f"{words}: {'holds' if min(typical) >= LEAST_SAVED else 'MISSED'}")


def blocks(layers: Iterable[int], parts: Sequence[int]) -> SkipSet:
    """Attention (0), feed-forward (1) or both of these layers."""
    return frozenset(2 * layer + part for layer in layers for part in parts)


if __name__ == "__main__":
    main()
