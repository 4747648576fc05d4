"""Which model to begin with. Looks at files and settings; may take a while, so it runs beside the screen."""

from __future__ import annotations

from pathlib import Path

from app.settings import Settings


def first_model(settings: Settings) -> Path | None:
    """Return the model used last, else the only one on this machine; None when a person must choose."""
    if settings.last_model is not None and settings.last_model.is_file():
        return settings.last_model
    from app.models import discover  # not before the first frame

    found = discover(settings.model_folders)
    return found[0].path if len(found) == 1 else None
