"""Calibration on tiny models: figures that can be computed another way, and what is measured when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from engine.cancel import CancelToken
from engine.config import LoadOptions
from engine.drafting.draft_set import measured_draft_set
from engine.errors import CancelledError, ContextError, EngineError
from engine.loading import LoadedModel, load_model
from engine.model import Transformer
from engine.skipping.calibrate import (
    CONVERSATION,
    SHIPPED,
    CalibrationText,
    calibrate,
    chosen_set,
    ensure_calibrated,
    shipped_text,
)
from engine.skipping.calibrated import Calibration
from engine.skipping.skip_choice import NOTHING, SkipChoice, SkipRule, SkipSet, parse_skip
from tests.engine.budgets import budget_for
from tests.tiny_gguf import write_tiny_model

LAYERS = 4
N = 64
"""Ids that are scored here, a quarter of what it takes with a model that means something."""
WARM_UP = 32
CONVERSATION_IDS = [int(i) for i in np.random.default_rng(5).integers(3, 300, 400)]


@pytest.fixture(autouse=True)
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.skipping.calibrate.LEAST_SCORED", N)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrate")
    return write_tiny_model(folder / f"{request.param}.gguf", architecture=request.param, layers=LAYERS)


@contextmanager
def opened(path: Path, cache: Path | None = None, **options: object) -> Iterator[LoadedModel]:
    wanted = LoadOptions(path, device="cpu", threads=2, cache_dir=cache, **{"context": 512, **options})  # type: ignore[arg-type]
    with closing(load_model(wanted, lambda stage, progress: None, CancelToken())) as loaded:
        yield loaded


@pytest.fixture
def loaded(model_path: Path) -> Iterator[LoadedModel]:
    with opened(model_path) as loaded:
        yield loaded


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[SkipSet]:
    """What each pass of any model left out."""
    seen: list[SkipSet] = []
    hidden = Transformer.hidden

    def counted(self: Transformer, *args: object, **options: object) -> object:
        seen.append(args[4] if len(args) > 4 else options.get("skip", NOTHING))  # type: ignore[arg-type]
        return hidden(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Transformer, "hidden", counted)
    return seen


def ensured(
    loaded: LoadedModel,
    choice: str | None,
    ids: list[int] | None = None,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Calibration:
    wanted = None if choice is None else parse_skip(choice)
    return ensure_calibrated(loaded, wanted, ids or (), CancelToken(), on_progress)


def scored(loaded: LoadedModel, ids: list[int], skip: SkipSet) -> np.ndarray:
    """Log probabilities [N, V] behind the ids that a conversation is scored on."""
    hidden = loaded.model.hidden(ids, 0, loaded.session.kv, CancelToken(), skip)
    logits = loaded.model.logits(hidden, CancelToken()).astype(np.float64)[-N - 1 : -1]
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_an_effect_is_what_two_runs_of_the_model_differ_by(loaded: LoadedModel) -> None:
    found = ensured(loaded, "blk.1.ffn,blk.2.attn", CONVERSATION_IDS)
    effect = found.effect(frozenset({3, 4}))
    assert effect is not None
    ids = CONVERSATION_IDS[-N - WARM_UP :]
    whole, ours = scored(loaded, ids, NOTHING), scored(loaded, ids, frozenset({3, 4}))
    targets = ids[-N:]
    change = np.mean([whole[row, target] - ours[row, target] for row, target in enumerate(targets)])
    assert found.tokens == len(targets) == N
    assert effect.perplexity_change == pytest.approx(np.expm1(change), rel=1e-4)
    assert effect.perplexity_low < effect.perplexity_change < effect.perplexity_high
    assert effect.top1 == np.mean(whole.argmax(axis=1) == ours.argmax(axis=1))
    # KL64 merges all but the 64 best, so that it is at most the whole divergence.
    kl = np.mean(np.sum(np.exp(whole) * (whole - ours), axis=1))
    assert 0 < effect.kl <= kl * 1.001
    surprise = -np.mean([whole[row, target] for row, target in enumerate(targets)])
    assert found.perplexity == pytest.approx(np.exp(surprise), rel=1e-4)


def test_cosines_are_those_between_the_states_of_the_layers(loaded: LoadedModel) -> None:
    found = ensured(loaded, "cos=0.999999", CONVERSATION_IDS)
    ids = np.array(CONVERSATION_IDS[-N - WARM_UP :], np.int32)
    backend = loaded.backend
    x = backend.embed(ids)
    expected = []
    for layer in range(LAYERS):
        before = backend.states(x)[31:].astype(np.float64)
        backend.layers(layer, layer + 1, x, 0, loaded.session.kv, CancelToken())
        after = backend.states(x)[31:].astype(np.float64)
        lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
        expected.append(np.mean(np.sum(before * after, axis=1) / lengths))
        if layer == 0:
            assert not np.array_equal(before, after)
    assert found.cosines == pytest.approx(expected, abs=1e-5)


@pytest.fixture
def whole(loaded: LoadedModel) -> Calibration:
    return ensured(loaded, None)


def test_blocks_are_measured_alone_and_in_grown_sets(whole: Calibration) -> None:
    assert whole.n_blocks == 2 * LAYERS
    assert whole.text == SHIPPED
    assert whole.tokens == N
    assert all(whole.effect(frozenset((block,))) is not None for block in range(whole.n_blocks))
    assert all(whole.effect(skipped) is not None for skipped in whole.grown)


def test_what_is_known_is_not_measured_again(loaded: LoadedModel, passes: list[SkipSet]) -> None:
    found = ensured(loaded, "kl=0.5")
    assert loaded.calibration is found
    passes.clear()
    assert ensured(loaded, "kl=0.5", CONVERSATION_IDS) is found
    assert ensured(loaded, None) is found
    assert not passes


def test_a_model_that_can_spare_nothing_is_measured_once(
    loaded: LoadedModel, passes: list[SkipSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.skipping.grown_skips.MOST_KL", 1e-9)
    found = ensured(loaded, "kl=0.5")
    assert found.grown == ()
    passes.clear()
    assert ensured(loaded, "kl=0.5") is ensured(loaded, None) is found
    assert not passes


def test_a_set_more_costs_two_passes_on_the_same_text(loaded: LoadedModel, passes: list[SkipSet]) -> None:
    before = ensured(loaded, None)
    passes.clear()
    after = ensured(loaded, "blk.0-1", CONVERSATION_IDS)
    assert passes == [NOTHING, frozenset({0, 1, 2, 3})]
    assert after.effects[:-1] == before.effects
    loaded.calibration = None
    assert after.effects[-1] == ensured(loaded, "blk.0-1").effects[-1]  # not on the conversation
    loaded.calibration = after
    assert (after.text, after.grown) == (before.text, before.grown)
    assert ensured(loaded, "blk.0-1") is after


def test_named_blocks_wait_for_no_more_than_they_need(loaded: LoadedModel, passes: list[SkipSet]) -> None:
    found = ensured(loaded, "blk.2.attn", CONVERSATION_IDS)
    assert passes == [NOTHING, frozenset({4})]
    assert (found.cosines, found.grown, found.text) == ((), (), CONVERSATION)


def test_cosines_measured_later_leave_the_sets_as_they_are(loaded: LoadedModel) -> None:
    before = ensured(loaded, None)
    after = ensured(loaded, "cos=0.999999")
    assert len(after.cosines) == LAYERS
    assert (after.effects, after.grown) == (before.effects, before.grown)


def test_sets_grown_later_leave_the_cosines_as_they_are(loaded: LoadedModel) -> None:
    before = ensured(loaded, "cos=0.999999")
    after = ensured(loaded, None)
    assert after.cosines == before.cosines != ()
    assert after.grown


def test_every_part_of_a_choice_is_there_when_it_was_ensured(loaded: LoadedModel) -> None:
    low = min(ensured(loaded, "cos=0.999999").cosines)
    for text in (f"cos={low}", "kl=1", "blk.1"):
        choice = parse_skip(text)
        assert choice is not None
        found = ensured(loaded, text)
        chosen = chosen_set(found, choice)
        assert found.effect(chosen) is not None or not chosen
        assert chosen or choice.rule is SkipRule.KL  # whose blocks may all change too much


@pytest.mark.parametrize(("n_ids", "origin"), [(N + WARM_UP - 1, SHIPPED), (N + WARM_UP, CONVERSATION)])
def test_a_conversation_counts_when_it_is_long_enough(loaded: LoadedModel, n_ids: int, origin: str) -> None:
    assert ensured(loaded, "blk.0.ffn", CONVERSATION_IDS[:n_ids]).text == origin


def test_what_is_found_is_there_after_the_next_load(
    model_path: Path, tmp_path: Path, passes: list[SkipSet]
) -> None:
    with opened(model_path, tmp_path) as loaded:
        found = ensured(loaded, "kl=0.5")
    passes.clear()
    with opened(model_path, tmp_path) as loaded:
        assert loaded.calibration == found
        assert ensured(loaded, "kl=0.5") == found
    assert not passes


def test_the_session_is_empty_after_measuring_and_untouched_without(loaded: LoadedModel) -> None:
    loaded.session.extend([5, 6, 7])
    ensured(loaded, "blk.0.ffn")
    assert not loaded.session.ids
    loaded.session.extend([5, 6, 7])
    ensured(loaded, "blk.0.ffn")
    assert loaded.session.ids == [5, 6, 7]


@pytest.mark.parametrize("n_passes", [1, 2, 7])
def test_stopping_leaves_an_empty_session_and_nothing_half_known(
    loaded: LoadedModel, passes: list[SkipSet], n_passes: int
) -> None:
    loaded.session.extend([5, 6, 7])
    cancel = CancelToken()

    def stop(share: float) -> None:
        if len(passes) >= n_passes:
            cancel.cancel()

    with pytest.raises(CancelledError):
        ensure_calibrated(loaded, None, (), cancel, stop)
    assert len(passes) <= n_passes + 1
    assert not loaded.session.ids
    assert loaded.calibration is None


@pytest.mark.parametrize("choice", [None, "cos=0.999999", "kl=0.5", "blk.1"])
def test_progress_goes_up_to_the_end(loaded: LoadedModel, choice: str | None) -> None:
    told: list[float] = []
    ensured(loaded, choice, on_progress=told.append)
    assert told == sorted(told)
    assert 0 < told[0] < 0.8
    assert 0.6 < told[-1] <= 1


@pytest.mark.parametrize("context", [64, 200])
def test_a_small_context_is_filled_several_times(model_path: Path, context: int) -> None:
    with opened(model_path, context=context) as loaded:
        found = ensured(loaded, "blk.1", CONVERSATION_IDS)
    assert found.tokens == N
    assert found.text == CONVERSATION


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("blk.4", r"blk\.4 cannot be left out: the model has the layers 0 to 3"),
        ("blk.2-9.ffn", r"blk\.4 cannot be left out"),
        ("blk.0-3", "would leave out everything"),
        ("blk.0-3.attn", "would leave out the attention of every layer"),
        ("kl=1.5", "kl=1.5 would leave out everything"),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_is_measured(
    loaded: LoadedModel, passes: list[SkipSet], choice: str, message: str
) -> None:
    loaded.session.extend([5, 6, 7])
    with pytest.raises(EngineError, match=message) as caught:
        ensured(loaded, choice)
    assert "\n" not in str(caught.value)
    assert not passes and loaded.session.ids


def test_a_cosine_below_that_of_every_layer_is_refused(loaded: LoadedModel, passes: list[SkipSet]) -> None:
    with pytest.raises(EngineError, match=r"cos=-1.* would leave out everything"):
        ensured(loaded, "cos=-1")
    passes.clear()
    with pytest.raises(EngineError, match="would leave out everything"):
        ensured(loaded, "cos=-1")
    assert not passes  # the cosines are kept


def test_nothing_chosen_is_no_fault(loaded: LoadedModel) -> None:
    choice = SkipChoice(SkipRule.COSINE, 1.0)
    assert (
        chosen_set(ensure_calibrated(loaded, choice, (), CancelToken(), lambda share: None), choice)
        == NOTHING
    )


def test_a_text_of_ones_own_takes_the_place_of_what_was_known(loaded: LoadedModel) -> None:
    before = ensured(loaded, "blk.1")
    text = CalibrationText(CONVERSATION_IDS, "letters.txt")
    found = calibrate(loaded, text, 300, CancelToken(), lambda share: None)
    assert (found.text, found.tokens) == ("letters.txt", 300)
    assert found.cosines and found.effect(frozenset({2, 3})) is None
    assert loaded.calibration is found is not before


def test_a_short_text_is_refused_with_its_length(loaded: LoadedModel) -> None:
    text = CalibrationText(CONVERSATION_IDS[:90], "note.txt")
    with pytest.raises(ContextError, match=r"note\.txt has 90 tokens: give one with at least 96"):
        calibrate(loaded, text, 512, CancelToken(), lambda share: None)


def test_our_own_text_is_long_enough_for_every_vocabulary(loaded: LoadedModel) -> None:
    # A vocabulary of real words needs fewer tokens than this one of letters.
    path = Path(__file__).resolve().parents[3] / "engine" / "skipping" / "calibration_text.txt"
    assert len(path.read_text("utf-8").split()) > 500
    assert len(shipped_text(loaded).token_ids) > 256 + WARM_UP


def test_a_folder_that_cannot_be_written_to_is_told_once(model_path: Path, tmp_path: Path) -> None:
    (tmp_path / "calibrations").write_text("in the way")
    with opened(model_path, tmp_path) as loaded:
        ensured(loaded, "blk.1")
        ensured(loaded, "blk.2")
        assert sum("cannot be kept" in notice for notice in loaded.notices) == 1


def test_a_model_streamed_from_disk_measures_the_same(deep_model: Path) -> None:
    ids = CONVERSATION_IDS[-N - WARM_UP :]
    with opened(deep_model) as loaded:
        expected = ensured(loaded, None, ids)
    with opened(deep_model, ram_budget=budget_for(deep_model, 512, 0.3)) as loaded:
        found = ensured(loaded, None, ids)
        assert loaded.backend.tiers is not None and loaded.backend.tiers.stats.read_bytes > 0
    assert found == expected


@pytest.mark.parametrize("begins_with_bos", [True, False])
def test_every_window_begins_with_bos_once_where_the_model_wants_it(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, begins_with_bos: bool
) -> None:
    fed: list[list[int]] = []
    hidden = Transformer.hidden

    def watched(self: Transformer, token_ids: list[int], *args: object) -> object:
        fed.append(list(token_ids))
        return hidden(self, token_ids, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Transformer, "hidden", watched)
    monkeypatch.setattr(loaded.tokenizer, "add_bos", True)
    bos_id = loaded.tokenizer.bos_id
    assert bos_id is not None
    ids = CONVERSATION_IDS[:300]
    text = CalibrationText([bos_id, *ids] if begins_with_bos else ids, "letters.txt")
    calibrate(loaded, text, N, CancelToken(), lambda share: None)
    # The last id of a window is scored, and need not be run.
    assert fed[0] == [bos_id, *ids[: N + WARM_UP - 1]]


@pytest.mark.parametrize("n_near", [0, 4, 8])
def test_the_set_that_drafts_was_measured(loaded: LoadedModel, passes: list[SkipSet], n_near: int) -> None:
    ensured(loaded, None)
    passes.clear()
    near = frozenset(range(n_near))
    skip = measured_draft_set(loaded, near, (), CancelToken(), lambda share: None)
    assert loaded.calibration is not None
    assert skip and loaded.calibration.effect(skip) is not None
    assert len(passes) <= 8
    passes.clear()
    assert measured_draft_set(loaded, near, (), CancelToken(), lambda share: None) == skip
    assert not passes
