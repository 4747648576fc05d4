"""How one model is loaded: what was chosen for it, else what the settings say for all. Opens nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app import locations
from app.devices import for_engine
from app.settings import ModelSettings, Settings
from engine import Budget, ExecutorChoice, KVType, LoadOptions, PlaceRule


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


def load_options(settings: Settings, path: Path, chosen: Chosen | None = None) -> LoadOptions:
    """Return how to load the model at `path`; what is `chosen` goes before every setting."""
    chosen = chosen or Chosen()
    own = settings.models.get(str(path), ModelSettings())
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
    )
