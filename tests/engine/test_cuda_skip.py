"""Passes that leave blocks out, emulated and on a GPU: as NumPy computes them, and none of those is moved."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.backends import cuda_step
from engine.backends.cuda import CudaBackend
from engine.cancel import CancelToken
from engine.config import ExecutorChoice, Precision, SamplingParams
from engine.events import Tier
from engine.kv_cache import KVCache
from engine.model import Transformer
from engine.sampler import Sampler
from engine.session import Session
from engine.skipping.skip_choice import NOTHING, SkipSet
from engine.tiers.budget import Budget
from engine.tiers.wishes import parse_place
from kernels.cuda.device import Device
from kernels.quant_types import QuantType
from tests.engine.conftest import open_numpy
from tests.engine.cuda_models import Borrowed, opened_on, plan_on
from tests.engine.test_cuda_mixed import close, tiers_of
from tests.tiny_gguf import write_tiny_model

IDS = [int(i) for i in np.random.default_rng(8).integers(3, 320, 40)]
GO_ON = CancelToken()
GREEDY = SamplingParams(temperature=0)
FAST, FLOAT, SHARED = 3e-3, 1e-5, 4e-2
"""Tolerances: shares of the largest logit; the last one where the processor rounds activations to 8 bits."""

Write = Callable[..., Path]
N_LAYERS = 3
ALL = frozenset(range(2 * N_LAYERS))
MODELS: dict[str, dict[str, object]] = {
    "llama": {"quant_type": QuantType.Q4_K, "layers": N_LAYERS},
    # An update that is normed is added by the next block's norm, whichever block that is.
    "gemma3": {"architecture": "gemma3", "quant_type": QuantType.Q8_0, "layers": N_LAYERS, "tied": True},
    # Every product wants its input in another form.
    "mixed": {"mixed_types": tuple(QuantType), "embedding_type": QuantType.Q6_K, "layers": N_LAYERS},
}
SETS = {
    "attention": frozenset({2}),
    "feed-forward": frozenset({1, 5}),
    "layers": frozenset({0, 1, 4, 5}),
    "everything": ALL,
}


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes a tiny model, each only once."""
    folder = tmp_path_factory.mktemp("skip")

    @functools.cache
    def write(name: str) -> Path:
        return write_tiny_model(folder / f"{name}.gguf", **MODELS[name])  # type: ignore[arg-type]

    return write


@pytest.fixture(scope="module")
def on_numpy(write: Write) -> Callable[[str, SkipSet], np.ndarray]:
    """`all_logits` of a model, computed only once."""
    return functools.cache(lambda name, skip: all_logits(open_numpy(write(name), Precision.FLOAT), skip))


def run(model: Transformer, kv: KVCache, first: int, last: int, skip: SkipSet) -> np.ndarray:
    return model.logits(model.hidden(IDS[first:last], first, kv, GO_ON, skip), GO_ON)


def all_logits(model: Transformer, skip: SkipSet) -> np.ndarray:
    """Of a prompt, of a step, of several ids at once, and of an edit: [T, V]."""
    kv = model.backend.new_kv(64)
    return np.concatenate([run(model, kv, *at, skip) for at in ((0, 12), (12, 13), (13, 18), (6, 7))])


@pytest.mark.parametrize("blocks", SETS)
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_numpy(
    device: Device, write: Write, on_numpy: Callable[[str, SkipSet], np.ndarray], name: str, blocks: str
) -> None:
    watched = Borrowed(device)
    with opened_on(watched, write(name)) as model:
        assert close(all_logits(model, SETS[blocks]), on_numpy(name, SETS[blocks]), FAST)
    assert watched.kernels <= plan_on(device, write(name))[1]


@pytest.mark.parametrize("executor", [ExecutorChoice.STREAM, ExecutorChoice.CPU])
@pytest.mark.parametrize("place", ["blk.0-2.ffn=ram", "blk.0.ffn=nvme,blk.1=ram,head=ram", "blk.0-2=nvme"])
def test_blocks_that_are_elsewhere_are_left_out_too(
    device: Device,
    write: Write,
    on_numpy: Callable[[str, SkipSet], np.ndarray],
    executor: ExecutorChoice,
    place: str,
) -> None:
    options: dict[str, Any] = {"place": parse_place(place), "executor": executor}
    with opened_on(device, write("llama"), **options) as model:
        for skip in SETS.values():
            assert close(all_logits(model, skip), on_numpy("llama", skip), SHARED)


