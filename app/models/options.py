"""How one model is loaded: what was chosen for it, else what the settings say for all. Opens nothing."""

from __future__ import annotations

from pathlib import Path

from app import locations
from app.settings import ModelSettings, Settings
from engine import Budget, LoadOptions


def load_options(settings: Settings, path: Path, ram_budget: Budget | None = None) -> LoadOptions:
    """Return how to load the model at `path`; a `ram_budget` given here goes before every setting."""
    own = settings.models.get(str(path), ModelSettings())
    return LoadOptions(
        path,
        context=own.context or settings.context,
        threads=settings.threads,
        ram_budget=ram_budget or own.ram_budget or settings.ram_budget,
        rates_file=locations.rates_file(),
    )
