"""Replies whose ids are known beforehand, and drafts that are right as often as is wanted: all else is real.

What is drawn is a script, so that drafts can be right with any probability; every pass is computed, and its
logits are waited for. Knows one loaded model; does not know what is measured with it (`measure_speculation`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from math import log
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import numpy as np

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from engine.cancel import CancelToken  # noqa: E402
from engine.config import DraftKind  # noqa: E402
from engine.drafting.base import Drafter, Draw  # noqa: E402
from engine.drafting.step_costs import StepCosts  # noqa: E402
from engine.events import FinishReason  # noqa: E402
from engine.generate import generate  # noqa: E402
from engine.loading import LoadedModel  # noqa: E402
from engine.logits import Logits  # noqa: E402
from engine.skipping.skip_choice import NOTHING  # noqa: E402
from engine.speculative import Drawn, Speculation, Way  # noqa: E402

Clock = Callable[[], float]
"""Seconds."""

ACCEPTANCES = (0.2, 0.5, 0.8)
COUNTS = range(1, 9)
_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, without their whole parts, fill 0 to 1 more evenly than chance does."""
_ROUNDS = 8
"""Of one case in one turn."""
_LEARNED_AT = 0.6
"""Acceptance of the drafts that the passes are learned with."""


class Script:
    """Draws the ids of a reply that is known beforehand, whatever the logits; they are waited for."""

    def __init__(self, reply: Sequence[int], n_prompt: int) -> None:
        """Begin after so many ids."""
        self._reply, self._n_prompt = reply, n_prompt

    def __call__(self, logits: Logits, history: Sequence[int]) -> int:
        """Give the id of the script."""
        logits.all()
        return self._reply[len(history) - self._n_prompt]

    def peek(self, logits: Logits, history: Sequence[int], ahead: int) -> int:
        """Looking up peeks at nothing."""
        raise AssertionError


class ForcedDrafter:
    """Proposes the ids of a script, as many of them right in a row as drafts of an acceptance are.

    How many are right in a round is drawn evenly instead of by chance: some tens of rounds then gain what the
    acceptance promises, and what is left between prediction and measurement is the cost model's.
    """

    computes = True  # asked for as many as are verified

    def __init__(self, reply: Sequence[int], n_prompt: int, acceptance: float) -> None:
        """Right with this probability where those before it were, above 0 and below 1."""
        self._reply, self._n_prompt, self._acceptance = reply, n_prompt, acceptance
        self._drawn = 0

    def draft(self, ids: Sequence[int], n_most: int, draw: Draw, cancel: CancelToken) -> list[int]:
        """Propose `n_most` ids."""
        self._drawn += 1
        n_right = int(log(self._drawn * _GOLDEN % 1) / log(self._acceptance))
        start = len(ids) - self._n_prompt
        follows = self._reply[start : start + n_most]
        return [token_id if place < n_right else token_id ^ 1 for place, token_id in enumerate(follows)]


class Bench:
    """A loaded model, a prompt, and a script of what follows it."""

    def __init__(
        self, loaded: LoadedModel, prompt: Sequence[int], reply: Sequence[int], clock: Clock
    ) -> None:
        """The session holds all of the prompt but its last id from the first run on."""
        self.n_prompt = len(prompt)
        self._loaded, self._prompt, self._reply, self._clock = loaded, list(prompt), list(reply), clock

    def run(self, way: Way, costs: StepCosts) -> tuple[float, Speculation]:
        """Decode the script -> tokens per second, and counts."""
        speculation = Speculation(costs, self._clock)
        drawn = self._begin(way, speculation)
        next(drawn)
        start = self._clock()
        n_ids = sum(1 for _ in drawn)
        return n_ids / (self._clock() - start), speculation

    def rounds(self, way: Way, costs: StepCosts, n_rounds: int) -> tuple[list[float], list[int]]:
        """Decode so many rounds after the first one -> seconds and ids of each."""
        starts = _Starts(way, self._clock)
        drawn = self._begin(starts.next, Speculation(costs, self._clock))
        while len(starts.times) < n_rounds + 2:
            next(drawn)
            starts.n_ids += 1
        drawn.close()
        return np.diff(starts.times[1:]).tolist(), np.diff(starts.ids[1:]).tolist()

    def _begin(
        self, way: Way | Callable[[], Way], speculation: Speculation
    ) -> Generator[Drawn, None, FinishReason]:
        session = self._loaded.session
        n_kept = session.rewind(self._prompt)
        return generate(
            self._loaded.model,
            session,
            self._prompt[n_kept:],
            Script(self._reply, self.n_prompt),
            max_tokens=len(self._reply),
            stop_ids=frozenset(),
            chunk=self._loaded.chunk,
            cancel=CancelToken(),
            on_prefill=lambda n_done: None,
            ways=(lambda: way) if isinstance(way, Way) else way,
            speculation=speculation,
        )


