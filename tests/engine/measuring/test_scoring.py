"""Texts scored through a loaded model, and settings beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cancel import CancelToken
from engine.config import LoadOptions, Precision
from engine.errors import CancelledError, ContextError, DeviceError, EngineError
from engine.measuring import scoring
from engine.measuring.scoring import ScoredText, Scorer, Scores, score_texts
from engine.measuring.setting import parse_setting
from kernels.quant_types import QuantType
from tests.tiny_gguf import write_tiny_model

TEXTS = (
    ScoredText("a.txt", "hello world, the end of the world is in the sea. " * 6),
    ScoredText("b.txt", "another text, and in it other words of the world. " * 5),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("kernels.cpu", reason="the C kernels were not built: no compiler?")
    path = tmp_path_factory.mktemp("scoring") / "tiny.gguf"
    return write_tiny_model(path, quant_type=QuantType.Q8_0, layers=4, context=1024)


def scorer(**changes: object) -> Scorer:
    return Scorer(**{"window": 64, "stride": 32, "cancel": CancelToken()} | changes)  # type: ignore[arg-type]


def score(path: Path, *settings: str, texts: tuple[ScoredText, ...] = TEXTS, **changes: object) -> Scores:
    options = LoadOptions(path, threads=1, chunk=32)
    return score_texts(options, texts, [parse_setting(text) for text in settings], scorer(**changes))


def test_texts_are_scored_alone_and_together(tiny: Path) -> None:
    scores = score(tiny)
    alone = [score(tiny, texts=(text,)).together for text in TEXTS]
    assert scores.each == tuple(alone)
    assert scores.together.tokens == sum(each.tokens for each in alone)
    lowest, highest = sorted(each.perplexity for each in alone)
    assert lowest < scores.together.perplexity < highest
    assert scores.settings == ()


def test_a_comparison_does_not_change_what_the_whole_model_scores(tiny: Path) -> None:
    assert score(tiny, "skip=blk.1").each == score(tiny).each


def test_settings_are_measured_beside_the_whole_model_in_their_order(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    load_model = scoring.load_model

    def seen(options, *rest):  # type: ignore[no-untyped-def]
        opened.append(options.precision)
        return load_model(options, *rest)

    monkeypatch.setattr(scoring, "load_model", seen)
    same, floats, skipping = score(tiny, "precision=fast", "precision=float", "skip=blk.1-2.ffn").settings
    assert opened == [Precision.FAST, Precision.FLOAT]
    assert (same.change.kl_mean, same.change.perplexity_change, same.change.top1) == (0, 0, 1)
    assert 0 < floats.change.kl_mean < 0.01
    assert floats.skipped == frozenset()
    assert skipping.skipped == {3, 5}
    assert skipping.change.kl_mean > floats.change.kl_mean
    assert skipping.change.perplexity_low <= skipping.change.perplexity_change
    assert same.change.perplexity == score(tiny).together.perplexity


def test_a_rule_is_calibrated_for_and_its_set_measured(tiny: Path) -> None:
    stages: list[str] = []
    (found,) = score(tiny, "skip=kl=1", on_progress=lambda stage, share: stages.append(stage)).settings
    assert len(found.skipped) > 0
    assert found.change.kl_mean > 0
    assert "calibrating" in stages
    assert stages.index("scoring the whole model") < stages.index("scoring skip=kl=1")


def test_blocks_that_the_model_does_not_have_are_refused(tiny: Path) -> None:
    with pytest.raises(EngineError) as caught:
        score(tiny, "skip=blk.9")
    assert "\n" not in str(caught.value)


def test_a_cache_of_another_kind_needs_a_gpu(tiny: Path) -> None:
    with pytest.raises(DeviceError, match="kv=q8_0 is about the cache of a GPU"):
        score(tiny, "kv=q8_0")


def test_a_text_that_is_too_short_is_named(tiny: Path) -> None:
    with pytest.raises(ContextError, match=r"short\.txt: the text has \d tokens"):
        score(tiny, texts=(TEXTS[0], ScoredText("short.txt", "hello")))


def test_scoring_can_be_stopped(tiny: Path) -> None:
    cancel = CancelToken()

    def stop(stage: str, share: float) -> None:
        if stage.startswith("scoring"):
            cancel.cancel()

    with pytest.raises(CancelledError):
        score(tiny, "skip=blk.1", cancel=cancel, on_progress=stop)
