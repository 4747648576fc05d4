"""Measure drafts: the figures of "Less work for a token" in PERFORMANCE.md, and a verdict on each mark.

    python docs/measure_speculation.py MODEL... [--only NAME...] [--device cpu] [--draft-model FILE] [--busy]

`cost`: scripted drafts that are right with probability 0.2, 0.5 and 0.8, 1 to 8 at a time: speed as the cost
model predicts it and as measured, by turns (mark: all within 10 %). `edit`: a source text is repeated with
one change, in replay (the ids of the reply are a script, every pass is real), and as the model itself goes on
(mark: in replay 2 times plain decoding). `prose`: n-grams on free text. `self`, `exit`, `resident` and
`model`: those drafters on free text. Of each, as many drafts as pay (mark: never below 0.97 of plain), and
three at a time, which is no mark. Drafted and plain replies go by turns, and what is told is the median of
the ratios of neighbours. On a quiet machine a part takes less than five minutes, for a small model one or
two; what `self` needs is measured before it, once, and kept in --cache-dir.

Other work on the machine falsifies the figures. With --busy one thread computes, and what counts is the time
that the processor has worked for this program: such ratios can be believed, but are those of one thread.
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
from time import perf_counter, process_time

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO), str(REPO / "docs")]

from scripted_drafts import ACCEPTANCES, COUNTS, Bench, Clock, cost_model  # noqa: E402

from app import locations  # noqa: E402
from engine.answer import answer  # noqa: E402
from engine.cancel import CancelToken  # noqa: E402
from engine.config import DecodingOptions, DraftKind, LoadOptions, Request, SamplingParams  # noqa: E402
from engine.drafting.ngram import NgramDrafter  # noqa: E402
from engine.drafting.step_costs import StepCosts  # noqa: E402
from engine.events import Reply  # noqa: E402
from engine.loading import LoadedModel, load_model  # noqa: E402
from engine.skipping.skip_choice import NOTHING  # noqa: E402
from engine.speculative import Way  # noqa: E402

STORY = "The keeper of the lighthouse had not spoken to anyone for eleven days when"
SAMPLINGS = {"greedy": SamplingParams(temperature=0), "drawn": SamplingParams(temperature=0.8, seed=1)}
FREE_TEXT = {
    "prose": DraftKind.NGRAM,
    "self": DraftKind.SELF,
    "exit": DraftKind.EXIT,
    "resident": DraftKind.RESIDENT,
    "model": DraftKind.MODEL,
}
REPLY = 128
"""Ids of a reply on free text."""
SOURCE, CHANGE = REPO / "engine" / "rope.py", ("n_positions", "n_rows")
TASK = """Call n_positions n_rows where it comes first.

```python
{text}
```

The whole file with the change:

