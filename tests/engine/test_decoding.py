"""From options to passes: which blocks a reply leaves out, who drafts for it, and changes on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import pytest

from engine.answer import answer
from engine.cancel import CancelToken
from engine.config import DecodingOptions, DraftKind, LoadOptions, Request, SamplingParams
from engine.decoding import Way, ways
from engine.drafting.ngram import NgramDrafter
from engine.drafting.own_blocks import OwnBlocks
from engine.drafting.step_costs import StepCosts
from engine.errors import EngineError
from engine.events import FinishReason, Reply, ReplyStatus
from engine.loading import LoadedModel, load_model
from engine.skipping.calibrated import Calibration, SkipEffect
from engine.skipping.skip_choice import NOTHING, parse_skip
from kernels.quant_types import QuantType
from tests.engine.budgets import budget_for
from tests.tiny_gguf import write_tiny_model

pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")

TEXT = "hello world and the other one " * 4
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoding")
    return write_tiny_model(
        folder / "m.gguf", layers=4, ffn_size=256, quant_type=QuantType.Q8_0, context=2048
    )


def load(path: Path, **options: object) -> LoadedModel:
    chosen = LoadOptions(path, context=1024, threads=1, **options)  # type: ignore[arg-type]
    return load_model(chosen, lambda stage, progress: None, CancelToken())


@pytest.fixture(scope="module")
def loaded(path: Path) -> Iterator[LoadedModel]:
    with closing(load(path, draft_model=path)) as loaded:
        yield loaded


def asked(decoding: DecodingOptions, prompt: str = TEXT, n: int = 24, **sampling: float) -> Reply:
    params = SamplingParams(**sampling) if sampling else GREEDY  # type: ignore[arg-type]
    return Reply(Request(prompt=prompt, decoding=decoding, sampling=params, max_tokens=n))


def answered(loaded: LoadedModel, decoding: DecodingOptions, **options: object) -> Reply:
    reply = asked(decoding, **options)  # type: ignore[arg-type]
    answer(loaded, reply, perf_counter(), lambda: None)
    return reply


def way_of(loaded: LoadedModel, decoding: DecodingOptions) -> Way:
    return ways(loaded, asked(decoding), [5, 6, 7], lambda share: None)()


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "drawn"])
@pytest.mark.parametrize("k", [None, 1, 5, 15])
@pytest.mark.parametrize("kind", DraftKind)
def test_a_reply_is_the_same_whoever_drafts(
    loaded: LoadedModel, kind: DraftKind, k: int | None, sampling: dict[str, float]
) -> None:
    plain = answered(loaded, DecodingOptions(), **sampling)
    drafted = answered(loaded, DecodingOptions(draft=kind, draft_k=k), **sampling)
    assert drafted.token_ids == plain.token_ids
    assert drafted.text == plain.text
    stats = drafted.stats
    assert 0 <= stats.accepted_tokens <= stats.drafted_tokens
    assert len(drafted.from_draft) == len(drafted.token_ids)
    n_stop_ids = int(drafted.finish_reason is FinishReason.STOP)  # which may be a draft, and is not told
    assert stats.accepted_tokens - sum(drafted.from_draft) in (0, n_stop_ids)
    assert not any(plain.from_draft)
    assert stats.skipped_blocks == 0
    assert stats.skip_effect is None
    if kind is DraftKind.MODEL and k and drafted.finish_reason is FinishReason.LENGTH:
        # It is the model itself.
        assert stats.acceptance_rate == 1
        assert stats.drafts_at_once > 0
        assert stats.speed_up > 0


def test_blocks_that_are_named_are_left_out_of_prompt_and_reply_and_their_effect_is_told(
    loaded: LoadedModel,
) -> None:
    reply = answered(loaded, DecodingOptions(skip=parse_skip("blk.1.ffn,blk.2")))
    skip = frozenset({3, 4, 5})
    assert reply.stats.skipped_blocks == 3
    assert reply.stats.skip_effect is not None
    assert reply.stats.skip_effect.skipped == skip
    assert loaded.session.serving(skip) == len(loaded.session.ids)
    assert loaded.session.serving(NOTHING) == 0
    assert reply.token_ids != answered(loaded, DecodingOptions()).token_ids


def test_a_prompt_that_was_computed_with_blocks_left_out_is_computed_again(loaded: LoadedModel) -> None:
    skipping = DecodingOptions(skip=parse_skip("blk.1"))
    answered(loaded, skipping)
    assert answered(loaded, skipping).stats.recomputed_tokens == 0
    whole = answered(loaded, DecodingOptions())
    assert whole.stats.cached_tokens == 0
    assert whole.stats.recomputed_tokens == whole.stats.prompt_tokens - 1


def test_calibration_is_told_and_comes_before_the_prompt(path: Path) -> None:
    with closing(load(path)) as loaded:
        reply = asked(DecodingOptions(skip=parse_skip("blk.2")))
        seen = []
        answer(
            loaded, reply, perf_counter(), lambda: seen.append((reply.status, reply.stats.calibrated_share))
        )
        statuses = [status for status, _ in seen]
        assert statuses[0] is ReplyStatus.CALIBRATE
        assert statuses.index(ReplyStatus.PREFILL) > statuses.count(ReplyStatus.CALIBRATE) - 1
        shares = [share for status, share in seen if status is ReplyStatus.CALIBRATE]
        assert shares == sorted(shares)
        assert 0 < shares[-1] <= 1
        assert loaded.calibration is not None


def test_a_cancel_while_it_is_calibrated_ends_the_reply(path: Path) -> None:
    with closing(load(path)) as loaded:
        reply = asked(DecodingOptions(skip=parse_skip("kl=0.1")))
        answer(loaded, reply, perf_counter(), reply.cancel)
        assert reply.finish_reason is FinishReason.CANCELLED
        assert loaded.session.ids == []
        # What follows is as if nothing had been.
        assert answered(loaded, DecodingOptions()).finish_reason is FinishReason.LENGTH


def test_options_may_change_in_the_middle_of_a_reply(loaded: LoadedModel) -> None:
    reply = asked(DecodingOptions(draft=DraftKind.NGRAM, draft_k=3), n=24)
    skipping = DecodingOptions(skip=parse_skip("blk.3.ffn"), draft=DraftKind.NGRAM)
    answered(loaded, skipping)  # its effect is measured once
    answered(loaded, DecodingOptions())  # and the prompt is computed with all blocks

    def change() -> None:
        if len(reply.token_ids) == 6:
            reply.change_decoding(skipping)
        if len(reply.token_ids) == 12:
            reply.change_decoding(DecodingOptions())
        if reply.status is ReplyStatus.RECOMPUTE:
            shares.append(reply.stats.recomputed_share)

    shares: list[float] = []
    answer(loaded, reply, perf_counter(), change)
    assert (shares[0], shares[-1]) == (0, 1)
    assert shares == sorted(shares)
    assert [options for _, options in reply.decoding_changes] == [skipping, DecodingOptions()]
    assert reply.decoding_changes[0][0] in range(6, 10)
    # For the first change all serves; for the second nothing that was computed since.
    assert 3 <= reply.stats.recomputed_tokens < 20
    assert loaded.session.serving(NOTHING) == len(loaded.session.ids)


def test_a_change_that_the_model_cannot_do_is_refused_and_the_reply_goes_on(loaded: LoadedModel) -> None:
    plain = answered(loaded, DecodingOptions())
    reply = asked(DecodingOptions())

    def change() -> None:
        if len(reply.token_ids) == 3:
            reply.change_decoding(DecodingOptions(skip=parse_skip("blk.9999")))

    answer(loaded, reply, perf_counter(), change)
    assert reply.token_ids == plain.token_ids
    assert "blk.9999" in reply.decoding_refusal
    refused = asked(DecodingOptions())

    def draft() -> None:
        if len(refused.token_ids) == 3:
            refused.change_decoding(
                DecodingOptions(skip=parse_skip("blk.2"), draft=DraftKind.EXIT, exit_layer=99)
            )

    answer(loaded, refused, perf_counter(), draft)
    assert refused.token_ids == plain.token_ids
    tiers = loaded.backend.tiers
    assert tiers is None or not tiers.snapshot().skipped, "nothing has moved"
    assert (reply.decoding, reply.decoding_changes) == (DecodingOptions(), ())
    reply.change_decoding(DecodingOptions(draft=DraftKind.NGRAM))
    assert not reply.decoding_refusal


def test_a_change_that_has_to_be_calibrated_computes_all_again(path: Path) -> None:
    with closing(load(path)) as loaded:
        reply = asked(DecodingOptions(), n=20)
        calibrated_at = []

        def change() -> None:
            if reply.status is ReplyStatus.CALIBRATE:
                calibrated_at.append(perf_counter())
            if len(reply.token_ids) == 5:
                reply.change_decoding(DecodingOptions(skip=parse_skip("blk.2")))

        began = perf_counter()
        answer(loaded, reply, began, change)
        took, calibrating = perf_counter() - began, calibrated_at[-1] - calibrated_at[0]
        assert reply.stats.prefill_s + reply.stats.decode_s < took - calibrating
        assert len(reply.token_ids) == 20
        assert reply.stats.recomputed_tokens >= reply.stats.prompt_tokens
        assert reply.stats.skipped_blocks == 2
        assert len(loaded.session.ids) == reply.stats.prompt_tokens + 19


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (DecodingOptions(skip=parse_skip("blk.9")), "layers 0 to 3"),
        (DecodingOptions(skip=parse_skip("blk.0-3")), "everything"),
        (DecodingOptions(draft=DraftKind.EXIT, exit_layer=4), "4 layers"),
    ],
)
def test_what_cannot_be_done_with_a_model_is_refused_in_a_line(
    loaded: LoadedModel, options: DecodingOptions, words: str
) -> None:
    with pytest.raises(EngineError, match=words):
        answered(loaded, options)


def test_a_draft_model_that_is_not_there_is_asked_for(path: Path) -> None:
    with closing(load(path)) as loaded, pytest.raises(EngineError, match="no draft model is loaded"):
        answered(loaded, DecodingOptions(draft=DraftKind.MODEL))


def test_a_drafter_that_looks_up_goes_on_with_what_it_knows(loaded: LoadedModel) -> None:
    reply = asked(DecodingOptions(draft=DraftKind.NGRAM))
    now = ways(loaded, reply, [5, 6, 7], lambda share: None)
    first = now().drafter
    assert isinstance(first, NgramDrafter)
    reply.change_decoding(DecodingOptions(draft=DraftKind.NGRAM, draft_k=4))
    assert now() == Way(NOTHING, first, 4, DraftKind.NGRAM)


def calibrated(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, top1: float) -> None:
    """Let drafts agree so often whichever block they leave out, and never without two of them."""
    alone = [frozenset({block}) for block in range(8)]
    effects = tuple(SkipEffect(skip, 1 - top1, 0.1, 0.0, 0.2, top1) for skip in alone)
    known = Calibration(8, 256, "a text", 10.0, (), effects, grown=(frozenset({1}),))
    monkeypatch.setattr(loaded, "calibration", known)


def ready_costs() -> StepCosts:
    """With a plain step measured, there is something to compare drafts with from the first round on."""
    costs = StepCosts()
    for _ in range(2):
        costs.passes(NOTHING).add(1, 1.0)
    return costs


SELF = DecodingOptions(draft=DraftKind.SELF)


def test_drafts_that_calibration_expects_to_lose_are_not_tried_and_that_is_told(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated(loaded, monkeypatch, 0.05)
    monkeypatch.setattr(loaded, "costs", ready_costs())
    way = way_of(loaded, SELF)
    assert way.drafter is None
    assert 0 < way.expected_loss < 1
    stats = answered(loaded, SELF).stats
    assert (stats.drafted_tokens, stats.drafts_at_once) == (0, 0)
    assert stats.expected_speed_up == way.expected_loss
    assert answered(loaded, DecodingOptions()).stats.expected_speed_up == 0.0


def test_as_many_drafts_as_were_asked_for_are_made_whatever_is_expected_of_them(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated(loaded, monkeypatch, 0.05)
    monkeypatch.setattr(loaded, "costs", ready_costs())
    stats = answered(loaded, replace(SELF, draft_k=2)).stats
    assert stats.drafted_tokens > 10
    assert stats.expected_speed_up == 0.0


def test_drafts_that_promise_a_gain_are_tried(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated(loaded, monkeypatch, 0.95)
    monkeypatch.setattr(loaded, "costs", ready_costs())
    stats = answered(loaded, SELF).stats
    assert stats.drafted_tokens > 0
    assert stats.expected_speed_up == 0.0


def test_calibration_promises_nothing_where_every_pass_leaves_blocks_out(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated(loaded, monkeypatch, 0.05)
    way = way_of(loaded, replace(SELF, skip=parse_skip("blk.2.ffn")))
    assert isinstance(way.drafter, OwnBlocks)
    assert way.expected_loss == 0.0


def test_what_was_expected_to_lose_drafts_once_blocks_that_it_leaves_out_have_to_be_fetched(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated(loaded, monkeypatch, 0.75)
    now = ways(loaded, asked(SELF), [5, 6, 7], lambda share: None)
    assert now().drafter is None
    monkeypatch.setattr(type(loaded.backend.tiers), "near", frozenset(range(8)) - {3})
    found = [now() for _ in range(40)]
    assert found[0].drafter is None
    assert isinstance(found[-1].drafter, OwnBlocks)
    assert found[-1].drafter.skip == {3}
    assert found[-1].expected_loss == 0.0


def test_an_exit_drafts_with_the_first_layers_and_what_passes_leave_out_is_left_out_too(
    loaded: LoadedModel,
) -> None:
    way = way_of(loaded, DecodingOptions(draft=DraftKind.EXIT))
    assert isinstance(way.drafter, OwnBlocks)
    assert way.drafter.skip == {4, 5, 6, 7}
    way = way_of(loaded, DecodingOptions(parse_skip("blk.0.ffn"), DraftKind.EXIT, exit_layer=3))
    assert isinstance(way.drafter, OwnBlocks)
    assert way.skip == {1}
    assert way.drafter.skip == {1, 6, 7}


def test_where_everything_is_near_there_is_nothing_for_resident_blocks_to_save(loaded: LoadedModel) -> None:
    assert way_of(loaded, DecodingOptions(draft=DraftKind.RESIDENT)).drafter is None


def test_resident_blocks_draft_where_others_are_read_and_follow_the_budget(path: Path) -> None:
    with closing(load(path, ram_budget=budget_for(path, 1024, 0.5))) as loaded:
        tiers = loaded.backend.tiers
        assert tiers is not None
        way = way_of(loaded, DecodingOptions(draft=DraftKind.RESIDENT))
        assert isinstance(way.drafter, OwnBlocks)
        assert way.drafter.skip == frozenset(range(8)) - tiers.near
        plain = answered(loaded, DecodingOptions())
        drafted = answered(loaded, DecodingOptions(draft=DraftKind.RESIDENT, draft_k=3))
        assert drafted.token_ids == plain.token_ids
