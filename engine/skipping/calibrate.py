"""What a model does without some of its blocks: measured once, kept, and extended by what is asked for later.

Knows which text is measured on, what a choice needs and which choices are refused; does not know how an
effect is measured (`skip_probe`), how sets grow (`grown_skips`) or how they are kept (`calibration_file`).
Called before a reply that leaves blocks out, before drafts by the model itself, and by `tiercel calibrate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import NamedTuple

from engine.cancel import CancelToken
from engine.errors import ContextError, DecodingError
from engine.loading import LoadedModel
from engine.measuring.evaluate import Window, cut_windows
from engine.skipping.block_costs import block_costs
from engine.skipping.calibrated import Calibration
from engine.skipping.grown_skips import grow, leaves_too_little, likely_measured
from engine.skipping.skip_choice import MOST_KL, SkipChoice, SkipRule, SkipSet
from engine.skipping.skip_probe import SkipProbe

LEAST_SCORED = 256
"""Ids that a calibration goes by at least, and those that a reply waits for."""
SHIPPED = "the text that comes with Tiercel"
CONVERSATION = "a conversation"
_WINDOW = 512
_WARM_UP = 32
"""Ids of a window that are not scored: with next to nothing before them, models behave unlike later on."""

OnProgress = Callable[[float], None]
"""Called after each pass with how far calibration is, 0 to 1."""


class CalibrationText(NamedTuple):
    """What is measured on."""

    token_ids: Sequence[int]
    origin: str
    """In words."""


def ensure_calibrated(
    loaded: LoadedModel,
    choice: SkipChoice | None,
    conversation_ids: Sequence[int],
    cancel: CancelToken,
    on_progress: OnProgress,
) -> Calibration:
    """All that is known of the model, with what `choice` needs: its set can be chosen, and has an effect.

    Without a choice that is what drafting needs, the grown sets. What is not known yet is measured and kept,
    on the conversation where it is long enough: the session is empty then, also when this fails.
    Raises DecodingError for a choice that cannot be had, CancelledError, and what a pass raises.
    """
    _refuse_beforehand(choice, 2 * loaded.model.config.n_layers)
    known, rule = loaded.calibration, SkipRule.KL if choice is None else choice.rule
    serves = known is not None and known.serves(rule)
    if known is not None and serves and _has_effect(known, choice):
        return known
    text = _text_at_hand(loaded, conversation_ids, extends=serves)
    cosines, grown = (not serves and rule is wanted for wanted in (SkipRule.COSINE, SkipRule.KL))
    passes = _expected_passes(loaded, cosines=cosines, grown=grown)
    measuring = _Measuring(loaded, text, LEAST_SCORED, cancel, _Progress(passes, on_progress))
    if known is None or not serves:
        known = measuring.whole(known, cosines=cosines, grown=grown)
    if choice is not None and not _has_effect(known, choice):
        known = measuring.one_more(known, chosen_set(known, choice))
    return known


def calibrate(
    loaded: LoadedModel,
    text: CalibrationText,
    n_scored: int,
    cancel: CancelToken,
    on_progress: OnProgress,
) -> Calibration:
    """Measure everything on a text, of which `n_scored` ids are scored at most, and keep that instead.

    The session is empty afterwards. Raises ContextError for a short text, CancelledError, and what a pass
    raises.
    """
    progress = _Progress(_expected_passes(loaded, cosines=True, grown=True), on_progress)
    return _Measuring(loaded, text, n_scored, cancel, progress).whole(None, cosines=True, grown=True)


def chosen_set(calibration: Calibration, choice: SkipChoice) -> SkipSet:
    """The set that a choice means; DecodingError where it would leave out everything."""
    lowest = min(calibration.cosines, default=choice.threshold)
    if choice.rule is SkipRule.COSINE and lowest > choice.threshold:
        raise DecodingError(
            f"{choice} would leave out everything: input and output of all layers are more alike than that "
            f"({lowest:.3f} to {max(calibration.cosines):.3f}); give a higher threshold"
        )
    return calibration.choose(choice)


def shipped_text(loaded: LoadedModel) -> CalibrationText:
    """Our own text, of several kinds, in the ids of a model."""
    text = (files("engine.skipping") / "calibration_text.txt").read_text("utf-8")
    return CalibrationText(loaded.tokenizer.encode(text), SHIPPED)


def _refuse_beforehand(choice: SkipChoice | None, n_blocks: int) -> None:
    """Refuse what no measurement is needed to refuse."""
    if choice is None:
        return
    if choice.rule is SkipRule.KL and choice.threshold > MOST_KL:
        raise DecodingError(
            f"{choice} would leave out everything: beyond {MOST_KL:g} nat a model predicts nothing of use; "
            "give a lower threshold"
        )
    beyond = [number for number in choice.blocks if number >= n_blocks]
    if beyond:
        raise DecodingError(
            f"blk.{min(beyond) // 2} cannot be left out: the model has the layers 0 to {n_blocks // 2 - 1}"
        )
    if choice.rule is SkipRule.BLOCKS and leaves_too_little(choice.blocks, n_blocks):
        what = "everything" if len(choice.blocks) == n_blocks else "the attention of every layer"
        raise DecodingError(
            f"{choice} would leave out {what}: no token would know of another; name fewer blocks"
        )


def _has_effect(known: Calibration, choice: SkipChoice | None) -> bool:
    """Whether the effect of a choice is known, that of leaving nothing out being none."""
    chosen = choice and chosen_set(known, choice)
    return not chosen or known.effect(chosen) is not None


def _text_at_hand(loaded: LoadedModel, conversation_ids: Sequence[int], extends: bool) -> CalibrationText:
    """The conversation where it is long enough; for one set more the text of the others, if it is there."""
    needed = LEAST_SCORED + _WARM_UP
    same = extends and loaded.calibration is not None and loaded.calibration.text == SHIPPED
    if same or len(conversation_ids) < needed:
        return shipped_text(loaded)
    return CalibrationText(conversation_ids[-needed:], CONVERSATION)


class _Measuring:
    """One calibration that is under way. What it finds is kept as soon as it is found."""

    def __init__(
        self,
        loaded: LoadedModel,
        text: CalibrationText,
        n_scored: int,
        cancel: CancelToken,
        progress: _Progress,
    ) -> None:
        """Run the whole model over the text, in the session's own cache."""
        self._loaded, self._origin, self._progress = loaded, text.origin, progress
        windows = _windows(loaded, text, n_scored)
        loaded.session.cut(0)
        self._probe = SkipProbe(
            loaded.model,
            windows,
            loaded.session.kv,
            cancel,
            chunk=loaded.chunk,
            on_pass=progress.passed,
        )

    def whole(self, known: Calibration | None, *, cosines: bool, grown: bool) -> Calibration:
        """What sets are chosen by; what was known stays as far as it is not measured again."""
        probe = self._probe
        found = self._begin() if known is None or grown else known
        if cosines:
            found = replace(found, cosines=probe.cosines())
        elif known is not None:
            found = replace(found, cosines=known.cosines)  # another text changes next to nothing about them
        if grown:
            growth = grow(block_costs(self._loaded).layers, probe.effect, self._progress.grown)
            found = replace(found, effects=growth.effects, grown=growth.sets)
        return self._keep(found)

    def one_more(self, known: Calibration, skip: SkipSet) -> Calibration:
        """Measure one set more."""
        return self._keep(known.with_effect(self._probe.effect(skip)))

    def _begin(self) -> Calibration:
        whole = self._probe.perplexity
        return Calibration(
            n_blocks=2 * self._loaded.model.config.n_layers,
            tokens=whole.tokens,
            text=self._origin,
            perplexity=whole.perplexity,
            cosines=(),
            effects=(),
            grown=(),
        )

    def _keep(self, found: Calibration) -> Calibration:
        loaded = self._loaded
        loaded.calibration = found
        notices = loaded.calibration_file.keep(found)
        loaded.lasting_notices += tuple(n for n in notices if n not in loaded.lasting_notices)
        return found