def test_streamed_is_resident_bit_for_bit_whatever_is_left_out_by_turns(device: Device, write: Write) -> None:
    sets = (SETS["attention"], NOTHING, SETS["layers"], SETS["feed-forward"], NOTHING, SETS["everything"])
    with opened_on(device, write("llama")) as model:
        expected = [all_logits(model, skip) for skip in sets]
    place = parse_place("blk.0-2.ffn=ram,blk.1.attn=ram")
    with opened_on(device, write("llama"), place=place, executor=ExecutorChoice.STREAM) as model:
        for skip, logits in zip(sets, expected, strict=True):
            np.testing.assert_array_equal(all_logits(model, skip), logits)


def test_passes_without_attention_leave_keys_and_values_alone(device: Device, write: Write) -> None:
    with opened_on(device, write("llama")) as model:
        kv = model.backend.new_kv(64)
        run(model, kv, 0, 12, NOTHING)
        expected = run(model, kv, 12, 13, NOTHING)
        without = frozenset({0, 2, 4})
        for first, last in ((0, 1), (1, 6), (0, 12), (12, 13)):
            run(model, kv, first, last, without)
        np.testing.assert_array_equal(run(model, kv, 12, 13, NOTHING), expected)


@pytest.mark.parametrize("skip", [frozenset({3}), frozenset({1, 3})])
def test_what_is_left_out_is_not_copied(device: Device, write: Write, skip: SkipSet) -> None:
    place = parse_place("blk.0-2.ffn=ram")
    with opened_on(device, write("llama"), place=place, executor=ExecutorChoice.STREAM) as model:
        tiers, kv = tiers_of(model), model.backend.new_kv(64)

        def steps(skip: SkipSet, n_steps: int) -> int:
            """Bytes that so many steps copy, once the ring is filled for such steps."""
            run(model, kv, 0, 1, skip)
            before = tiers.stats.h2d_bytes
            for position in range(1, 1 + n_steps):
                run(model, kv, position, position + 1, skip)
            return tiers.stats.h2d_bytes - before

        sizes = {n: block.n_bytes for n, block in enumerate(tiers.where.host.layer_blocks)}
        assert steps(NOTHING, 6) == 6 * (sizes[1] + sizes[3] + sizes[5])
        assert steps(skip, 6) == 6 * sum(sizes[n] for n in {1, 3, 5} - skip)


def test_a_pass_that_streams_nothing_leaves_the_ring_to_the_next_one(device: Device, write: Write) -> None:
    place = parse_place("blk.0-2.ffn=ram")
    with opened_on(device, write("llama"), place=place, executor=ExecutorChoice.STREAM) as model:
        tiers, kv = tiers_of(model), model.backend.new_kv(64)
        far = ALL - tiers.near
        assert far == {1, 3, 5}
        run(model, kv, 0, 12, NOTHING)
        before = tiers.stats.h2d_bytes
        for position in range(12, 16):
            run(model, kv, position, position + 1, far)
        assert tiers.stats.h2d_bytes == before
        run(model, kv, 12, 17, NOTHING)
        assert tiers.stats.h2d_bytes - before == sum(
            block.n_bytes for n, block in enumerate(tiers.where.host.layer_blocks) if n in far
        )


def test_graphs_are_bounded(device: Device, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_step, "_MOST_PASSES", 2)
    with opened_on(device, write("llama")) as model:
        kv = model.backend.new_kv(64)
        expected = run(model, kv, 0, 1, NOTHING)
        assert isinstance(model.backend, CudaBackend)
        graphs = model.backend._model.step.graphs
        for number in range(2 * N_LAYERS):
            run(model, kv, 0, 1, frozenset({number}))
            np.testing.assert_array_equal(run(model, kv, 0, 1, NOTHING), expected)
            assert len(graphs) <= 2


# -- steps that are begun before they are asked for


def test_a_step_is_begun_ahead_only_where_it_is_known_what_it_leaves_out(
    device: Device, write: Write
) -> None:
    watched = Borrowed(device)
    some, other = frozenset({1, 2}), frozenset({1})
    with opened_on(watched, write("llama")) as model:
        kv = model.backend.new_kv(64)

        def step_after(ahead: SkipSet | None, skip: SkipSet) -> tuple[list[str], list[str]]:
            """What a draw and the step after it put on the device."""
            hidden = model.hidden(IDS[11:12], 11, kv, GO_ON, skip)
            logits = model.next_logits(hidden, GO_ON, ahead)
            watched.launches.clear()
            token_id = Sampler(GREEDY)(logits, IDS[:12])
            n_drawing = len(watched.launches)
            model.hidden([token_id], 12, kv, GO_ON, skip)
            return watched.launches[:n_drawing], watched.launches[n_drawing:]

        for skip in (some, other, NOTHING):
            run(model, kv, 0, 1, skip)  # their graphs are there from then on
        for skip in (some, NOTHING):
            assert step_after(skip, skip) == (["sample_greedy", "step", "graph"], [])
            assert step_after(None, skip) == (["sample_greedy"], ["step", "graph"])
            assert step_after(other, skip) == (["sample_greedy", "step", "graph"], ["step", "graph"])