class _Starts:
    """When rounds began; asked for the way before each of them, and for the prompt's first."""

    def __init__(self, way: Way, clock: Clock) -> None:
        self.times: list[float] = []
        self.ids: list[int] = []
        self.n_ids = 0
        """Drawn so far."""
        self._way, self._clock = way, clock

    def next(self) -> Way:
        """Note the beginning of a round."""
        self.times.append(self._clock())
        self.ids.append(self.n_ids)
        return self._way


class Case(NamedTuple):
    """The cost model against the clock, for one acceptance and count."""

    acceptance: float
    k: int
    ratio: float
    """Predicted speed over measured, the median of the turns."""
    tok_s: float
    """As measured."""
    plain_tok_s: float
    """Of plain steps beside it."""
    ids_per_round: float


def cost_model(loaded: LoadedModel, prompt: Sequence[int], n_turns: int, clock: Clock) -> Iterator[Case]:
    """Predicted and measured speed for each acceptance and count.

    What passes, drafts and draws cost is learned, in each turn and for each count, right beside the rounds
    that are predicted from it, and from other rounds than those. A round takes what the median one of its
    turn does: other work on the machine lengthens some of them.
    """
    reply = np.random.default_rng(1).integers(10, loaded.info.vocab_size - 10, 256).tolist()
    bench, kind = Bench(loaded, prompt, reply, clock), DraftKind.NGRAM
    keys = [(acceptance, k) for k in COUNTS for acceptance in ACCEPTANCES]
    drafters = {key: ForcedDrafter(reply, len(prompt), key[0]) for key in keys}
    learning = ForcedDrafter(reply, len(prompt), _LEARNED_AT)
    costs, aside = ({k: StepCosts() for k in COUNTS} for _ in range(2))
    predicted: dict[tuple[float, int], list[float]] = {key: [] for key in keys}
    seconds: dict[tuple[float, int], list[float]] = {key: [] for key in keys}
    gained: dict[tuple[float, int], list[int]] = {key: [] for key in keys}
    plain_s: dict[int, list[float]] = {k: [] for k in COUNTS}

    def way(drafter: Drafter, k: int) -> Way:
        return Way(NOTHING, drafter, k, kind)

    for turn in range(n_turns + 1):  # the first one only warms up
        for k in COUNTS:
            known = costs[k]
            if not turn:
                bench.rounds(Way(), aside[k], _ROUNDS)  # without it nothing is drafted
            bench.rounds(Way(), known, _ROUNDS)
            bench.rounds(way(learning, k), known, _ROUNDS // 2)
            for acceptance in ACCEPTANCES:
                times, ids = bench.rounds(way(drafters[acceptance, k], k), aside[k], _ROUNDS)
                if turn:
                    seconds[acceptance, k].append(median(times))
                    gained[acceptance, k] += ids
            bench.rounds(way(learning, k), known, _ROUNDS // 2)  # as many after them as before
            for acceptance in ACCEPTANCES if turn else ():
                known.record(kind).saw(round(10_000 * acceptance), round(10_000 * (1 - acceptance)))
                gain = known.gain(NOTHING, kind, k)
                assert gain is not None, "the turn before has measured both"
                predicted[acceptance, k].append(gain / known.plain_step_s(NOTHING))
            plain_s[k].append(known.plain_step_s(NOTHING))
    for acceptance in ACCEPTANCES:
        for k in COUNTS:
            key = acceptance, k
            ids_per_round = mean(gained[key])
            turns = zip(predicted[key], seconds[key], strict=True)
            ratio = median(promised * of_round / ids_per_round for promised, of_round in turns)
            tok_s = ids_per_round / median(seconds[key])
            yield Case(acceptance, k, ratio, tok_s, 1 / median(plain_s[k]), ids_per_round)
