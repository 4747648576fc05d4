"""Measure drafts and blocks that are left out on a GPU: an edit task in replay, and streamed decoding.

    python docs/measure_less_work.py MODEL [--part edit] [--part stream] [--trials 5] [--out RESULTS.json]

edit: the model fits the GPU. The reply is a script, the text of the prompt with one change; every pass and
every draw is computed, and the id of the script is taken whatever was drawn. Plain steps draw by themselves,
since an id that is not the one drawn would make a step begun ahead worthless. The model's own greedy reply is
measured beside it.

stream: decode steps with every layer copied for every token, and with half of the layers on the GPU; with a
quarter of all layers left out, first as a draft would (blocks stay where they are), then as a reply would
(others take their place). The bound is what is copied without and with.

Figures are medians; each mark has a line that tells whether it holds. Other work on the machine falsifies
them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from app import locations  # noqa: E402
from engine.cancel import CancelToken  # noqa: E402
from engine.config import DraftKind, ExecutorChoice, LoadOptions, SamplingParams  # noqa: E402
from engine.drafting.ngram import NgramDrafter  # noqa: E402
from engine.drafting.step_costs import StepCosts  # noqa: E402
from engine.generate import generate, plainly  # noqa: E402
from engine.loading import LoadedModel, load_model  # noqa: E402
from engine.logits import Logits  # noqa: E402
from engine.model import Transformer  # noqa: E402
from engine.sampler import Sampler  # noqa: E402
from engine.session import Session  # noqa: E402
from engine.skipping.skip_choice import NOTHING, SkipSet  # noqa: E402
from engine.speculative import Speculation, Way  # noqa: E402
from engine.tiers.budget import Budget  # noqa: E402
from engine.tiers.wishes import parse_place  # noqa: E402

CANCEL = CancelToken()
GREEDY = SamplingParams(temperature=0)
SOURCE = REPO / "engine" / "rope.py"
CHANGE = ("n_positions", "n_rows")
TASK = f"Repeat this file, but call {CHANGE[0]} {CHANGE[1]} where it comes first:\n\n"
MOST_IDS = 400
"""Of the text that is repeated."""
CONTEXT = 2048
LEAST_EDIT_GPU, LEAST_EDIT_CPU, LEAST_STREAMED = 3.0, 2.0, 1.6
"""The marks: times plain decoding, and times decoding with all blocks."""


class Script:
    """Draws from logits as they are, and answers what is written."""

    def __init__(self, n_prompt: int, ids: Sequence[int]) -> None:
        """`ids` follow a prompt of so many."""
        self._n_prompt, self._ids, self._sampler = n_prompt, ids, Sampler(GREEDY)

    def __call__(self, logits: Logits, history: Sequence[int]) -> int:
        """The next id of the script."""
        self._sampler(logits, history)
        return self._ids[len(history) - self._n_prompt]

    def peek(self, logits: Logits, history: Sequence[int], ahead: int) -> int:
        """The same: nothing is drawn by chance here."""
        return self(logits, history)


@dataclass(frozen=True, slots=True)
class Run:
    """One reply."""

    tok_s: float
    """After the first id."""
    ids: list[int]
    drafted: int
    accepted: int


def reply(
    model: Transformer,
    session: Session,
    prompt: Sequence[int],
    draw: Any,
    n_tokens: int,
    costs: StepCosts,
    ways: Any = plainly,
) -> Run:
    """Answer from an empty cache."""
    session.cut(0)
    speculation, times, ids = Speculation(costs), [], []
    for token in generate(
        model,
        session,
        prompt,
        draw,
        max_tokens=n_tokens,
        stop_ids=frozenset(),
        chunk=model.backend.chunk,
        cancel=CANCEL,
        on_prefill=lambda n_done: None,
        ways=ways,
        speculation=speculation,
    ):
        times.append(perf_counter())
        ids.append(token.token_id)
    return Run((len(ids) - 1) / (times[-1] - times[0]), ids, speculation.drafted, speculation.accepted)


def measure_edit(loaded: LoadedModel, n_trials: int) -> dict[str, Any]:
    """Plain against drafted decoding of a text that the prompt has but for one change."""
    source = SOURCE.read_text(encoding="utf-8")
    text = loaded.tokenizer.encode(source)[:MOST_IDS]
    changed = loaded.tokenizer.encode(source.replace(*CHANGE, 1))[:MOST_IDS]
    prompt = [*loaded.tokenizer.encode(TASK), *text]
    model, session, costs = loaded.model, loaded.session, loaded.costs

    def series(draws: Any, k: int | None, drafts: bool) -> dict[str, Any]:
        runs = []
        for _ in range(n_trials + 1):  # graphs and what is known of costs come with the first one
            way = Way(drafter=NgramDrafter(), k=k, kind=DraftKind.NGRAM) if drafts else Way()
            ways = lambda way=way: way  # noqa: E731
            runs.append(reply(model, session, prompt, draws(), len(changed), costs, ways))
        runs = runs[1:]
        drafted, accepted = sum(run.drafted for run in runs), sum(run.accepted for run in runs)
        return {
            "tok_s": median(run.tok_s for run in runs),
            "all_tok_s": [run.tok_s for run in runs],
            "acceptance": accepted / drafted if drafted else None,
            "ids_per_pass": len(changed) / (len(changed) - accepted / len(runs)),
            "ids": runs[-1].ids,
        }

    greedy, script = (lambda: Sampler(GREEDY)), (lambda: Script(len(prompt), changed))
    plain = series(greedy, None, drafts=False)
    results: dict[str, Any] = {"prompt_ids": len(prompt), "reply_ids": len(changed), "plain": plain}
    for k in (None, 3, 7, 15, 23):
        results[f"replay k={k or 'chosen'}"] = found = series(script, k, drafts=True)
        assert found["ids"] == changed
        found["against_plain"] = found["tok_s"] / plain["tok_s"]
    results["greedy k=chosen"] = own = series(greedy, None, drafts=True)
    own["against_plain"] = own["tok_s"] / plain["tok_s"]
    own["same_ids"] = sum(a == b for a, b in zip(own["ids"], plain["ids"], strict=True)) / len(plain["ids"])
    for found in results.values():
        if isinstance(found, dict):
            del found["ids"]
    return results


def measure_streamed(
    model: Transformer, session: Session, skips: dict[str, SkipSet], n_steps: int, n_trials: int
) -> dict[str, Any]:
    """Decode steps with each set left out: passes alone, then with blocks where they are planned for it."""
    tiers = model.backend.tiers
    assert tiers is not None, "a GPU's weights have places"

    def steps(skip: SkipSet) -> dict[str, Any]:
        prompt, rates, copied = list(range(100, 108)), [], []
        for _ in range(n_trials + 1):
            way = Way(skip)
            before = tiers.stats.h2d_bytes
            run = reply(model, session, prompt, Sampler(GREEDY), n_steps, StepCosts(), lambda way=way: way)
            copied.append((tiers.stats.h2d_bytes - before) / n_steps)  # the prompt's pass is one of them
            rates.append(run.tok_s)
        return {
            "tok_s": median(rates[1:]),
            "all_tok_s": rates[1:],
            "h2d_bytes_per_step": median(copied[1:]),
        }

    results: dict[str, Any] = {"nothing": steps(NOTHING)}
    for name, skip in skips.items():
        results[f"{name}, passes alone"] = steps(skip)
        tiers.leave_out(skip)
        tiers.settle(CANCEL)
        results[f"{name}, others in their place"] = {
            **steps(skip),
            "predicted_tok_s": tiers.predicted_decode_tok_s,
        }
        tiers.leave_out(NOTHING)
        tiers.settle(CANCEL)
    whole = results["nothing"]
    for found in results.values():
        found["against_all"] = found["tok_s"] / whole["tok_s"]
        if found["h2d_bytes_per_step"]:
            found["bound"] = whole["h2d_bytes_per_step"] / found["h2d_bytes_per_step"]
    return results


def quarters(n_layers: int) -> dict[str, SkipSet]:
    """A quarter of the layers: every fourth one, and those at the end of the middle."""
    spread = {layer for layer in range(n_layers) if layer % 4 == 2}
    end = n_layers - n_layers // 8
    run = range(end - len(spread), end)
    return {
        "every fourth layer": frozenset(2 * layer + part for layer in spread for part in (0, 1)),
        "a run of a quarter of the layers": frozenset(2 * layer + part for layer in run for part in (0, 1)),
    }


def loaded_with(args: argparse.Namespace, **options: Any) -> LoadedModel:
    """The model, all of it where it is to stay."""
    loaded = load_model(
        LoadOptions(
            args.model,
            device=args.device,
            context=CONTEXT,
            rates_file=locations.rates_file(),
            cache_dir=locations.cache_dir(),
            **options,
        ),
        lambda stage, progress: None,
        CANCEL,
    )
    loaded.settle(CANCEL)
    return loaded


def tell(name: str, times: float, mark: float) -> None:
    """Say whether a mark holds."""
    print(
        f"{name}: {times:.2f} times, the mark is {mark}: {'holds' if times >= mark else 'MISSED'}", flush=True
    )


def main() -> None:
    """Measure the parts that are asked for, and keep the figures of each as soon as it is done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--part", action="append", choices=["edit", "stream"])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--steps", type=int, default=48, help="decode steps of a series of streamed ones")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, metavar="RESULTS")
    args = parser.parse_args()
    parts = args.part or ["edit", "stream"]
    results: dict[str, Any] = {"model": args.model.name}

    def keep(name: str, figures: dict[str, Any]) -> None:
        results[name] = figures
        print(json.dumps({name: figures}, indent=1), flush=True)
        if args.out:
            args.out.write_text(json.dumps(results, indent=1), encoding="utf-8")

    with closing(loaded_with(args)) as loaded:
        n_layers = loaded.model.config.n_layers
        results["backend"], results["reason"] = loaded.backend.name, loaded.backend.reason
        if "edit" in parts:
            edit = measure_edit(loaded, args.trials)
            keep("edit", edit)
            mark = LEAST_EDIT_CPU if args.device == "cpu" else LEAST_EDIT_GPU
            tell("edit, in replay, as many drafts as pay", edit["replay k=chosen"]["against_plain"], mark)
        tiers = loaded.backend.tiers
        shown = None if tiers is None else tiers.snapshot()
    if "stream" not in parts:
        return
    if shown is None or shown.gpu is None:
        sys.exit("streamed decoding is measured on a GPU")
    half = sum(block.n_bytes for block in shown.blocks if block.kind in ("attention", "feed_forward")) // 2
    ways: dict[str, dict[str, Any]] = {
        "every layer streamed": {"place": parse_place(f"blk.0-{n_layers - 1}=ram")},
        "half of the layers streamed": {"vram_budget": Budget(shown.vram_used_bytes - half)},
    }
    for name, options in ways.items():
        with closing(loaded_with(args, executor=ExecutorChoice.STREAM, **options)) as loaded:
            sets = quarters(n_layers)
            streamed = measure_streamed(loaded.model, loaded.session, sets, args.steps, args.trials)
            keep(name, streamed)
            if name != "every layer streamed":  # where a bound of 4 / 3 is all that there is
                best = max(found["against_all"] for found in streamed.values())
                tell(f"{name}, a quarter left out", best, LEAST_STREAMED)


if __name__ == "__main__":
    main()