@pytest.mark.parametrize("skip", [NOTHING, frozenset({1, 4})])
def test_a_reply_with_steps_ahead_is_the_reply_without(device: Device, write: Write, skip: SkipSet) -> None:
    with opened_on(device, write("gemma3")) as model:

        def reply(ahead: SkipSet | None) -> list[int]:
            session, draw, ids = Session(model.backend.new_kv(64)), Sampler(SamplingParams(seed=4)), IDS[:12]
            for _ in range(8):
                new = ids[len(session.ids) :]
                hidden = model.hidden(new, len(session.ids), session.kv, GO_ON, skip)
                session.extend(new, skip)
                ids = [*ids, draw(model.next_logits(hidden, GO_ON, ahead), session.ids)]
            return ids

        assert reply(skip) == reply(None)


def test_a_model_whose_far_blocks_are_left_out_runs_as_one_that_fits(device: Device, write: Write) -> None:
    watched = Borrowed(device)
    with opened_on(watched, write("gemma3"), place=parse_place("blk.0-2.ffn=ram")) as model:
        tiers, kv = tiers_of(model), model.backend.new_kv(64)
        far = ALL - tiers.near
        assert far == {1, 3, 5} and not tiers.where.whole
        run(model, kv, 0, 1, far)  # the graph is there from then on
        watched.launches.clear()
        logits = model.next_logits(model.hidden(IDS[:1], 0, kv, GO_ON, far), GO_ON, far)
        token_id = Sampler(GREEDY)(logits, IDS[:1])
        model.hidden([token_id], 1, kv, GO_ON, far)
        assert watched.launches == ["step", "graph", "sample_greedy", "step", "graph"]


# -- several rows, drawn from one after another


@pytest.mark.parametrize("place", ["", "blk.0-2.ffn=ram", "head=ram"])
@pytest.mark.parametrize("n_ids", [5, 16])
def test_each_row_is_drawn_from_and_the_pass_stays(
    device: Device, write: Write, place: str, n_ids: int
) -> None:
    options: dict[str, Any] = {"place": parse_place(place)} if place else {}
    with opened_on(device, write("llama"), **options) as model:
        kv = model.backend.new_kv(64)
        hidden = model.hidden(IDS[:n_ids], 0, kv, GO_ON)
        expected = model.logits(hidden, GO_ON)
        rows = model.each_logits(hidden, GO_ON)
        assert len(rows) == n_ids
        for params in (GREEDY, SamplingParams(temperature=0, repeat_penalty=1.4)):
            kv = model.backend.new_kv(64)
            hidden = model.hidden(IDS[:n_ids], 0, kv, GO_ON)
            rows = model.each_logits(hidden, GO_ON)
            assert len(rows) == n_ids
            for row, logits in enumerate(rows):
                history = IDS[: row + 1]
                on_host = Sampler(params)(_OnHost(expected[row]), history)
                assert Sampler(params)(logits, history) == on_host
        for row, logits in enumerate(model.each_logits(model.hidden(IDS[:n_ids], 0, kv, GO_ON), GO_ON)):
            np.testing.assert_array_equal(logits.all(), expected[row])
        following = run(model, kv, n_ids, n_ids + 1, NOTHING)
        kv = model.backend.new_kv(64)
        run(model, kv, 0, n_ids, NOTHING)
        np.testing.assert_array_equal(run(model, kv, n_ids, n_ids + 1, NOTHING), following)


class _OnHost:
    """`Logits` that are on the host."""

    def __init__(self, logits: np.ndarray) -> None:
        self._logits = logits

    def all(self) -> np.ndarray:
        return self._logits

    def draw(self, request: object) -> None:
        return None


def test_rows_that_nobody_asks_for_are_not_computed(device: Device, write: Write) -> None:
    watched = Borrowed(device)
    with opened_on(watched, write("llama")) as model:
        hidden = model.hidden(IDS[:16], 0, model.backend.new_kv(64), GO_ON)
        rows = model.each_logits(hidden, GO_ON)
        watched.launches.clear()
        for row in range(8):
            Sampler(GREEDY)(rows[row], IDS[: row + 1])
        assert watched.launches.count("sample_greedy") == 8
        n_before = len(watched.launches)
        rows[8].all()
        rows[9].all()
        n_of_head = len(watched.launches) - n_before
        assert 0 < n_of_head == n_before - 8  # one product with the head for each eight rows


# -- hidden states


