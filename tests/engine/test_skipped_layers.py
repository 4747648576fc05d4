"""Layers that are left out write no keys and values, and a cache is only ever read where it is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cancel import CancelToken
from engine.config import Precision
from engine.model import Transformer
from engine.session import Session
from engine.skipping.skip_choice import NOTHING, SkipSet
from kernels.quant_types import QuantType
from tests.engine.conftest import open_numpy
from tests.tiny_gguf import write_tiny_model

pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")
from tests.engine.tiers.opened import opened

LAYERS = 6
GO_ON = CancelToken()
IDS = [int(i) for i in np.random.default_rng(5).integers(3, 320, 40)]
skip_sets = st.frozensets(st.integers(0, 2 * LAYERS - 1))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    return write_tiny_model(
        folder / "m.gguf", architecture="gemma3", quant_type=QuantType.Q4_K, layers=LAYERS, vocab_size=1200
    )


@pytest.fixture(scope="module", params=["cpu", "cpu streamed", "numpy"])
def model(request: pytest.FixtureRequest, path: Path) -> Iterator[Transformer]:
    if request.param == "numpy":
        yield open_numpy(path, Precision.FAST)
    else:
        with opened(path, 1.0 if request.param == "cpu" else 0.3) as model:
            yield model


@pytest.fixture(scope="module", params=[1.0, 0.3])
def on_cpu(request: pytest.FixtureRequest, path: Path) -> Iterator[Transformer]:
    with opened(path, request.param) as model:
        yield model


def add(model: Transformer, session: Session, ids: list[int], skip: SkipSet) -> np.ndarray:
    """Run ids after those of the session, in one pass; their logits [T, V]."""
    hidden = model.hidden(ids, len(session.ids), session.kv, GO_ON, skip)
    session.extend(ids, skip)
    return model.logits(hidden, GO_ON)


@pytest.mark.parametrize("skip", [frozenset({4}), frozenset({0, 2, 3, 7, 10}), frozenset(range(0, 12, 2))])
def test_layers_whose_attention_is_left_out_write_no_keys_and_values(
    model: Transformer, skip: SkipSet
) -> None:
    kv = model.backend.new_kv(64)
    for array in (kv.keys, kv.values):
        array[:] = 7
    model.hidden(IDS[:9], 0, kv, GO_ON, skip)
    model.hidden(IDS[9:10], 9, kv, GO_ON, skip)
    for layer in range(LAYERS):
        written = any(bool((array[layer] != 7).any()) for array in (kv.keys, kv.values))
        assert written == (2 * layer not in skip), layer


def test_feed_forward_blocks_that_are_left_out_are_no_matter_of_the_cache(model: Transformer) -> None:
    kv, other = model.backend.new_kv(64), model.backend.new_kv(64)
    model.hidden(IDS[:9], 0, kv, GO_ON, frozenset({2 * LAYERS - 1}))
    model.hidden(IDS[:9], 0, other, GO_ON)
    np.testing.assert_array_equal(kv.keys, other.keys)
    np.testing.assert_array_equal(kv.values, other.values)


def test_with_everything_left_out_hidden_states_are_the_embeddings(model: Transformer) -> None:
    hidden = model.hidden(IDS[:9], 0, model.backend.new_kv(64), GO_ON, frozenset(range(2 * LAYERS)))
    np.testing.assert_array_equal(
        model.backend.states(hidden), model.backend.embed(np.asarray(IDS[:9], np.int32))
    )


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(skip_sets | st.just(NOTHING), st.integers(1, 8)), min_size=2, max_size=4))
def test_what_does_not_serve_another_set_is_computed_again_as_if_it_were_new(
    on_cpu: Transformer, changes: list[tuple[SkipSet, int]]
) -> None:
    model = on_cpu
    session = Session(model.backend.new_kv(64))
    for array in (session.kv.keys, session.kv.values):
        array[:] = 1000  # what nobody may read
    computed: list[tuple[int, int, SkipSet]] = []
    """Stretches of positions as they are in the cache, and what was left out there."""
    n_ids = 0
    for skip, more in changes:
        n_ids += more
        start = session.serving(skip)
        session.cut(start)
        computed = [(first, min(last, start), each) for first, last, each in computed if first < start]
        computed.append((start, n_ids, skip))
        logits = add(model, session, IDS[start:n_ids], skip)
    assert session.ids == IDS[:n_ids]
    assert all(skipped <= skip for _, _, skipped in computed)

    fresh = Session(model.backend.new_kv(64))
    for first, last, skipped in computed:
        expected = add(model, fresh, IDS[first:last], skipped)
    np.testing.assert_array_equal(logits, expected)
    following = [add(model, each, IDS[n_ids : n_ids + 1], skip) for each in (session, fresh)]
    np.testing.assert_array_equal(*following)


def test_a_cache_with_holes_would_be_noticed(model: Transformer) -> None:
    """What the sessions prevent: passes that use layers whose keys and values are not there."""
    session, fresh = (Session(model.backend.new_kv(64)) for _ in range(2))
    add(model, session, IDS[:9], frozenset({2, 4}))
    assert session.serving(NOTHING) == 0
    wrong = add(model, session, IDS[9:10], NOTHING)
    add(model, fresh, IDS[:9], NOTHING)
    right = add(model, fresh, IDS[9:10], NOTHING)
    assert np.abs(wrong - right).max() > 0.01 * np.abs(right).max()


# -- logits of every row


@pytest.mark.parametrize("n_rows", [1, 2, 5, 16, 17])
@pytest.mark.parametrize("skip", [NOTHING, frozenset({1, 4, 5})])
def test_logits_of_each_row_are_those_of_that_row_as_the_last_one(
    model: Transformer, n_rows: int, skip: SkipSet
) -> None:
    hidden = model.hidden(IDS[:n_rows], 0, model.backend.new_kv(64), GO_ON, skip)
    rows = model.each_logits(hidden, GO_ON)
    assert len(rows) == n_rows
    for row, logits in enumerate(rows):
        alone = model.next_logits(hidden[: row + 1], GO_ON)
        if model.backend.name == "numpy":  # its sums depend on the number of rows
            np.testing.assert_allclose(logits.all(), alone.all(), rtol=0.02, atol=0.02)
        else:
            np.testing.assert_array_equal(logits.all(), alone.all())


def test_rows_of_a_verification_equal_steps_one_by_one(path: Path) -> None:
    for share in (1.0, 0.3):
        with opened(path, share) as model:
            for skip in (NOTHING, frozenset({2, 3, 9})):
                one, other = model.backend.new_kv(64), model.backend.new_kv(64)
                for kv in (one, other):
                    model.hidden(IDS[:8], 0, kv, GO_ON, skip)
                rows = model.each_logits(model.hidden(IDS[8:24], 8, one, GO_ON, skip), GO_ON)
                for position, logits in enumerate(rows, 8):
                    hidden = model.hidden(IDS[position : position + 1], position, other, GO_ON, skip)
                    step = model.next_logits(hidden, GO_ON)
                    np.testing.assert_array_equal(logits.all(), step.all())
                np.testing.assert_array_equal(one.keys, other.keys)
                np.testing.assert_array_equal(one.values, other.values)