```python
"""
EDITED = 320
"""Ids of the text that is repeated."""
LONG_ENOUGH_S, FEWEST = 60.0, 3
"""Of pairs of one figure: a large model has fewer of them."""
TOLERANCE, LEAST_EDIT, LEAST_FREE = 0.10, 2.0, 0.97
"""The marks."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Drafted against plain decoding of one text."""

    name: str
    tok_s: float
    plain_tok_s: float
    ratios: tuple[float, ...]
    """Of neighbouring replies."""
    drafted: int
    accepted: int
    least: float | None = None
    """Mark for the median ratio."""

    @property
    def ratio(self) -> float:
        """The median."""
        return median(self.ratios)

    def __str__(self) -> str:
        """For people."""
        taken = f"{self.accepted}/{self.drafted} taken" if self.drafted else "no drafts"
        speeds = f"{self.tok_s:7.1f} tok/s, plain {self.plain_tok_s:7.1f}, {self.ratio:.2f} times"
        return f"{self.name:34} {speeds} [{min(self.ratios):.2f}, {max(self.ratios):.2f}], {taken}"


@dataclass(frozen=True, slots=True)
class Measuring:
    """A loaded model and how it is measured."""

    loaded: LoadedModel
    clock: Clock
    pairs: int
    """Of replies with and without drafts."""
    turns: int
    """Of the cost model's cases."""

    def part(self, name: str) -> Iterator[tuple[str, str, dict[str, object]]]:
        """Lines of one part: what it is, in words, and as JSON; the last one is its verdict."""
        if name == "cost":
            yield from self._cost()
            return
        found = list[Figure]()
        for figure in self._edit() if name == "edit" else self._free(FREE_TEXT[name]):
            found.append(figure)
            yield "figure", str(figure), {**asdict(figure), "ratio": figure.ratio}
        marked = [figure for figure in found if figure.least is not None]
        missed = [figure for figure in marked if figure.ratio < (figure.least or 0)]
        least = min(marked, key=lambda figure: figure.ratio)
        words = f"{name}: {least.ratio:.3f} times plain at least, the mark is {least.least}"
        yield "verdict", f"{words}: {'MISSED' if missed else 'holds'}", {"holds": not missed}

    def _cost(self) -> Iterator[tuple[str, str, dict[str, object]]]:
        prompt = self.loaded.tokenizer.encode(STORY)
        cases = list(cost_model(self.loaded, prompt, self.turns, self.clock))
        for case in cases:
            words = (
                f"{case.tok_s:7.1f} tok/s, plain {case.plain_tok_s:7.1f}, predicted {case.ratio:.2f} of it"
            )
            name = f"cost, right with {case.acceptance}, k={case.k}"
            yield "figure", f"{name:34} {words}", {"name": name, **case._asdict()}
        near = [case for case in cases if abs(case.ratio - 1) <= TOLERANCE]
        farthest = max(cases, key=lambda case: abs(case.ratio - 1))
        words = f"cost: {len(near)} of {len(cases)} predictions within {TOLERANCE:.0%}"
        words += f", the farthest {farthest.ratio:.2f} of what was measured"
        holds = len(near) == len(ACCEPTANCES) * len(COUNTS)
        yield "verdict", f"{words}: {'holds' if holds else 'MISSED'}", {"holds": holds}

    def _edit(self) -> Iterator[Figure]:
        """A source text repeated with one change."""
        encode, drafter, costs = self.loaded.tokenizer.encode, NgramDrafter(), StepCosts()
        source = SOURCE.read_text("utf-8")
        changed = encode(source.replace(*CHANGE, 1))[:EDITED]
        text = self.loaded.tokenizer.decode(encode(source)[:EDITED])
        before = TASK.format(text=text)
        bench = Bench(self.loaded, encode(before), changed, self.clock)

        def replayed() -> tuple[float, int, int]:
            rate, counts = bench.run(Way(NOTHING, drafter, None, DraftKind.NGRAM), costs)
            return rate, counts.drafted, counts.accepted

        yield self._by_turns(
            "edit, replay, n-gram", lambda: bench.run(Way(), costs)[0], replayed, self.pairs, LEAST_EDIT
        )
        decoding = DecodingOptions(draft=DraftKind.NGRAM)
        yield self._asked("edit, greedy, n-gram", before, "greedy", decoding, self.pairs, None)

    def _free(self, kind: DraftKind) -> Iterator[Figure]:
        """Free text, greedy and drawn; with as many drafts as pay, and with three at a time."""
        for words in SAMPLINGS:
            for k, pairs, least in ((None, self.pairs, LEAST_FREE), (3, 2, None)):
                name = f"free text, {words}, {kind}, {f'k={k}' if k else 'as pays'}"
                self.loaded.costs = StepCosts()
                decoding = DecodingOptions(draft=kind, draft_k=k)
                yield self._asked(name, STORY, words, decoding, pairs, least)

    def _asked(
        self,
        name: str,
        prompt: str,
        sampling: str,
        decoding: DecodingOptions,
        pairs: int,
        least: float | None,
    ) -> Figure:
        """Replies in full, with their text, statistics and all."""

        def told(options: DecodingOptions) -> tuple[float, int, int]:
            request = Request(prompt=prompt, sampling=SAMPLINGS[sampling], decoding=options, max_tokens=REPLY)
            reply, start = Reply(request), self.clock()
            answer(self.loaded, reply, perf_counter(), lambda: None)
            stats = reply.stats
            rate = stats.completion_tokens / (self.clock() - start)
            return rate, stats.drafted_tokens, stats.accepted_tokens

        plain = DecodingOptions()
        return self._by_turns(name, lambda: told(plain)[0], lambda: told(decoding), pairs, least)

    def _by_turns(
        self,
        name: str,
        plain: Callable[[], float],
        drafted: Callable[[], tuple[float, int, int]],
        pairs: int,
        least: float | None,
    ) -> Figure:
        """Warm up both, and compare."""
        plain(), drafted()
        found, start = list[tuple[float, tuple[float, int, int]]](), perf_counter()
        while len(found) < pairs and (len(found) < FEWEST or perf_counter() - start < LONG_ENOUGH_S):
            found.append((plain(), drafted()))
        return Figure(
            name,
            median(run[0] for _, run in found),
            median(rate for rate, _ in found),
            tuple(run[0] / rate for rate, run in found),
            found[-1][1][1],
            found[-1][1][2],
            least,
        )


def parts_of(loaded: LoadedModel, only: Sequence[str]) -> list[str]:
    """What can be measured of what was asked for: a draft model has to be there."""
    return [name for name in only if name != "model" or loaded.draft is not None]


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--draft-model", type=Path)
    parser.add_argument("--cache-dir", type=Path, default=locations.cache_dir())
    parser.add_argument("--pairs", type=int, default=7, help="of replies with and without drafts")
    parser.add_argument("--turns", type=int, default=8, help="of the cost model's cases")
    parser.add_argument("--busy", action="store_true", help="one thread, and its time of the processor")
    names = ["cost", "edit", *FREE_TEXT]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    told = list[dict[str, object]]()
    for model in given.models:
        options = LoadOptions(
            model,
            context=2560,
            device=given.device,
            draft_model=given.draft_model,
            cache_dir=given.cache_dir,
            threads=1 if given.busy else None,
        )
        with closing(load_model(options, lambda stage, progress: None, CancelToken())) as loaded:
            loaded.settle(CancelToken())
            clock = process_time if given.busy else perf_counter
            measuring = Measuring(loaded, clock, given.pairs, given.turns)
            for name in parts_of(loaded, given.only):
                start = perf_counter()
                for what, words, facts in measuring.part(name):
                    took = f" ({perf_counter() - start:.0f} s)" if what == "verdict" else ""
                    print(f"{model.stem}: {words}{took}", flush=True)
                    told.append({"model": model.name, "part": name, "what": what, **facts})
    if given.json:
        given.json.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
