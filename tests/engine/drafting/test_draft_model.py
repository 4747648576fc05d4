"""A second model that drafts: it follows the ids, whatever became of its drafts, and has no holes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cancel import CancelToken
from engine.config import LoadOptions
from engine.drafting.draft_model import DraftModel
from engine.errors import CancelledError
from engine.generate import prefill
from engine.kv_cache import HostKV
from engine.loading import LoadedModel, load_model
from engine.session import Session
from kernels.quant_types import QuantType
from tests.engine.drafting.draws import Greedy, Scripted
from tests.tiny_gguf import write_tiny_model

CONTEXT = 96
token_ids = st.integers(3, 319)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")
    path = tmp_path_factory.mktemp("draft") / "draft.gguf"
    write_tiny_model(path, quant_type=QuantType.Q8_0, vocab_size=352)
    options = LoadOptions(path, context=CONTEXT, chunk=8, threads=1, device="cpu")
    loaded = load_model(options, lambda stage, progress: None, CancelToken())
    yield loaded
    loaded.close()


def drafting(loaded: LoadedModel, n_shared: int = 352) -> DraftModel:
    """The model as one that drafts, with a cache of its own."""
    session = Session(loaded.backend.new_kv(CONTEXT))
    return DraftModel(loaded.info, loaded.model, session, n_shared, computing_bytes=0)


def drafted(drafter: DraftModel, ids: list[int], n_most: int = 4) -> list[int]:
    return drafter.draft(ids, n_most, Greedy(), CancelToken())


def fresh(loaded: LoadedModel, ids: list[int]) -> Session:
    """The ids computed at once."""
    session = Session(loaded.backend.new_kv(CONTEXT))
    prefill(loaded.model, session, ids, chunk=8, cancel=CancelToken(), on_progress=lambda n: None)
    return session


def arrays(session: Session) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values, as they lie in memory."""
    kv = session.kv
    assert isinstance(kv, HostKV)
    return kv.keys, kv.values


@settings(max_examples=20, deadline=None)
@given(
    st.lists(token_ids, min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), token_ids), max_size=6),
    st.integers(0, 20),
)
def test_whatever_is_accepted_the_cache_is_that_of_the_ids(
    loaded: LoadedModel, prompt: list[int], rounds: list[tuple[int, int, int]], n_cut: int
) -> None:
    drafter, ids = drafting(loaded), list(prompt)
    for n_most, n_accepted, correction in rounds:
        proposed = drafted(drafter, ids, n_most)
        assert proposed == drafted(drafting(loaded), ids, n_most)
        ids += [*proposed[:n_accepted], correction]
    ids = ids[: max(1, len(ids) - n_cut)]  # the reply was stopped, or another one is asked for
    drafted(drafter, ids, 1)
    assert drafter.session.ids == ids
    for mine, expected in zip(arrays(drafter.session), arrays(fresh(loaded, ids)), strict=True):
        filled = expected != 0  # what follows the ids there is of no interest
        assert filled.sum() > expected.size * len(ids) / CONTEXT / 2
        np.testing.assert_array_equal(mine[filled], expected[filled])


def test_it_proposes_what_it_would_say(loaded: LoadedModel) -> None:
    ids, said = [5, 6, 7, 8], list[int]()
    for _ in range(5):
        session = fresh(loaded, [*ids, *said][:-1])
        last = [*ids, *said][-1:]
        logits = prefill(
            loaded.model, session, last, chunk=8, cancel=CancelToken(), on_progress=lambda n: None
        )
        said.append(int(logits.all().argmax()))
    draw = Greedy()
    assert drafting(loaded).draft(ids, 5, draw, CancelToken()) == said
    assert draw.asked == [([*ids, *said[:n]], n) for n in range(5)]


def test_what_was_computed_is_not_computed_again(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter, ids, runs = drafting(loaded), list(range(10, 40)), list[int]()
    run = loaded.model.hidden
    monkeypatch.setattr(
        loaded.model, "hidden", lambda part, *rest: (runs.append(len(part)), run(part, *rest))[1]
    )
    ids += [*drafted(drafter, ids, 3), 50]
    assert runs == [8, 8, 8, 6, 1, 1]
    runs.clear()
    drafted(drafter, ids, 2)
    assert runs == [2, 1]  # the last draft was never run, nor was the id after it
    runs.clear()
    drafted(drafter, ids, 1)
    assert runs == [1]  # its logits are needed again


def test_ids_that_only_one_model_has_end_a_draft(loaded: LoadedModel) -> None:
    drafter = drafting(loaded, n_shared=320)
    assert drafter.draft([5, 6], 4, Scripted([7, 8, 330, 9]), CancelToken()) == [7, 8]


def test_ids_that_it_does_not_know_are_not_drafted_from(loaded: LoadedModel) -> None:
    drafter = drafting(loaded, n_shared=320)
    assert drafted(drafter, [5, 330, 6]) == []
    assert drafted(drafter, [5, 6]) == drafted(drafting(loaded), [5, 6])


def test_a_draft_ends_with_the_context(loaded: LoadedModel) -> None:
    drafter = drafting(loaded)
    assert len(drafted(drafter, [7] * (CONTEXT - 1), 8)) == 2
    assert len(drafted(drafter, [7] * CONTEXT, 8)) == 1
    assert drafted(drafter, [7] * (CONTEXT + 1), 8) == []


def test_after_a_cancel_it_goes_on_from_what_is_right(loaded: LoadedModel) -> None:
    drafter, ids, cancel = drafting(loaded), list(range(10, 40)), CancelToken()
    drafted(drafter, ids[:20])
    cancel.cancel()
    with pytest.raises(CancelledError):
        drafter.draft(ids, 4, Greedy(), cancel)
    assert drafter.session.ids == ids[: len(drafter.session.ids)]
    assert drafted(drafter, ids) == drafted(drafting(loaded), ids)
