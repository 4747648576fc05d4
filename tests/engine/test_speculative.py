"""Drafts change no reply: on the C kernels ids and cache are those of plain steps, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cancel import CancelToken
from engine.config import DraftKind, SamplingParams
from engine.drafting.base import Drafter, Draw
from engine.drafting.draft_model import DraftModel
from engine.drafting.ngram import NgramDrafter
from engine.drafting.own_blocks import OwnBlocks
from engine.drafting.step_costs import StepCosts
from engine.errors import CancelledError
from engine.events import FinishReason
from engine.generate import generate, prefill
from engine.model import Transformer
from engine.sampler import Sampler
from engine.session import Session
from engine.skipping.skip_choice import NOTHING
from engine.speculative import Speculation, Way
from kernels.quant_types import QuantType
from tests.engine.chain_model import DRAFTERS, ChainModel, ScriptedDrafter, drafter_of
from tests.tiny_gguf import write_tiny_model

GREEDY = SamplingParams(temperature=0)
N_PROMPTS, REPLY, CONTEXT = 100, 20, 64


def ready_costs() -> StepCosts:
    """With a plain step measured: none is needed to compare drafts with."""
    costs = StepCosts()
    for skip in (NOTHING, frozenset({1}), frozenset({0, 1})):
        for _ in range(2):
            costs.passes(skip).add(1, 1.0)
    return costs


def run(
    model: Any,
    session: Session,
    prompt: Sequence[int],
    params: SamplingParams = GREEDY,
    *,
    ways: Callable[[], Way] = Way,
    max_tokens: int | None = REPLY,
    stop_ids: frozenset[int] = frozenset(),
    cancel: CancelToken | None = None,
    speculation: Speculation | None = None,
) -> tuple[list[int], FinishReason]:
    drawn = generate(
        model,
        session,
        prompt,
        Sampler(params),
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        chunk=32,
        cancel=cancel or CancelToken(),
        on_prefill=lambda n_done: None,
        ways=ways,
        speculation=speculation or Speculation(ready_costs()),
    )
    ids = []
    while True:
        try:
            ids.append(next(drawn).token_id)
        except StopIteration as end:
            return ids, end.value


def positions(session: Session) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of the session's ids in a cache of the C kernels (layout: `kernels.cpu.kv_arrays`)."""
    kv: Any = session.kv
    layers, heads, tiles, width, tile = kv.keys.shape
    keys = kv.keys.transpose(0, 1, 2, 4, 3).reshape(layers, heads, tiles * tile, width)
    values = kv.values.reshape(layers, heads, tiles * tile, width)
    n = len(session.ids)
    return keys[:, :, :n], values[:, :, :n]


def assert_same_cache(one: Session, other: Session) -> None:
    assert one.ids == other.ids
    for ours, theirs in zip(positions(one), positions(other), strict=True):
        assert np.array_equal(ours, theirs)


def prompts() -> Iterator[list[int]]:
    """Some of them full of repetitions, so that looking up finds something."""
    rng = np.random.default_rng(4)
    for _ in range(N_PROMPTS):
        piece = rng.integers(3, 320, int(rng.integers(1, 9))).tolist()
        yield (piece * 5)[: int(rng.integers(1, 30))]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Transformer, Transformer]]:
    """A tiny model on the C kernels, and one that is nearly the same."""
    pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")
    from tests.engine.tiers.opened import opened

    folder = tmp_path_factory.mktemp("speculative")
    sizes: dict[str, Any] = {"layers": 3, "ffn_size": 256}
    path = write_tiny_model(folder / "whole.gguf", quant_type=QuantType.Q8_0, **sizes)
    near = write_tiny_model(folder / "near.gguf", quant_type=QuantType.Q4_0, **sizes)
    with opened(path) as model, opened(near) as other:
        yield model, other


def real_drafter(kind: str, models: tuple[Transformer, Transformer], session: Session, seed: int) -> Drafter:
    model, other = models
    if kind == "n-gram":
        return NgramDrafter()
    if kind == "draft model":
        info: Any = None
        return DraftModel(info, other, Session(other.backend.new_kv(CONTEXT)), 320, 0)
    if kind == "script":
        return ScriptedDrafter(seed, n_ids=320)
    left_out = {"self": {3}, "resident": {2, 3}, "exit": {4, 5}}[kind]
    return OwnBlocks(model, session, frozenset(left_out))


@cache
def plain_reply(model: Transformer, prompt: tuple[int, ...], params: SamplingParams) -> list[int]:
    return run(model, Session(model.backend.new_kv(CONTEXT)), prompt, params)[0]


