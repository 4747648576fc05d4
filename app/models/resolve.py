"""Turn what a person typed for MODEL into the path of one file. Opens no file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from app import locations
from app.models.discovery import FoundModel, discover
from engine import ModelNotFoundError

_MOST_NAMES = 4


def resolve_model(text: str, folders: Sequence[Path] | None = None) -> Path:
    """Return the file that `text` means: a path, a name from `tiercel models`, or the start of one name.

    A name also matches from its last `/` on; letter case is ignored. `folders` as for `discover`.
    Raises ModelNotFoundError when nothing, a folder, or more than one model is meant.
    """
    path = locations.expanded(text)
    if os.path.isfile(path):
        return path
    matches = _matches(text, discover(folders)) if text else []
    if len(matches) == 1:
        return matches[0].path
    if matches:
        raise ModelNotFoundError(_ambiguous(text, matches))
    if text and os.path.isdir(path):
        raise ModelNotFoundError(
            f"{text!r} is a folder: name a .gguf file in it, or a model from `tiercel models`"
        )
    if os.sep in text or text.lower().endswith(".gguf"):
        raise ModelNotFoundError(f"no file {text!r}: check the path, or choose a model from `tiercel models`")
    raise ModelNotFoundError(
        f"no model called {text!r}: `tiercel models` lists them, `tiercel pull smollm2` fetches a first one"
    )


def _matches(text: str, models: Sequence[FoundModel]) -> list[FoundModel]:
    """Return the models of the best kind of match: whole name, last part, start of either."""
    wanted = text.casefold()
    names = [(model, model.name.casefold(), model.name.casefold().rpartition("/")[2]) for model in models]
    return (
        [model for model, name, _ in names if name == wanted]
        or [model for model, _, last in names if last == wanted]
        or [model for model, name, last in names if name.startswith(wanted) or last.startswith(wanted)]
    )


def _ambiguous(text: str, matches: Sequence[FoundModel]) -> str:
    shown = [repr(model.name) for model in matches[:_MOST_NAMES]]
    if len({model.name for model in matches}) < len(matches):
        shown = [repr(str(model.path)) for model in matches[:_MOST_NAMES]]
    if len(matches) > _MOST_NAMES:
        shown.append(f"{len(matches) - _MOST_NAMES} more")
    return f"{text!r} means {len(matches)} models: {', '.join(shown)}; type more of the name, or a path"
