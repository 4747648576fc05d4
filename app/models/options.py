"""How one model is loaded and computes: what was chosen for it, else what the settings say for all.

Opens nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app import locations
from app.devices import for_engine
from app.model_settings import ModelSettings
from app.settings import Settings
from engine import Budget, DecodingOptions, DraftKind, ExecutorChoice, KVType, LoadOptions, PlaceRule


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the command line said for every model; None leaves it to the settings.

    How weights are placed by hand is said there alone: what fits one model fits no other.
    """

    device: str | None = None
    """As `app.devices.parse_device` returns it."""
    ram_budget: Budget | None = None
    vram_budget: Budget | None = None
    kv_type: KVType | None = None
    gpu_layers: int | None = None
    place: tuple[PlaceRule, ...] = ()
    executor: ExecutorChoice = ExecutorChoice.AUTO
    prefetch: int | None = None
    link_limit: float | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """Only the fields of `DecodingOptions` that were said."""
    draft_model: Path | None = None

    def without_decoding(self) -> Chosen:
        """Return the rest: what a person chooses later goes before what the command line said."""
        return replace(self, decoding={}, draft_model=None)


def decoding_options(settings: Settings, path: Path, chosen: Chosen | None = None) -> DecodingOptions:
    """Return how the model at `path` is to compute replies; what is `chosen` goes before every setting."""
    own = settings.models.get(str(path), ModelSettings())
    kept = DecodingOptions(own.skip, own.draft or DraftKind.OFF, own.draft_k, own.exit_layer)
    return replace(kept, **(chosen or Chosen()).decoding)


def keep_decoding(
    settings: Settings, path: Path, decoding: DecodingOptions, draft_model: Path | None
) -> dict[str, ModelSettings]:
    """Return the settings of all models, with this for the one at `path`."""
    own = replace(
        settings.models.get(str(path), ModelSettings()),
        skip=decoding.skip,
        draft=None if decoding.draft is DraftKind.OFF else decoding.draft,
        draft_k=decoding.draft_k,
        exit_layer=decoding.exit_layer,
        draft_model=draft_model,
    )
    return {**settings.models, str(path): own}


def draft_model_of(settings: Settings, path: Path, chosen: Chosen | None = None) -> Path | None:
    """Return the model that may draft for the one at `path`, whether it does so now or not."""
    said = chosen.draft_model if chosen is not None else None
    return said or settings.models.get(str(path), ModelSettings()).draft_model


def load_options(settings: Settings, path: Path, chosen: Chosen | None = None) -> LoadOptions:
    """Return how to load the model at `path`; what is `chosen` goes before every setting."""
    chosen = chosen or Chosen()
    own = settings.models.get(str(path), ModelSettings())
    drafts = decoding_options(settings, path, chosen).draft is DraftKind.MODEL
    return LoadOptions(
        path,
        context=own.context or settings.context,
        threads=settings.threads,
        ram_budget=chosen.ram_budget or own.ram_budget or settings.ram_budget,
        rates_file=locations.rates_file(),
        device=for_engine(chosen.device or own.device or settings.device),
        vram_budget=chosen.vram_budget or own.vram_budget or settings.vram_budget,
        kv_type=chosen.kv_type or own.kv_type or settings.kv_type,
        cache_dir=locations.cache_dir(),
        gpu_layers=chosen.gpu_layers,
        place=chosen.place,
        executor=chosen.executor,
        prefetch=chosen.prefetch,
        link_limit=chosen.link_limit,
        draft_model=draft_model_of(settings, path, chosen) if drafts else None,
    )