@pytest.mark.parametrize("kind", DRAFTERS)
def test_greedy_replies_are_those_without_drafts(models: tuple[Transformer, Transformer], kind: str) -> None:
    model, rng = models[0], np.random.default_rng(6)
    n_accepted = 0
    for seed, prompt in enumerate(prompts()):
        session, speculation = Session(model.backend.new_kv(CONTEXT)), Speculation(ready_costs())
        way = Way(
            NOTHING, real_drafter(kind, models, session, seed), int(rng.integers(1, 16)), DraftKind.SELF
        )
        reply, reason = run(model, session, prompt, ways=lambda: way, speculation=speculation)  # noqa: B023
        assert reply == plain_reply(model, tuple(prompt), GREEDY)
        assert reason is FinishReason.LENGTH
        assert session.ids == [*prompt, *reply[:-1]]
        n_accepted += speculation.accepted
        if seed % 10 == 0:
            fresh = Session(model.backend.new_kv(CONTEXT))
            prefill(model, fresh, session.ids, chunk=7, cancel=CancelToken(), on_progress=lambda n_done: None)
            assert_same_cache(session, fresh)
    assert n_accepted > 0 or kind == "script"


@pytest.mark.parametrize("kind", DRAFTERS)
def test_drawn_replies_are_those_without_drafts(models: tuple[Transformer, Transformer], kind: str) -> None:
    model, rng = models[0], np.random.default_rng(7)
    for seed, prompt in list(enumerate(prompts()))[:20]:
        params = SamplingParams(
            temperature=float(rng.choice([0.3, 1.0])),
            top_k=int(rng.choice([0, 3])),
            top_p=float(rng.choice([0.8, 1.0])),
            repeat_penalty=float(rng.choice([1.0, 1.3])),
            seed=seed,
        )
        session = Session(model.backend.new_kv(CONTEXT))
        drafter = real_drafter(kind, models, session, seed)
        k = int(rng.integers(1, 16))
        reply, _ = run(model, session, prompt, params, ways=lambda: Way(NOTHING, drafter, k))  # noqa: B023
        assert reply == run(model, Session(model.backend.new_kv(CONTEXT)), prompt, params)[0]


class Told(ScriptedDrafter):
    """Proposes the plain reply but for the positions where a pattern says no."""

    def __init__(self, reply: Sequence[int], n_prompt: int, pattern: Sequence[Sequence[bool]]) -> None:
        super().__init__(0)
        self._reply, self._n_prompt = reply, n_prompt
        self._pattern = iter(pattern)

    def draft(self, ids: Sequence[int], n_most: int, draw: Draw, cancel: CancelToken) -> list[int]:
        rights = next(self._pattern, ())
        follows = self._reply[len(ids) - self._n_prompt :]
        pairs = zip(follows[:n_most], rights, strict=False)
        return [token_id if right else (token_id + 1) % 320 for token_id, right in pairs]


@settings(max_examples=40, deadline=None)
@given(pattern=st.lists(st.lists(st.booleans(), max_size=9), max_size=12), n_prompt=st.integers(1, 24))
def test_after_any_pattern_the_cache_is_that_of_a_fresh_prefill(
    models: tuple[Transformer, Transformer], pattern: list[list[bool]], n_prompt: int
) -> None:
    model = models[0]
    prompt = np.random.default_rng(n_prompt).integers(3, 320, n_prompt).tolist()
    expected = plain_reply(model, tuple(prompt), GREEDY)
    session, speculation = Session(model.backend.new_kv(CONTEXT)), Speculation(ready_costs())
    way = Way(NOTHING, Told(expected, n_prompt, pattern), 9, DraftKind.NGRAM)
    assert run(model, session, prompt, ways=lambda: way, speculation=speculation)[0] == expected
    fresh = Session(model.backend.new_kv(CONTEXT))
    prefill(model, fresh, session.ids, chunk=32, cancel=CancelToken(), on_progress=lambda n_done: None)
    assert_same_cache(session, fresh)


# -- the loop over a table of logits

PROMPT = [1, 2, 3, 1, 2]
DRAWN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)


def plain_chain(**options: Any) -> tuple[list[int], FinishReason]:
    model = ChainModel()
    return run(model, model.new_session(), PROMPT, DRAWN, **options)


def test_the_context_ends_in_the_middle_of_a_draft() -> None:
    model, expected = ChainModel(), plain_chain(max_tokens=None)
    for k in range(1, 10):
        session = model.new_session()
        script = ScriptedDrafter(0, follows=[*PROMPT, *expected[0]], acceptance=1.0, varies=False)
        assert run(model, session, PROMPT, DRAWN, max_tokens=None, ways=lambda: Way(drafter=script, k=k)) == (  # noqa: B023
            expected
        )
        assert len(session.ids) == 79  # the last one drawn need not be run


def test_no_more_is_drafted_than_tokens_are_wanted() -> None:
    model, session = ChainModel(), ChainModel().new_session()
    script = ScriptedDrafter(0, follows=[*PROMPT, *plain_chain()[0]], acceptance=1.0, varies=False)
    speculation = Speculation(ready_costs())
    way = Way(drafter=script, k=9)
    reply, reason = run(
        model, session, PROMPT, DRAWN, max_tokens=4, ways=lambda: way, speculation=speculation
    )
    assert (reply, reason) == (plain_chain(max_tokens=4)[0], FinishReason.LENGTH)
    assert (speculation.drafted, speculation.accepted) == (2, 2)


