"""Models worth fetching: a list in a data file, which a file of the person's takes the place of.

Knows the list's form and what suits how much memory; fetches nothing and asks nobody.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from app.models.hub_file import HubFile, parse_hub_file
from engine import ModelNotFoundError

_MOST_FITTING, _MOST_STREAMED = 4, 2
_BESIDE_WEIGHTS = 400_000_000
"""Bytes for context and computing, about what 4,096 tokens take in a model of 3 billion parameters."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A model that could be fetched."""

    source: HubFile
    size: int
    """Bytes, about."""
    parameters: int
    license: str
    gated: bool
    """Whether terms must be accepted at the Hub first."""
    note: str
    """One line."""

    @property
    def name(self) -> str:
        """The file's name without its end."""
        return self.source.file.rpartition("/")[2][: -len(".gguf")]

    def fits(self, budget: int) -> bool:
        """Whether so many bytes of memory hold it whole; otherwise it would be read from disk."""
        return self.size + _BESIDE_WEIGHTS <= budget


def load_suggestions(own_folder: Path) -> tuple[list[Suggestion], list[str]]:
    """Return the list, that of `own_folder` if there is one, and a line for each thing wrong in it."""
    own = own_folder / "suggestions.toml"
    try:
        return _read(own.read_text("utf-8"), str(own))
    except FileNotFoundError:
        return _read(files("app.models").joinpath("suggestions.toml").read_text("utf-8"), "suggestions.toml")
    except (OSError, UnicodeDecodeError) as error:
        return [], [f"{own} cannot be read ({error}): nothing is suggested"]


def suitable(suggestions: Sequence[Suggestion], budget: int) -> list[Suggestion]:
    """Return those for so many bytes of memory: the largest that fit, then the smallest that do not."""
    by_size = sorted(suggestions, key=lambda suggestion: suggestion.size)
    fitting = [suggestion for suggestion in by_size if suggestion.fits(budget)]
    streamed = [suggestion for suggestion in by_size if not suggestion.fits(budget)]
    return fitting[-_MOST_FITTING:][::-1] + streamed[:_MOST_STREAMED]


def _read(text: str, origin: str) -> tuple[list[Suggestion], list[str]]:
    try:
        models = tomllib.loads(text).get("model", [])
    except tomllib.TOMLDecodeError as error:
        return [], [f"{origin} cannot be read ({error}): nothing is suggested"]
    if not isinstance(models, list):
        return [], [f"{origin}: 'model' must be a list of [[model]] tables: nothing is suggested"]
    suggestions: list[Suggestion] = []
    problems: list[str] = []
    for number, table in enumerate(models, start=1):
        try:
            suggestions.append(_suggestion(table))
        except (KeyError, TypeError, ValueError, ModelNotFoundError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            problems.append(f"{origin}: model {number} is left out: {reason}")
    return suggestions, problems


def _suggestion(table: Mapping[str, Any]) -> Suggestion:
    return Suggestion(
        source=parse_hub_file(f"hf:{_text(table, 'repo')}/{_text(table, 'file')}"),
        size=_count(table, "bytes"),
        parameters=_count(table, "parameters"),
        license=_text(table, "license"),
        gated=bool(table.get("gated", False)),
        note=_text(table, "note"),
    )


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} must be text in quotes")
    return value


def _count(table: Mapping[str, Any], key: str) -> int:
    value = table[key]
    if type(value) is not int or value < 1:
        raise TypeError(f"{key} must be a whole number above 0")
    return value
