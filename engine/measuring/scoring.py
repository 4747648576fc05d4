"""A model file scored: over texts, in other settings beside its own, or against reference logits.

Joins loading, calibration and the measures. Knows which context a measure needs. Called by
`tiercel perplexity` and `bench_matrix`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from engine.cancel import CancelToken
from engine.config import LoadOptions
from engine.errors import ContextError, DeviceError
from engine.loading import LoadedModel, OnProgress, load_model
from engine.measuring.benchmark_gpu import gpu_backend
from engine.measuring.evaluate import (
    Comparison,
    Float64Array,
    Perplexity,
    Window,
    compare_with_reference,
    cut_windows,
    measure_surprises,
    perplexity_of,
)
from engine.measuring.quality import Change, Distributions, keep_distributions, measure_change
from engine.measuring.reference_file import read_reference
from engine.measuring.setting import Setting
from engine.skipping.calibrate import chosen_set, ensure_calibrated
from engine.skipping.skip_choice import NOTHING, SkipChoice, SkipSet
from engine.tokenizer import Tokenizer

OnNotices = Callable[[tuple[str, ...]], None]
"""Called with what a person should know about how the model runs, before it does."""

LEAST_CONTEXT = 512
"""Positions that calibration works in."""


class ScoredText(NamedTuple):
    """Something to score."""

    name: str
    """For people."""
    text: str


class SettingScore(NamedTuple):
    """What a setting does."""

    skipped: SkipSet
    """The layer blocks that it leaves out."""
    change: Change


@dataclass(frozen=True, slots=True)
class Scores:
    """Of some texts."""

    together: Perplexity
    each: tuple[Perplexity, ...]
    """In the order of the texts."""
    settings: tuple[SettingScore, ...]
    """In the order of the settings."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """How texts are cut and scored, and who is told meanwhile. Its methods raise CancelledError."""

    window: int
    """Ids of a window."""
    stride: int
    """Ids from one window to the next."""
    cancel: CancelToken
    on_notices: OnNotices = lambda notices: None
    on_progress: OnProgress = lambda stage, share: None

    def open(self, options: LoadOptions) -> LoadedModel:
        """Load a model with room for a window. Raises as loading."""
        options = replace(options, context=max(self.window, options.context or 0))
        loaded = load_model(options, self.on_progress, self.cancel)
        self.on_notices(loaded.notices)
        return loaded

    def cut(self, tokenizer: Tokenizer, text: ScoredText) -> list[Window]:
        """The windows of a text; ContextError naming it when it is too short."""
        bos_id = tokenizer.bos_id if tokenizer.add_bos else None
        try:
            return cut_windows(
                tokenizer.encode(text.text), window=self.window, stride=self.stride, bos_id=bos_id
            )
        except ContextError as error:
            raise ContextError(f"{text.name}: {error}") from None

    def watched(self, windows: Sequence[Window], what: str) -> Iterator[Window]:
        """The windows, how far they are told before each."""
        for number, window in enumerate(windows):
            self.on_progress(f"scoring {what}", number / len(windows))
            yield window

    def keep(self, loaded: LoadedModel, windows: Sequence[Window]) -> Distributions:
        """What the whole model expects."""
        loaded.session.cut(0)
        watched = self.watched(windows, "the whole model")
        return keep_distributions(loaded.model, watched, loaded.session.kv, self.cancel, chunk=loaded.chunk)

    def compare(
        self,
        loaded: LoadedModel,
        windows: Sequence[Window],
        whole: Distributions,
        skip: SkipSet,
        what: str,
    ) -> Change:
        """How far the model without the blocks in `skip` is from the whole one."""
        loaded.session.cut(0)
        watched = self.watched(windows, what)
        return measure_change(
            loaded.model, watched, whole, loaded.session.kv, self.cancel, chunk=loaded.chunk, skip=skip
        )

    def skip_set(self, loaded: LoadedModel, choice: SkipChoice | None) -> SkipSet:
        """The blocks that a choice means; calibrates for it where nothing is known.

        Raises EngineError for a choice that the model cannot have.
        """
        if choice is None:
            return NOTHING
        known = ensure_calibrated(
            loaded, choice, (), self.cancel, lambda share: self.on_progress("calibrating", share)
        )
        return chosen_set(known, choice)


def score_texts(
    options: LoadOptions, texts: Sequence[ScoredText], settings: Sequence[Setting], scorer: Scorer
) -> Scores:
    """Perplexity of texts, and how settings change it, beside the whole model as `options` open it.

    A setting that opens the model otherwise loads it again. Raises the engine's errors: DeviceError for a
    setting that changes nothing here, ContextError for a text that is too short; CancelledError.
    """
    if any(setting.skip for setting in settings):
        options = replace(options, context=LEAST_CONTEXT)
    changed: dict[Setting, SettingScore] = {}
    with closing(scorer.open(options)) as loaded:
        cut = [scorer.cut(loaded.tokenizer, text) for text in texts]
        windows = [window for each in cut for window in each]
        if not settings:
            watched = scorer.watched(windows, "the texts" if len(texts) > 1 else "the text")
            kv, chunk = loaded.session.kv, loaded.chunk
            return _scores(cut, measure_surprises(loaded.model, watched, kv, scorer.cancel, chunk=chunk), ())
        whole = scorer.keep(loaded, windows)
        for setting in settings:
            if setting.applied(options) == options:
                changed[setting] = _score(loaded, setting, windows, whole, scorer)
    for setting in settings:
        if setting not in changed:
            with closing(scorer.open(setting.applied(options))) as loaded:
                changed[setting] = _score(loaded, setting, windows, whole, scorer)
    return _scores(cut, whole.surprises, [changed[setting] for setting in settings])


def _score(
    loaded: LoadedModel,
    setting: Setting,
    windows: Sequence[Window],
    whole: Distributions,
    scorer: Scorer,
) -> SettingScore:
    if setting.kv_type is not None and gpu_backend(loaded.backend) is None:
        raise DeviceError(
            f"{setting.text} is about the cache of a GPU, and here the processor computes: leave it out"
        )
    skip = scorer.skip_set(loaded, setting.skip)
    return SettingScore(skip, scorer.compare(loaded, windows, whole, skip, setting.text))


def _scores(
    cut: Sequence[Sequence[Window]], surprises: Float64Array, settings: Sequence[SettingScore]
) -> Scores:
    """Share the surprises out to the texts that they come from."""
    ends = np.cumsum([sum(window.n_scored for window in windows) for windows in cut])
    each = tuple(perplexity_of(part) for part in np.split(surprises, ends[:-1]))
    return Scores(perplexity_of(surprises), each, tuple(settings))


def score_against_reference(
    options: LoadOptions, path: Path, *, cancel: CancelToken, on_notices: OnNotices
) -> Comparison:
    """Distance to the reference logits in the file at `path`, ids fed in chunks of `options.chunk`."""
    reference = read_reference(path)
    context = len(reference.token_ids)
    loaded = load_model(replace(options, context=context), lambda stage, progress: None, cancel)
    try:
        on_notices(loaded.notices)
        reference.check_vocabulary(loaded.info.vocab_size)
        return compare_with_reference(loaded.model, reference, loaded.session.kv, cancel, chunk=loaded.chunk)
    finally:
        loaded.close()