def test_a_stop_id_within_a_draft_ends_the_reply_and_what_follows_it_is_forgotten() -> None:
    whole, _ = plain_chain()
    stop = next(token_id for token_id in whole[3:] if token_id not in whole[:3])
    expected = plain_chain(stop_ids=frozenset({stop}))
    model, session = ChainModel(), ChainModel().new_session()
    script = ScriptedDrafter(0, follows=[*PROMPT, *whole], acceptance=1.0, varies=False)
    assert (
        run(model, session, PROMPT, DRAWN, stop_ids=frozenset({stop}), ways=lambda: Way(drafter=script, k=9))
        == expected
    )
    assert expected[1] is FinishReason.STOP
    assert session.ids == [*PROMPT, *expected[0]]


@pytest.mark.parametrize("when", range(6))
@pytest.mark.parametrize("kind", ["script", "self", "draft model"])
def test_a_cancel_in_a_draft_or_its_verification_leaves_a_session_that_is_right(kind: str, when: int) -> None:
    class Stopping(ChainModel):
        n_left = when

        def hidden(self, *arguments: Any, **options: Any) -> Any:
            self.n_left -= 1
            if self.n_left == 0:
                cancel.cancel()
            return super().hidden(*arguments, **options)

    model, cancel = Stopping(), CancelToken()
    session = model.new_session()
    way = Way(drafter=drafter_of(kind, model, session, 1), k=3)
    try:
        run(model, session, PROMPT, DRAWN, ways=lambda: way, cancel=cancel)
    except CancelledError:
        assert when
    kv: Any = session.kv
    assert kv.ids[: len(session.ids)] == session.ids
    again = [*PROMPT, *plain_chain()[0]][: len(session.ids)]
    assert session.ids == again


def test_counts_leave_the_correction_out() -> None:
    model, reply = ChainModel(), plain_chain()[0]
    speculation = Speculation(ready_costs())
    pattern = [[True, True, False], [False], [True], []]
    told = Told(reply, len(PROMPT), pattern)
    told_way = Way(drafter=told, k=5)
    assert run(model, model.new_session(), PROMPT, DRAWN, ways=lambda: told_way, speculation=speculation) == (
        reply,
        FinishReason.LENGTH,
    )
    assert (speculation.drafted, speculation.accepted) == (5, 3)


# -- blocks left out

SETS = [NOTHING, frozenset({1}), frozenset({0, 1})]


@given(choices=st.lists(st.sampled_from(SETS), min_size=1, max_size=24))
def test_a_changed_set_computes_again_what_does_not_serve(choices: list[frozenset[int]]) -> None:
    """The loop's passes over the session's ids with any sequence of sets, as `Session.serving` has it."""
    model, speculation = ChainModel(), Speculation(ready_costs())
    session, asked = model.new_session(), iter(choices)
    last = NOTHING

    def ways() -> Way:
        nonlocal last
        last = next(asked, last)
        return Way(skip=last)

    reply, _ = run(
        model, session, PROMPT, GREEDY, max_tokens=len(choices), ways=ways, speculation=speculation
    )
    assert session.ids == [*PROMPT, *reply[:-1]]
    assert session.serving(last) == len(session.ids)
    # Each id is what the model without the blocks of its time says: the table depends on the set.
    for at, skip in enumerate(choices[: len(reply)]):
        before, last_id = [*PROMPT, *reply][len(PROMPT) + at - 2 : len(PROMPT) + at]
        assert reply[at] == int(model.table(skip)[before, last_id].argmax())
    again = any(not old <= new for old, new in pairwise(choices))
    assert bool(speculation.recomputed) == again


def test_with_blocks_left_out_drafts_change_nothing_either(models: tuple[Transformer, Transformer]) -> None:
    model, skip = models[0], frozenset({3})
    for seed, prompt in list(enumerate(prompts()))[:10]:
        plain = run(model, Session(model.backend.new_kv(CONTEXT)), prompt, ways=lambda: Way(skip))[0]
        session = Session(model.backend.new_kv(CONTEXT))
        drafter = OwnBlocks(model, session, skip | {2, 5}) if seed % 2 else NgramDrafter()
        way = Way(skip, drafter, 5)
        assert run(model, session, prompt, ways=lambda: way)[0] == plain  # noqa: B023
        assert session.serving(skip) == len(session.ids)
        assert session.serving(NOTHING) == 0


def test_the_set_changes_in_the_middle_of_a_reply_with_drafts(
    models: tuple[Transformer, Transformer],
) -> None:
    """What was computed with blocks left out is as a fresh prefill has it once they are used again."""
    model, prompt = models[0], list(prompts())[3] + [5, 6, 7]
    session, speculation = Session(model.backend.new_kv(CONTEXT)), Speculation(ready_costs())
    sets = iter([frozenset({2, 3})] * 4)
    drafter = NgramDrafter()
    reply, _ = run(
        model,
        session,
        prompt,
        ways=lambda: Way(next(sets, NOTHING), drafter, 3),
        speculation=speculation,
    )
    assert speculation.recomputed >= len(prompt)
    fresh = Session(model.backend.new_kv(CONTEXT))
    prefill(
        model, fresh, [*prompt, *reply[:-1]], chunk=32, cancel=CancelToken(), on_progress=lambda n_done: None
    )
    assert_same_cache(session, fresh)
