"""A model file calibrated as a whole, and how fast it decodes with each of the sets that were found.

Joins loading, calibration and the clock. Knows decode steps; does not know how sets are found. Called by
`tiercel calibrate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter

from engine.cancel import CancelToken
from engine.config import LoadOptions, SamplingParams
from engine.generate import decode_step, prefill
from engine.loading import LoadedModel, OnProgress, load_model
from engine.sampler import Sampler
from engine.skipping.calibrate import CalibrationText, calibrate, shipped_text
from engine.skipping.calibrated import Calibration
from engine.skipping.skip_choice import NOTHING, SkipSet

_CONTEXT = 512
"""Room for a window of calibration and for steps; more would only take memory."""
_PROMPT = "Once upon a time"
_WARM_UP, _STEPS = 2, 8
"""Steps of one set in one turn."""
_TURNS = 5
"""What else a machine does changes within seconds, so that all sets are timed once, then all again."""
_ENOUGH_S = 2.0
"""Of steps in one turn, when there have been some."""
_FEWEST = 3


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """What leaving blocks out does to a model, and what it brings."""

    calibration: Calibration
    notices: tuple[str, ...]
    """What a person should know."""
    tok_s: float
    """Decoding with all blocks."""
    grown_tok_s: tuple[float, ...]
    """With each of `Calibration.grown`."""


def report_calibration(
    options: LoadOptions,
    text: str | None,
    origin: Path | None,
    n_scored: int,
    cancel: CancelToken,
    on_loading: OnProgress,
    on_progress: OnProgress,
) -> CalibrationReport:
    """Calibrate a model on a text, by default our own, scoring `n_scored` ids at most; keep it, and time it.

    `origin` names where the text is from. Raises the errors of loading, ContextError for a short text,
    CancelledError.
    """
    with closing(load_model(replace(options, context=_CONTEXT), on_loading, cancel)) as loaded:
        loaded.settle(cancel)
        on = shipped_text(loaded)
        if text is not None:
            on = CalibrationText(loaded.tokenizer.encode(text), "a text" if origin is None else origin.name)
        found = calibrate(
            loaded, on, n_scored, cancel, lambda share: on_progress("measuring what blocks do", share)
        )
        times = decode_step_times(
            loaded, (NOTHING, *found.grown), cancel, lambda share: on_progress("timing", share)
        )
        speeds = [1 / seconds for seconds in times]
        return CalibrationReport(found, loaded.notices, speeds[0], tuple(speeds[1:]))


def decode_step_times(
    loaded: LoadedModel,
    sets: Sequence[SkipSet],
    cancel: CancelToken,
    on_progress: Callable[[float], None] = lambda share: None,
    clock: Callable[[], float] = perf_counter,
) -> list[float]:
    """Median seconds by `clock` of a decode step with each of the sets left out. Empties the session.

    Where weights are fetched for each pass, the places of what is left out are given to others before a set
    is timed, all at once then. Raises CancelledError, and what a pass raises.
    """
    tiers, everything = loaded.backend.tiers, frozenset(range(2 * loaded.info.n_layers))
    n_turns = _TURNS if tiers is None or tiers.near == everything else 1
    times: list[list[float]] = [[] for _ in sets]
    for turn in range(n_turns):
        for number, skip in enumerate(sets):
            on_progress((turn + number / len(sets)) / n_turns)
            if tiers is not None:
                tiers.leave_out(skip)
                loaded.settle(cancel)
            times[number] += _steps(loaded, skip, cancel, clock)
    return [median(of_set) for of_set in times]


def _steps(
    loaded: LoadedModel, skip: SkipSet, cancel: CancelToken, clock: Callable[[], float]
) -> list[float]:
    """Seconds of some decode steps after a few words."""
    model, session = loaded.model, loaded.session
    session.cut(0)
    draw = Sampler(SamplingParams(temperature=0))
    ids = loaded.tokenizer.encode(_PROMPT)
    logits = prefill(
        model, session, ids, chunk=loaded.chunk, cancel=cancel, on_progress=lambda done: None, skip=skip
    )
    times: list[float] = []
    while len(times) < _WARM_UP + _STEPS and (len(times) < _WARM_UP + _FEWEST or sum(times) < _ENOUGH_S):
        start = clock()
        # What is drawn belongs to the step: a GPU gives the time of its work only with it.
        logits = decode_step(model, session, draw(logits, session.ids), cancel, skip)
        times.append(clock() - start)
    return times[_WARM_UP:]
