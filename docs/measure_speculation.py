"""Measure drafts on a model: the figures of "Less work for a token" in PERFORMANCE.md.

    python docs/measure_speculation.py MODEL [--device cpu] [--draft-model FILE] [--only NAME ...]

`cost`: scripted drafts that are right with probability 0.2, 0.5 and 0.8, 1 to 8 at a time: speed as the cost
model predicts it from the passes of another run, and as measured. `edit`: a source text is repeated with one
change, in replay (the ids of the reply are a script, every pass is real), and as the model itself goes on.
`prose`: free text. `self`, `exit`, `resident` and `model`: those drafters on free text, with three drafts at
a time, and with as many as pay. Drafted and plain runs go by turns, and what is told is the median of the
ratios of neighbours. Other work on the machine falsifies the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from engine.answer import answer  # noqa: E402
from engine.cancel import CancelToken  # noqa: E402
from engine.config import DecodingOptions, DraftKind, LoadOptions, Request, SamplingParams  # noqa: E402
from engine.drafting.base import Draw  # noqa: E402
from engine.drafting.ngram import NgramDrafter  # noqa: E402
from engine.drafting.step_costs import StepCosts  # noqa: E402
from engine.events import Reply  # noqa: E402
from engine.generate import generate  # noqa: E402
from engine.loading import LoadedModel, load_model  # noqa: E402
from engine.logits import Logits  # noqa: E402
from engine.skipping.skip_choice import NOTHING  # noqa: E402
from engine.speculative import Speculation, Way  # noqa: E402

STORY = "The keeper of the lighthouse had not spoken to anyone for eleven days when"
GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    name: str
    tok_s: float
    plain_tok_s: float
    ratio: float
    """Median over neighbouring runs."""
    drafted: int = 0
    accepted: int = 0
    predicted: float | None = None
    """Tokens per second."""

    def __str__(self) -> str:
        """For people."""
        taken = f"{self.accepted}/{self.drafted} taken" if self.drafted else "no drafts"
        told = f", predicted {self.predicted:.1f} tok/s" if self.predicted else ""
        speeds = f"{self.tok_s:7.1f} tok/s, plain {self.plain_tok_s:7.1f}, {self.ratio:.2f} times"
        return f"{self.name:34} {speeds}, {taken}{told}"


class Script:
    """Draws the ids of a reply that is known beforehand, whatever the logits; they are waited for."""

    def __init__(self, reply: Sequence[int], n_prompt: int) -> None:
        """Begin after so many ids."""
        self._reply, self._n_prompt = reply, n_prompt

    def __call__(self, logits: Logits, history: Sequence[int]) -> int:
        """Draw greedily, and give the id of the script."""
        logits.all()
        return self._reply[len(history) - self._n_prompt]

    def guess(self, logits: Logits, history: Sequence[int], ahead: int) -> int:
        """Looking up guesses nothing."""
        raise AssertionError


class ScriptedDrafter:
    """Proposes the ids of a script, each right with a probability."""

    computes = True  # asked for as many as are verified

    def __init__(self, reply: Sequence[int], n_prompt: int, acceptance: float) -> None:
        """Fixed seed."""
        self._reply, self._n_prompt, self._acceptance = reply, n_prompt, acceptance
        self._rng = np.random.default_rng(0)

    def draft(self, ids: Sequence[int], n_most: int, draw: Draw, cancel: CancelToken) -> list[int]:
        """Propose `n_most` ids."""
        start = len(ids) - self._n_prompt
        rights = self._rng.random(n_most) < self._acceptance
        follows = self._reply[start : start + n_most]
        return [token_id if right else token_id ^ 1 for token_id, right in zip(follows, rights, strict=False)]


class Bench:
    """A loaded model, a prompt, and a script of what follows it."""

    def __init__(self, loaded: LoadedModel, prompt: Sequence[int], reply: Sequence[int]) -> None:
        """The session holds all of the prompt but its last id from the first run on."""
        self._loaded, self._prompt, self._reply = loaded, list(prompt), list(reply)

    def run(self, way: Way, costs: StepCosts) -> tuple[float, Speculation]:
        """Decode the script -> tokens per second, and counts."""
        session, speculation = self._loaded.session, Speculation(costs)
        n_kept = session.rewind(self._prompt)
        drawn = generate(
            self._loaded.model,
            session,
            self._prompt[n_kept:],
            Script(self._reply, len(self._prompt)),
            max_tokens=len(self._reply),
            stop_ids=frozenset(),
            chunk=self._loaded.chunk,
            cancel=CancelToken(),
            on_prefill=lambda n_done: None,
            ways=lambda: way,
            speculation=speculation,
        )
        next(drawn)
        start = perf_counter()
        n_ids = sum(1 for _ in drawn)
        return n_ids / (perf_counter() - start), speculation


def by_turns(
    name: str,
    plain: Callable[[], float],
    drafted: Callable[[], tuple[float, int, int]],
    repetitions: int,
) -> Figure:
    """Warm up both, and compare."""
    plain(), drafted()
    pairs = [(plain(), drafted()) for _ in range(repetitions)]
    return Figure(
        name,
        median(run[0] for _, run in pairs),
        median(rate for rate, _ in pairs),
        median(run[0] / rate for rate, run in pairs),
        pairs[-1][1][1],
        pairs[-1][1][2],
    )


def cost_model(loaded: LoadedModel, repetitions: int) -> Iterator[Figure]:
    """Predicted and measured speed for each acceptance and number of drafts."""
    prompt = loaded.tokenizer.encode(STORY)
    reply = np.random.default_rng(1).integers(10, loaded.info.vocab_size - 10, 160).tolist()
    bench, costs = Bench(loaded, prompt, reply), StepCosts()
    kind = DraftKind.NGRAM

    def way(acceptance: float, k: int) -> Way:
        return Way(NOTHING, ScriptedDrafter(reply, len(prompt), acceptance), k, kind)

    plain_tok_s = [bench.run(Way(), costs)[0] for _ in range(repetitions + 1)]
    for k in range(1, 9):  # what passes cost, with other drafts than those that are predicted
        bench.run(way(0.6, k), costs)
    for acceptance in (0.2, 0.5, 0.8):
        for k in range(1, 9):
            record = costs.record(kind)
            record.saw(round(10_000 * acceptance), round(10_000 * (1 - acceptance)))
            predicted = costs.gains(NOTHING, kind, k)[-1] / costs.plain_step_s(NOTHING)
            runs = [bench.run(way(acceptance, k), StepCosts())[0] for _ in range(repetitions)]
            counts = bench.run(way(acceptance, k), StepCosts())[1]
            plain = median(plain_tok_s)
            yield Figure(
                f"cost a={acceptance} k={k}",
                median(runs),
                plain,
                median(runs) / plain,
                counts.drafted,
                counts.accepted,
                predicted,
            )


def edit(loaded: LoadedModel, repetitions: int) -> Iterator[Figure]:
    """A source text repeated with one change."""
    source = (REPO / "engine" / "session.py").read_text("utf-8")[700:3200]
    changed = source.replace("limit", "end")
    before = (
        f"Rename a variable.\n\n```python\n{source}\n```\n\nThe whole file with the change:\n\n```python\n"
    )
    prompt, reply = loaded.tokenizer.encode(before), loaded.tokenizer.encode(changed)
    bench, costs = Bench(loaded, prompt, reply), StepCosts()
    drafter = NgramDrafter()

    def replayed() -> tuple[float, int, int]:
        rate, counts = bench.run(Way(NOTHING, drafter, None, DraftKind.NGRAM), costs)
        return rate, counts.drafted, counts.accepted

    yield by_turns("edit, replay, n-gram", lambda: bench.run(Way(), costs)[0], replayed, repetitions)
    yield _asked(
        loaded, "edit, greedy, n-gram", before, GREEDY, DecodingOptions(draft=DraftKind.NGRAM), repetitions
    )


def _asked(
    loaded: LoadedModel,
    name: str,
    prompt: str,
    sampling: SamplingParams,
    decoding: DecodingOptions,
    repetitions: int,
) -> Figure:
    """Replies by turns, in full: with their text, statistics and all."""

    def stats(options: DecodingOptions) -> tuple[float, int, int]:
        request = Request(prompt=prompt, sampling=sampling, decoding=options, max_tokens=200)
        reply = Reply(request)
        answer(loaded, reply, perf_counter(), lambda: None)
        return reply.stats.decode_tok_s, reply.stats.drafted_tokens, reply.stats.accepted_tokens

    return by_turns(name, lambda: stats(DecodingOptions())[0], lambda: stats(decoding), repetitions)


def prose(loaded: LoadedModel, kind: DraftKind, repetitions: int) -> Iterator[Figure]:
    """Free text, greedy and drawn; with three drafts at a time, and with as many as pay."""
    for words, sampling in (
        ("greedy", GREEDY),
        ("drawn", SamplingParams(temperature=0.8, seed=1)),
    ):
        for k in (None, 3):
            name = f"prose, {words}, {kind}, {'as pays' if k is None else f'k={k}'}"
            loaded.costs = StepCosts()
            yield _asked(loaded, name, STORY, sampling, DecodingOptions(draft=kind, draft_k=k), repetitions)


def figures(loaded: LoadedModel, only: Sequence[str], repetitions: int) -> Iterator[Figure]:
    """All that was asked for, as they come."""
    if "cost" in only:
        yield from cost_model(loaded, repetitions)
    if "edit" in only:
        yield from edit(loaded, repetitions)
    kinds = {"prose": DraftKind.NGRAM, "self": DraftKind.SELF, "exit": DraftKind.EXIT}
    kinds |= {"resident": DraftKind.RESIDENT, "model": DraftKind.MODEL}
    for name, kind in kinds.items():
        if name in only and (kind is not DraftKind.MODEL or loaded.draft is not None):
            yield from prose(loaded, kind, repetitions)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--draft-model", type=Path)
    parser.add_argument("--cache-dir", type=Path, help="where the calibration is kept")
    parser.add_argument("--repetitions", type=int, default=5)
    names = ["cost", "edit", "prose", "self", "exit", "resident", "model"]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    options = LoadOptions(
        given.model,
        context=2560,
        device=given.device,
        draft_model=given.draft_model,
        cache_dir=given.cache_dir,
    )
    told = []
    with closing(load_model(options, lambda stage, progress: None, CancelToken())) as loaded:
        loaded.settle(CancelToken())
        for figure in figures(loaded, given.only, given.repetitions):
            print(figure, flush=True)
            told.append(asdict(figure))
    if given.json:
        given.json.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