@pytest.mark.parametrize("place", ["", "blk.0-2.ffn=ram", "head=ram"])
@pytest.mark.parametrize("n_ids", [3, 12])
def test_states_are_those_that_logits_are_made_of(
    device: Device, write: Write, place: str, n_ids: int
) -> None:
    options: dict[str, Any] = {"place": parse_place(place)} if place else {}
    numpy = open_numpy(write("gemma3"), Precision.FLOAT)
    with opened_on(device, write("gemma3"), precision=Precision.FLOAT, **options) as model:
        kv, numpy_kv = model.backend.new_kv(64), numpy.backend.new_kv(64)
        for skip in (NOTHING, frozenset({3, 4, 5}), ALL):
            states = model.backend.states(model.hidden(IDS[:n_ids], 0, kv, GO_ON, skip)[1:])
            expected = numpy.backend.states(numpy.hidden(IDS[:n_ids], 0, numpy_kv, GO_ON, skip)[1:])
            assert states.shape == (n_ids - 1, numpy.config.hidden_size)
            assert close(states, expected, FLOAT)
            held = states.copy()
            model.hidden(IDS[20 : 20 + n_ids], 0, kv, GO_ON)
            np.testing.assert_array_equal(states, held)


# -- blocks that replies leave out give their place to others


def in_vram(model: Transformer) -> SkipSet:
    return tiers_of(model).near


def test_what_replies_leave_out_gives_its_place_to_others_and_comes_back(
    device: Device, write: Write
) -> None:
    with opened_on(device, write("llama")) as model:
        whole = tiers_of(model).where.plan.vram_bytes
        one = max(block.n_bytes for block in tiers_of(model).where.blocks if block.layer is not None)
        expected = {skip: all_logits(model, skip) for skip in (NOTHING, *SETS.values())}
    options: dict[str, Any] = {
        "vram_budget": Budget(whole - one // 2),
        "executor": ExecutorChoice.STREAM,
        "prefetch": 2,
    }
    with opened_on(device, write("llama"), **options) as model:
        tiers = tiers_of(model)
        before = in_vram(model)
        assert before and before != ALL
        for skip in (frozenset({min(before)}), frozenset(sorted(before)[-2:]), SETS["layers"]):
            tiers.leave_out(skip)
            shown = tiers.snapshot()
            assert {shown.blocks[i].name for i in shown.skipped} == {
                tiers.where.host.layer_blocks[n].name for n in skip
            }
            np.testing.assert_array_equal(
                all_logits(model, skip), expected.get(skip, all_logits(model, skip))
            )
            tiers.settle(GO_ON)
            # What is used is inside as long as there is room; what is not used has what room is left.
            inside = in_vram(model)
            assert not inside & skip or inside >= ALL - skip
            assert len(inside - skip) >= len(before - skip)
            n_events = _moves(model)
            copied = tiers.stats.h2d_bytes
            tiers.leave_out(skip)
            tiers.settle(GO_ON)
            assert (_moves(model), tiers.stats.h2d_bytes) == (n_events, copied)
            for other in (skip, NOTHING):
                if other in expected:
                    np.testing.assert_array_equal(all_logits(model, other), expected[other])
        assert any("left out: " in event.text for event in tiers.snapshot().events)
        tiers.leave_out(NOTHING)
        tiers.settle(GO_ON)
        assert in_vram(model) == before
        assert tiers.snapshot().skipped == frozenset()
        np.testing.assert_array_equal(all_logits(model, NOTHING), expected[NOTHING])


def _moves(model: Transformer) -> int:
    shown = tiers_of(model).snapshot()
    return len(shown.events) + shown.events_dropped


def test_a_model_that_fits_stays_where_it_is(device: Device, write: Write) -> None:
    with opened_on(device, write("llama")) as model:
        tiers = tiers_of(model)
        copied = tiers.stats.h2d_bytes
        for skip in (*SETS.values(), NOTHING):
            tiers.leave_out(skip)
            shown = tiers.snapshot().skipped
            assert {n for n, b in enumerate(tiers.where.host.layer_blocks) if b.index in shown} == skip
            assert tiers.where.settled and not tiers.pump(0)
        assert in_vram(model) == ALL
        assert tiers.stats.h2d_bytes == copied
        assert {block.tier for block in tiers.snapshot().blocks} == {Tier.VRAM}


def test_what_replies_leave_out_is_not_counted_among_what_passes_copy(device: Device, write: Write) -> None:
    place = parse_place("blk.0-2.ffn=ram")
    with opened_on(device, write("llama"), place=place, executor=ExecutorChoice.STREAM) as model:
        tiers = tiers_of(model)
        sizes = [block.n_bytes for block in tiers.where.host.layer_blocks]
        assert tiers.snapshot().pass_copy_bytes == sizes[1] + sizes[3] + sizes[5]
        tiers.leave_out(frozenset({3}))
        assert tiers.snapshot().pass_copy_bytes == sizes[1] + sizes[5]
        tiers.leave_out(NOTHING)
        assert tiers.snapshot().pass_copy_bytes == sizes[1] + sizes[3] + sizes[5]
