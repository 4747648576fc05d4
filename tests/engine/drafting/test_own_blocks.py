"""Drafts by the model without some of its blocks, in the session's own cache."""

from __future__ import annotations

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.drafting.own_blocks import OwnBlocks, blocks_from
from engine.errors import CancelledError, EngineError
from engine.generate import prefill
from engine.model import Transformer
from engine.session import Session
from engine.skipping.skip_choice import NOTHING, SkipSet
from tests.engine.drafting.draws import Greedy

IDS = [int(i) for i in np.random.default_rng(5).integers(3, 320, 30)]


def begun(model: Transformer, n_ids: int = len(IDS) - 1) -> Session:
    """A session that holds the first ids, computed with all blocks."""
    session = Session(model.backend.new_kv(64))
    prefill(model, session, IDS[:n_ids], chunk=16, cancel=CancelToken(), on_progress=lambda n: None)
    return session


def one_by_one(model: Transformer, skip: SkipSet, n: int) -> list[int]:
    """What follows IDS where the last of them, and what is drawn, are run without `skip`."""
    session, ids = begun(model), list(IDS)
    for pos in range(len(IDS) - 1, len(IDS) - 1 + n):
        hidden = model.hidden([ids[pos]], pos, session.kv, CancelToken(), skip)
        ids.append(int(model.logits(hidden, CancelToken())[-1].argmax()))
    return ids[len(IDS) :]


@pytest.mark.parametrize("skip", [NOTHING, {1}, {2, 3}], ids=["none", "a feed-forward block", "a layer"])
def test_the_rest_of_the_model_proposes_what_it_would_say(tiny_model: Transformer, skip: SkipSet) -> None:
    drafter = OwnBlocks(tiny_model, begun(tiny_model), frozenset(skip))
    assert drafter.computes
    assert drafter.draft(IDS, 6, Greedy(), CancelToken()) == one_by_one(tiny_model, frozenset(skip), 6)


def test_peeks_are_asked_for_the_draws_that_will_verify_them(tiny_model: Transformer) -> None:
    draw = Greedy()
    proposed = OwnBlocks(tiny_model, begun(tiny_model), NOTHING).draft(IDS, 3, draw, CancelToken())
    assert draw.asked == [([*IDS, *proposed[:n]], n) for n in range(3)]


def test_ids_that_the_session_lacks_are_run_together(tiny_model: Transformer) -> None:
    all_but_one = OwnBlocks(tiny_model, begun(tiny_model), NOTHING)
    all_but_three = OwnBlocks(tiny_model, begun(tiny_model, len(IDS) - 3), NOTHING)
    proposed = [each.draft(IDS, 4, Greedy(), CancelToken()) for each in (all_but_one, all_but_three)]
    assert proposed[0] == proposed[1]


def test_a_draft_leaves_the_session_as_it_was(tiny_model: Transformer) -> None:
    session, fresh = begun(tiny_model), begun(tiny_model)
    before = list(session.ids)
    OwnBlocks(tiny_model, session, frozenset({0, 3})).draft(IDS, 8, Greedy(), CancelToken())
    assert session.ids == before
    after, expected = (
        prefill(tiny_model, each, IDS[-1:], chunk=16, cancel=CancelToken(), on_progress=lambda n: None)
        for each in (session, fresh)
    )
    np.testing.assert_array_equal(after.all(), expected.all())


def test_a_cancelled_draft_leaves_the_session_as_it_was(tiny_model: Transformer) -> None:
    session, cancel = begun(tiny_model), CancelToken()
    cancel.cancel()
    with pytest.raises(CancelledError):
        OwnBlocks(tiny_model, session, NOTHING).draft(IDS, 4, Greedy(), cancel)
    assert session.ids == IDS[:-1]
    drafter = OwnBlocks(tiny_model, session, NOTHING)
    assert drafter.draft(IDS, 4, Greedy(), CancelToken()) == one_by_one(tiny_model, NOTHING, 4)


def test_no_ids_asked_for_is_no_draft(tiny_model: Transformer) -> None:
    assert OwnBlocks(tiny_model, begun(tiny_model), NOTHING).draft(IDS, 0, Greedy(), CancelToken()) == []


def test_an_early_exit_leaves_out_all_that_follows() -> None:
    assert blocks_from(2, 4) == {4, 5, 6, 7}
    for layer in (0, 4, 9):
        with pytest.raises(EngineError, match=rf"layer {layer} drafts nothing.* 4 layers.* 1 to 3"):
            blocks_from(layer, 4)
