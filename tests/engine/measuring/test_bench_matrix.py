"""The researcher's bench: what is measured of a case, beside what, and what it refuses to time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.cancel import CancelToken
from engine.config import DecodingOptions, DraftKind, LoadOptions, Precision
from engine.errors import CancelledError, KernelError
from engine.measuring import bench_matrix
from engine.measuring.bench_matrix import measure_matrix
from engine.measuring.matrix_case import Case, CaseResult, MatrixTask
from engine.measuring.scoring import Scorer
from engine.skipping.skip_choice import parse_skip
from engine.tiers.budget import parse_budget
from kernels.quant_types import QuantType
from tests.tiny_gguf import write_tiny_model

pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")

TASK = MatrixTask(
    text="hello world, the end of the world is in the sea. " * 12,
    prompt="one two one two one two one two one",
    decode_tokens=12,
    repetitions=2,
    window=64,
    scored_tokens=100,
)
PLAIN = DecodingOptions()
NGRAM = DecodingOptions(draft=DraftKind.NGRAM, draft_k=3)
SKIPPING = DecodingOptions(skip=parse_skip("blk.1"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadOptions:
    path = tmp_path_factory.mktemp("matrix") / "tiny.gguf"
    return LoadOptions(write_tiny_model(path, quant_type=QuantType.Q8_0, layers=4, context=1024), threads=1)


def scorer(cancel: CancelToken | None = None) -> Scorer:
    return Scorer(64, 32, cancel or CancelToken())


def measure(cases: Sequence[Case], task: MatrixTask = TASK) -> list[CaseResult]:
    found = dict(measure_matrix(cases, task, scorer()))
    assert set(found) == set(cases)
    return [found[case] for case in cases]


def test_a_case_has_rates_plan_and_quality(tiny: LoadOptions) -> None:
    (result,) = measure([Case(tiny, PLAIN)])
    assert result.error == ""
    assert (result.quantisation, result.scored_tokens, result.skipped_blocks) == ("Q8_0", 100, 0)
    assert (result.completion_tokens, result.acceptance_rate, result.agreeing_tokens) == (12, None, None)
    assert result.prefill_tok_s is not None
    assert result.decode_tok_s_min <= result.decode_tok_s <= result.decode_tok_s_max  # type: ignore[operator]
    assert (result.kl_mean, result.perplexity_change, result.top1) == (0, 0, 1)  # it is its own reference
    assert result.plan is not None
    assert result.plan.startswith("ram: ")
    assert result.plan.endswith(" MB, computed by cpu")


def test_drafts_change_no_reply_and_skipped_blocks_move_the_distribution(tiny: LoadOptions) -> None:
    plain, drafting, skipping = measure([Case(tiny, each) for each in (PLAIN, NGRAM, SKIPPING)])
    assert drafting.agreeing_tokens == bench_matrix._AGREEING
    assert drafting.kl_mean == 0
    assert drafting.perplexity == plain.perplexity
    assert skipping.skipped_blocks == 2
    assert skipping.kl_mean > 0  # type: ignore[operator]
    assert skipping.perplexity_low < skipping.perplexity_change < skipping.perplexity_high  # type: ignore[operator]


def test_cases_that_open_a_model_alike_load_it_once(
    tiny: LoadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    is_open = bench_matrix._open

    def seen(options: LoadOptions, *rest: object) -> object:
        opened.append((options.precision, options.threads))
        return is_open(options, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(bench_matrix, "_open", seen)
    floats = replace(tiny, precision=Precision.FLOAT)
    cases = [Case(options, each) for each in (PLAIN, SKIPPING) for options in (floats, tiny)]
    results = measure(cases)
    # The reference is in the fast precision, and known when its own cases come.
    assert opened == [(Precision.FAST, 1), (Precision.FLOAT, 1), (Precision.FAST, 1)]
    assert [result.error for result in results] == [""] * 4
    assert 0 < results[0].kl_mean < 0.01  # type: ignore[operator]
    assert results[1].kl_mean == 0


def test_another_file_can_be_the_reference(tiny: LoadOptions, tmp_path: Path) -> None:
    reference = write_tiny_model(tmp_path / "f32.gguf", layers=4, context=1024)
    (result,) = measure([Case(tiny, PLAIN)], replace(TASK, reference=reference))
    assert 0 < result.kl_mean < 0.1  # type: ignore[operator]


def test_a_reference_with_another_vocabulary_is_refused(tiny: LoadOptions, tmp_path: Path) -> None:
    reference = write_tiny_model(tmp_path / "other.gguf", vocab_size=900, context=1024)
    (result,) = measure([Case(tiny, PLAIN)], replace(TASK, reference=reference))
    assert "its vocabulary is not that of the reference" in result.error
    assert result.decode_tok_s is None


def test_what_cannot_be_had_is_told_and_the_others_go_on(tiny: LoadOptions, tmp_path: Path) -> None:
    nothing = replace(tiny, ram_budget=parse_budget("1K"))
    beyond = DecodingOptions(skip=parse_skip("blk.7"))
    starved, good, missing, odd = measure(
        [
            Case(nothing, PLAIN),
            Case(tiny, PLAIN),
            Case(replace(tiny, path=tmp_path / "missing.gguf"), PLAIN),
            Case(tiny, beyond),
        ]
    )
    for failed in (starved, missing, odd):
        assert failed.error
        assert "\n" not in failed.error
        assert failed.decode_tok_s is None
    assert good.decode_tok_s is not None


def test_a_wrong_product_is_not_timed(tiny: LoadOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    verification = pytest.importorskip("kernels.verification")
    monkeypatch.setattr(verification, "product_is_right", lambda *_, **__: False)
    (result,) = measure([Case(tiny, PLAIN)])
    assert "differs from its oracle" in result.error
    assert result.decode_tok_s is None


def test_drafts_that_change_a_reply_are_not_timed(tiny: LoadOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = bench_matrix._LoadedBench._reply

    def broken(bench, decoding, *rest):  # type: ignore[no-untyped-def]
        got = reply(bench, decoding, *rest)
        if decoding.draft is not DraftKind.OFF:
            got.token_ids[5] += 1
        return got

    monkeypatch.setattr(bench_matrix._LoadedBench, "_reply", broken)
    plain, drafting = measure([Case(tiny, PLAIN), Case(tiny, NGRAM)])
    assert plain.error == ""
    assert "a reply with drafts (ngram) differs from one without, at its token 5" in drafting.error
    assert (drafting.decode_tok_s, drafting.kl_mean) == (None, 0)


def test_ids_that_are_nearly_as_good_are_rounding(tiny: LoadOptions) -> None:
    with bench_matrix.closing(bench_matrix._open(tiny, TASK, scorer())) as loaded:
        bench = bench_matrix._LoadedBench(loaded, TASK, scorer(), bench_matrix._keep(loaded, TASK, scorer()))
        assert bench._verify(Case(tiny, PLAIN)) is None
        (plain,) = bench._plain.values()
        assert bench._is_near(None, 4, plain[4:])
        assert not bench._is_near(None, 4, [(plain[4] + 1) % 300])
        assert not bench._is_near(None, 4, [])  # a reply that ended is judged by its stop ids


def test_a_sampled_reply_has_the_seed_of_the_task(tiny: LoadOptions) -> None:
    (result,) = measure([Case(tiny, PLAIN)], replace(TASK, temperature=0.8, seed=3))
    assert result.completion_tokens == 12


def test_the_bench_can_be_stopped(tiny: LoadOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = CancelToken()
    answer = bench_matrix.answer

    def stopping(*arguments):  # type: ignore[no-untyped-def]
        cancel.cancel()
        answer(*arguments)

    monkeypatch.setattr(bench_matrix, "answer", stopping)
    with pytest.raises(CancelledError):
        list(measure_matrix([Case(tiny, PLAIN)], TASK, scorer(cancel)))


def test_errors_of_one_kind_only_are_told(tiny: LoadOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(loaded: object) -> None:
        raise KernelError("wrong")

    monkeypatch.setattr(bench_matrix, "check_products", fails)
    (result,) = measure([Case(tiny, PLAIN)])
    assert result == CaseResult(error="wrong")
