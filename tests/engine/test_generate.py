"""The loop over a tiny model: what ends it, what it reuses, what a cancel leaves behind."""

from __future__ import annotations

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.config import SamplingParams
from engine.errors import CancelledError, ContextError
from engine.events import FinishReason
from engine.generate import generate, prefill
from engine.model import Transformer
from engine.sampler import Sampler
from engine.session import Session

PROMPT = [int(i) for i in np.random.default_rng(3).integers(3, 320, 40)]
GREEDY = SamplingParams(temperature=0)


def run(
    model: Transformer,
    session: Session,
    prompt: list[int],
    *,
    params: SamplingParams = GREEDY,
    max_tokens: int | None = 8,
    stop_ids: frozenset[int] = frozenset(),
    chunk: int = 16,
    cancel: CancelToken | None = None,
) -> tuple[list[int], FinishReason, list[int]]:
    """The ids, why they ended, and the progress that prefill told."""
    progress: list[int] = []
    loop = generate(
        model,
        session,
        prompt[session.rewind(prompt) :],
        Sampler(params),
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        chunk=chunk,
        cancel=CancelToken() if cancel is None else cancel,
        on_prefill=progress.append,
    )
    ids = []
    while True:
        try:
            ids.append(next(loop).token_id)
        except StopIteration as end:
            return ids, end.value, progress


def test_greedy_ids_do_not_depend_on_seed_or_chunk(tiny_model: Transformer) -> None:
    results = [
        run(
            tiny_model,
            Session(tiny_model.backend.new_kv(96)),
            PROMPT,
            params=SamplingParams(temperature=0, seed=seed),
            chunk=chunk,
        )[0]
        for seed, chunk in ((1, 16), (2, 40), (3, 1))
    ]
    assert results[0] == results[1] == results[2]
    assert len(results[0]) == 8


def test_prefill_tells_how_far_it_is_after_each_chunk(tiny_model: Transformer, session: Session) -> None:
    assert run(tiny_model, session, PROMPT)[2] == [16, 32, 40]


def test_a_stop_id_ends_the_reply_and_is_not_part_of_it(tiny_model: Transformer, session: Session) -> None:
    ids, reason, _ = run(tiny_model, session, PROMPT)
    assert reason is FinishReason.LENGTH
    stop = ids[3]
    stopped, reason, _ = run(tiny_model, session, PROMPT, stop_ids=frozenset({stop}))
    assert stopped == ids[: ids.index(stop)]
    assert reason is FinishReason.STOP


def test_the_context_ends_a_reply_without_a_limit(tiny_model: Transformer, session: Session) -> None:
    ids, reason, _ = run(tiny_model, session, PROMPT, max_tokens=None)
    assert len(PROMPT) + len(ids) == 96
    assert reason is FinishReason.LENGTH


def test_a_prompt_as_long_as_the_context_is_refused_with_both_counts(
    tiny_model: Transformer, session: Session
) -> None:
    with pytest.raises(ContextError, match=r"96 tokens .* holds 96"):
        run(tiny_model, session, PROMPT * 2 + PROMPT[:16])


def test_the_same_prompt_again_computes_one_id_and_gives_the_same_reply(
    tiny_model: Transformer, session: Session
) -> None:
    first, _, _ = run(tiny_model, session, PROMPT)
    again, _, progress = run(tiny_model, session, PROMPT)
    assert again == first
    assert progress == [1]


def test_a_longer_conversation_computes_only_its_new_ids(tiny_model: Transformer, session: Session) -> None:
    reply, _, _ = run(tiny_model, session, PROMPT)
    # The last id drawn was not fed yet: it goes first.
    _, _, progress = run(tiny_model, session, [*PROMPT, *reply, 5, 6, 7])
    assert progress == [4]


def test_a_reply_after_an_edit_equals_one_from_an_empty_cache(
    tiny_model: Transformer, session: Session
) -> None:
    run(tiny_model, session, PROMPT)
    edited = [*PROMPT[:20], 9, 8, 7]
    after_edit, _, progress = run(tiny_model, session, edited)
    assert progress == [3]
    assert after_edit == run(tiny_model, Session(tiny_model.backend.new_kv(96)), edited)[0]


def test_a_cancel_in_prefill_keeps_whole_chunks_and_the_next_reply_is_right(
    tiny_model: Transformer, session: Session
) -> None:
    token = CancelToken()

    def cancel_after_the_first(done: int) -> None:
        token.cancel()

    with pytest.raises(CancelledError):
        prefill(tiny_model, session, PROMPT, chunk=16, cancel=token, on_progress=cancel_after_the_first)
    assert session.ids == PROMPT[:16]
    ids, _, progress = run(tiny_model, session, PROMPT)
    assert progress == [16, 24]
    assert ids == run(tiny_model, Session(tiny_model.backend.new_kv(96)), PROMPT)[0]


def test_no_tokens_asked_for_only_fills_the_cache(tiny_model: Transformer, session: Session) -> None:
    ids, reason, _ = run(tiny_model, session, PROMPT, max_tokens=0)
    assert (ids, reason, session.ids) == ([], FinishReason.LENGTH, PROMPT)
