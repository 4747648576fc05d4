"""Replies with drafts on the CUDA backend, emulated and on a GPU: those without, and what drafts may cost."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.config import DraftKind, ExecutorChoice, SamplingParams
from engine.drafting.base import Drafter
from engine.drafting.ngram import NgramDrafter
from engine.drafting.own_blocks import OwnBlocks
from engine.drafting.step_costs import StepCosts
from engine.generate import generate
from engine.model import Transformer
from engine.sampler import Sampler
from engine.session import Session
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.speculative import Speculation, Way
from engine.tiers.wishes import parse_place
from kernels.cuda.device import Device
from kernels.quant_types import QuantType
from tests.engine.cuda_models import Borrowed, opened_on
from tests.engine.test_cuda_mixed import tiers_of
from tests.tiny_gguf import write_tiny_model

PROMPT = [int(i) for i in np.random.default_rng(11).integers(3, 40, 14)]
GO_ON = CancelToken()
GREEDY = SamplingParams(temperature=0)
CHANCE = SamplingParams(seed=3, temperature=0.9, top_k=30, repeat_penalty=1.2)
ALONE, SHARED = 2e-3, 4e-2
"""Tolerances: shares of the largest logit, the second where the processor rounds activations to 8 bits."""
N_TOKENS = 12
PLACES = {"whole": "", "streamed": "blk.0-2.ffn=ram", "the head in memory": "blk.1=ram,head=ram"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(
        tmp_path_factory.mktemp("drafts") / "m.gguf", quant_type=QuantType.Q4_K, layers=3, tied=True
    )


def measured() -> StepCosts:
    """Costs that know a plain step, so that drafts are begun with at once."""
    costs = StepCosts()
    for skip in (NOTHING, frozenset({3})):
        for _ in range(3):
            costs.passes(skip).add(1, 1e-3)
    return costs


class Wild:
    """Proposes at random."""

    computes = False

    def __init__(self) -> None:
        self._rng = np.random.default_rng(2)

    def draft(self, ids: object, n_most: int, draw: object, cancel: object) -> list[int]:
        return [int(i) for i in self._rng.integers(3, 40, n_most)]


def reply(
    model: Transformer,
    params: SamplingParams,
    drafter: Callable[[Session], Drafter | None],
    k: int = 4,
    skip: SkipSet = NOTHING,
) -> tuple[list[int], Speculation, Session]:
    session, speculation = Session(model.backend.new_kv(64)), Speculation(measured())
    way = Way(skip, drafter(session), k, DraftKind.SELF)
    drawn = generate(
        model,
        session,
        PROMPT,
        Sampler(params),
        max_tokens=N_TOKENS,
        stop_ids=frozenset(),
        chunk=16,
        cancel=GO_ON,
        on_prefill=lambda n_done: None,
        ways=lambda: way,
        speculation=speculation,
    )
    return [token.token_id for token in drawn], speculation, session


@pytest.mark.parametrize("skip", [NOTHING, frozenset({3})], ids=["all", "some"])
@pytest.mark.parametrize("place", PLACES)
def test_replies_with_drafts_are_those_without(device: Device, path: Path, place: str, skip: SkipSet) -> None:
    options: dict[str, Any] = {"place": parse_place(PLACES[place])} if PLACES[place] else {}
    tolerance = SHARED if "head" in PLACES[place] else ALONE
    with opened_on(device, path, executor=ExecutorChoice.STREAM, **options) as model:
        far = frozenset(range(6)) - tiers_of(model).near
        drafters: dict[str, Callable[[Session], Drafter]] = {
            "n-gram": lambda session: NgramDrafter(),
            "wild": lambda session: Wild(),
            "itself": lambda session: OwnBlocks(model, session, skip),
            "self": lambda session: OwnBlocks(model, session, skip | {1, 4}),
            "resident": lambda session: OwnBlocks(model, session, skip | far),
        }
        if skip or place != "whole":  # the emulator takes seconds for each
            drafters = {name: drafters[name] for name in ("self", "resident")}
        for params in (CHANCE,) if place == "streamed" else (GREEDY,):
            expected, _, plain = reply(model, params, lambda session: None, skip=skip)
            step_after = functools.partial(model.hidden, [5], len(plain.ids))
            after = model.logits(step_after(plain.kv, GO_ON, skip), GO_ON)
            for name, drafter in drafters.items():
                ids, speculation, session = reply(model, params, drafter, skip=skip)
                assert ids == expected, name
                assert name == "n-gram" or speculation.drafted > 0
                if name == "itself":
                    assert speculation.accepted == speculation.drafted
                # What is in the cache is what plain steps have put there, but for how sums are rounded.
                session.cut(len(plain.ids))
                assert session.ids == plain.ids
                ours = model.logits(model.hidden([5], len(session.ids), session.kv, GO_ON, skip), GO_ON)
                np.testing.assert_allclose(ours, after, atol=tolerance * np.max(np.abs(after)))


def test_drafts_with_resident_blocks_copy_nothing_more(device: Device, path: Path) -> None:
    place = parse_place("blk.0-2.ffn=ram")
    with opened_on(device, path, executor=ExecutorChoice.STREAM, place=place) as model:
        tiers = tiers_of(model)
        far = frozenset(range(6)) - tiers.near
        n_bytes = sum(tiers.where.host.layer_blocks[number].n_bytes for number in far)
        # A first reply fills the ring, which stays filled.
        reply(model, GREEDY, lambda session: OwnBlocks(model, session, far))
        before, passes = tiers.stats.h2d_bytes, 0
        hidden = Transformer.hidden

        class Counting(Transformer):
            def hidden(self, token_ids, start_pos, kv, cancel, skip=NOTHING):  # type: ignore[no-untyped-def]
                nonlocal passes
                passes += not skip
                return hidden(self, token_ids, start_pos, kv, cancel, skip)

        counted = Counting(model.config, model.backend)
        _, speculation, _ = reply(counted, GREEDY, lambda session: OwnBlocks(counted, session, far))
        assert speculation.drafted > 0
        assert tiers.stats.h2d_bytes - before == passes * n_bytes


def test_rows_are_drawn_from_with_one_wait(device: Device, path: Path) -> None:
    """Greedy draws of several rows are put on the GPU together."""
    watched = Borrowed(device)
    with opened_on(watched, path) as model:
        hidden = model.hidden(PROMPT[:6], 0, model.backend.new_kv(64), GO_ON)
        rows, draw = model.each_logits(hidden, GO_ON), Sampler(GREEDY)
        watched.launches.clear()
        first = draw(rows[0], PROMPT[:1])
        assert watched.launches == ["sample_greedy"] * 6
        others = [draw(row, PROMPT[: n + 2]) for n, row in enumerate(rows[1:])]
        assert watched.launches == ["sample_greedy"] * 6
        expected = np.argmax(model.logits(hidden, GO_ON), axis=-1)
        assert [first, *others] == expected.tolist()
