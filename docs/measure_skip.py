"""Measure layer skip on a model: what thresholds leave out, what that changes, and what it brings.

    python docs/measure_skip.py MODEL [--device cpu] [--tokens 512] [--ram-budget 600M]

Prints a table of thresholds: blocks left out, KL, change in perplexity with its 95 % interval, top-1, speed
against all blocks. Then how much of their share of the time leaving layers out saves: the first, the middle
and the last quarter, and every second one; the share of a layer is what the layers take of a decode step,
divided by their number. Other work on the machine falsifies the figures.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from engine import CancelToken, EngineError, LoadOptions, SkipChoice, SkipRule, SkipSet, parse_budget  # noqa: E402
from engine.loading import LoadedModel, load_model  # noqa: E402
from engine.skipping.calibrate import calibrate, chosen_set, ensure_calibrated, shipped_text  # noqa: E402
from engine.skipping.calibration_report import decode_step_times  # noqa: E402

COSINES = (0.99, 0.98, 0.97, 0.96, 0.95, 0.9, 0.8)
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
    args = parser.parse_args()
    options = LoadOptions(args.model, context=512, device=args.device, ram_budget=args.ram_budget)
    with closing(load_model(options, lambda stage, progress: None, CancelToken())) as loaded:
        loaded.settle(CancelToken())
        print_thresholds(loaded, args.tokens)
        print()
        print_shares(loaded)


def print_thresholds(loaded: LoadedModel, n_scored: int) -> None:
    """The table of thresholds."""
    cancel = CancelToken()
    calibrate(loaded, shipped_text(loaded), n_scored, cancel, lambda share: None)
    choices = [SkipChoice(SkipRule.COSINE, threshold) for threshold in COSINES]
    choices += [SkipChoice(SkipRule.KL, threshold) for threshold in NATS]
    chosen = {choice: choose(loaded, choice) for choice in choices}
    timed = [frozenset(), *(skip or frozenset() for skip in chosen.values())]
    whole, *times = decode_step_times(loaded, timed, cancel)
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


def print_shares(loaded: LoadedModel) -> None:
    """How much of the layers' share of the time leaving some of them out saves."""
    n_layers = loaded.info.n_layers
    quarter = n_layers // 4
    subsets = {
        "first quarter": range(quarter),
        "middle quarter": range((n_layers - quarter) // 2, (n_layers + quarter) // 2),
        "last quarter": range(n_layers - quarter, n_layers),
        "every second": range(0, n_layers, 2),
    }
    sets = [frozenset(2 * layer + part for layer in layers for part in (0, 1)) for layers in subsets.values()]
    everything = frozenset(range(2 * n_layers))
    whole, rest, *times = decode_step_times(loaded, [frozenset(), everything, *sets], CancelToken())
    print("| layers left out | ms of a step | saved of their share |")
    print("|---|---|---|")
    print(f"| none | {whole * 1e3:.2f} | |")
    print(f"| all | {rest * 1e3:.2f} | |")
    for (name, layers), seconds in zip(subsets.items(), times, strict=True):
        share = len(layers) / n_layers * (whole - rest)
        print(
            f"| {name}, {len(layers)} of {n_layers} | {seconds * 1e3:.2f} | {(whole - seconds) / share:.0%} |"
        )


if __name__ == "__main__":
    main()
