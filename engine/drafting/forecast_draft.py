"""What loading would do where a smaller model drafts: that comes first, the other one takes what is left.

Knows the order only; either model is planned by `forecast`. Called by `preview` and `reporting`.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.cancel import CancelToken
from engine.config import LoadOptions
from engine.drafting.draft_options import beside_draft, naming_the_draft, options_of_draft
from engine.drafting.vocabulary import n_shared_ids
from engine.forecast import Forecast, Memory, forecast
from engine.gguf import GGUFFile, open_gguf
from engine.model_config import read_model_config
from engine.requirements import choose_context


class Forecasts(NamedTuple):
    """Of a model, and of the one that drafts for it."""

    model: Forecast
    draft: Forecast | None = None

    @property
    def ram_bytes(self) -> int:
        """The computer's memory that both would take."""
        return self.model.ram_bytes + (self.draft.ram_bytes if self.draft else 0)

    @property
    def vram_bytes(self) -> int:
        """The GPU's memory that both would take."""
        return self.model.vram_bytes + (self.draft.vram_bytes if self.draft else 0)


def forecast_both(
    gguf: GGUFFile, options: LoadOptions, memory: Memory, cancel: CancelToken, *, measure: bool
) -> Forecasts:
    """What loading the model of this header with `options`, its draft model among them, would do.

    Raises as `forecast`, and what is wrong with the draft model.
    """
    if options.draft_model is None:
        return Forecasts(forecast(gguf, options, memory, cancel, measure=measure))
    max_context, _ = choose_context(read_model_config(gguf), options)
    with naming_the_draft(), open_gguf(options.draft_model) as theirs:
        n_shared_ids(gguf, theirs)
        own = options_of_draft(options, options.draft_model, max_context)
        draft = forecast(theirs, own, memory, cancel, measure=measure)
    ram, vram = draft.ram_bytes, draft.vram_bytes
    left = Memory(memory.available - ram, memory.freed_vram - vram)
    granted = beside_draft(options, ram, vram)
    return Forecasts(forecast(gguf, granted, left, cancel, measure=measure), draft)
