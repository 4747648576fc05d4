"""With drafts the next id has the distribution that it has without: chi-square over many draws.

Fixed seeds. A rule that accepts drafts because they are probable enough fails the same test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import erfc, log, sqrt

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.config import DraftKind, SamplingParams
from engine.drafting.base import Draw
from engine.drafting.step_costs import StepCosts
from engine.generate import generate
from engine.logits import Logits
from engine.sampler import Sampler
from engine.session import Session
from engine.speculative import Drawn, Speculation, Way
from tests.engine.chain_model import DRAFTERS, N_IDS, ChainModel, drafter_of, probabilities

DRAWS = 20_000
LEAST_P = 0.001
CHAIN = SamplingParams(temperature=0.9, top_k=5, min_p=0.03, top_p=1.0)
PROMPT = [1, 2, 3, 1, 2]
REPLY = 70


class Lenient(Speculation):
    """Accepts each draft that is a quarter as probable as the best id: wrong, as speed at any price is."""

    def accept(
        self,
        rows: Sequence[Logits],
        drafts: Sequence[int],
        draw: Draw,
        session: Session,
        stop_ids: frozenset[int],
    ) -> list[Drawn]:
        def lenient(logits: Logits, history: Sequence[int]) -> int:
            drawn, at = draw(logits, history), len(history) - start
            values = logits.all()
            # At this temperature: a share of the best one's probability is a distance of logits.
            near = at < len(drafts) and values[drafts[at]] >= values.max() + CHAIN.temperature * log(0.25)
            return drafts[at] if near else drawn

        start = len(session.ids)
        return super().accept(rows, drafts, lenient, session, stop_ids)  # type: ignore[arg-type]


def p_value(kind: str, rule: type[Speculation], n_draws: int) -> float:
    """How probable it is that draws differ so much or more from the model's distribution by chance."""
    model, rng = ChainModel(), np.random.default_rng(1)
    counts = np.zeros((N_IDS, N_IDS, N_IDS))
    n_accepted = 0
    costs = StepCosts()
    for _ in range(2):  # so that drafts need not wait for a plain step
        costs.passes(frozenset()).add(1, 1.0)
    seed = 0
    while counts.sum() < n_draws:
        seed += 1
        session = model.new_session()
        drafter = drafter_of(kind, model, session, seed)
        drawn = generate(
            model,  # type: ignore[arg-type]
            session,
            PROMPT,
            Sampler(replace(CHAIN, seed=seed)),
            max_tokens=REPLY,
            stop_ids=frozenset(),
            chunk=32,
            cancel=CancelToken(),
            on_prefill=lambda n_done: None,
            ways=lambda: Way(drafter=drafter, k=int(rng.integers(1, 5)), kind=DraftKind.SELF),  # noqa: B023
            speculation=rule(costs),
        )
        ids = list(PROMPT)
        for token in drawn:
            counts[ids[-2], ids[-1], token.token_id] += 1
            n_accepted += token.from_draft
            ids.append(token.token_id)
    assert n_accepted > n_draws / 20
    return chi_square_p(counts, model)


def chi_square_p(counts: np.ndarray, model: ChainModel) -> float:
    """Over all pairs of last ids together; ids that are expected less than five times are one."""
    statistic, freedom = 0.0, 0
    for before in range(N_IDS):
        for last in range(N_IDS):
            seen = counts[before, last]
            expected = probabilities(model.table(frozenset())[before, last], CHAIN) * seen.sum()
            if np.any(seen[expected == 0]):
                return 0.0  # what can never be drawn was
            rare = expected < 5
            seen = np.append(seen[~rare], seen[rare].sum())
            expected = np.append(expected[~rare], expected[rare].sum())
            possible = expected > 0
            statistic += float(np.sum((seen - expected)[possible] ** 2 / expected[possible]))
            freedom += int(possible.sum()) - 1
    # Wilson and Hilferty 1931: the cube root of a chi-square is nearly normal.
    spread = 2 / (9 * freedom)
    return erfc(((statistic / freedom) ** (1 / 3) - 1 + spread) / sqrt(spread) / sqrt(2)) / 2


@pytest.mark.parametrize("kind", DRAFTERS)
def test_the_next_id_has_the_distribution_of_the_model(kind: str) -> None:
    assert p_value(kind, Speculation, DRAWS) > LEAST_P


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_wrong_rule_of_acceptance_is_found_out(kind: str) -> None:
    assert p_value(kind, Lenient, DRAWS // 4) < LEAST_P