class _Progress:
    """How far a calibration is, by passes; how many growing takes shows only as it goes."""

    def __init__(self, expected: float, on_progress: OnProgress) -> None:
        """Expect so many passes."""
        self._done, self._expected, self._share = 0.0, expected, 0.0
        self._on_progress = on_progress

    def passed(self, size: float) -> None:
        """Count a pass that was so much of a whole one."""
        self._done += size
        self._share = max(self._share, min(1.0, self._done / self._expected))
        self._on_progress(self._share)

    def grown(self, share: float) -> None:
        """Expect as many passes as growing will take that is so far."""
        self._expected = self._done / share


def _expected_passes(loaded: LoadedModel, *, cosines: bool, grown: bool) -> float:
    """The whole model, what sets are chosen by, and one set."""
    n_layers = loaded.model.config.n_layers
    return 2 + cosines * (n_layers + 1) / 2 + grown * likely_measured(2 * n_layers)


def _windows(loaded: LoadedModel, text: CalibrationText, n_scored: int) -> list[Window]:
    """Cut the beginning of a text so that `n_scored` ids are scored; ContextError where it is too short."""
    tokenizer = loaded.tokenizer
    bos_id = tokenizer.bos_id if tokenizer.add_bos else None
    token_ids = text.token_ids[1:] if [bos_id] == list(text.token_ids[:1]) else text.token_ids
    window = min(_WINDOW, loaded.session.kv.max_context)
    warm_up = min(_WARM_UP, window // 4)
    if len(token_ids) < LEAST_SCORED + warm_up:
        raise ContextError(
            f"{text.origin} has {len(token_ids)} tokens: give one with at least {LEAST_SCORED + warm_up}, so "
            "that what leaving blocks out does can be told from chance"
        )
    return cut_windows(token_ids[: n_scored + warm_up], window=window, stride=window - warm_up, bos_id=bos_id)
