"""Read colour themes: ours from the package `themes`, and the person's own from their folder, which win.

A theme is one TOML file: `dark`, the colours Textual knows (`primary`, `background`, ...) and a table
`[variables]` with our own tokens. Every colour is parsed before Textual sees it, because Textual would
accept a bad one and fail while painting. Knows colours, not widgets.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from textual.color import Color, ColorParseError
from textual.theme import Theme

_COLOURS: Final = (
    "primary",
    "secondary",
    "warning",
    "error",
    "success",
    "accent",
    "foreground",
    "background",
    "surface",
    "panel",
    "boost",
)
TOKENS: Final[dict[str, str]] = {
    "muted": "#8a93a6",
    "rule": "#3a4150",
    "tier-vram": "#7fb88a",
    "tier-ram": "#7aa5d8",
    "tier-nvme": "#d8b26a",
    "tier-active": "#f2e6c9",
    "tier-skip": "#6b7280",
    "tier-move": "#c792d8",
}
"""Our own colour tokens with the values used where a theme leaves one out."""


class ThemeError(Exception):
    """A theme file cannot be used; one line with file, key and value."""


def load_themes(own_folder: Path) -> tuple[list[Theme], list[str]]:
    """Return all usable themes, those of `own_folder` last, and one line for each faulty file."""
    themes: list[Theme] = []
    problems: list[str] = []
    for file in (*_toml_files(files("themes")), *_toml_files(own_folder)):
        try:
            themes.append(read_theme(file))
        except ThemeError as error:
            problems.append(str(error))
    return themes, problems


def read_theme(file: Traversable) -> Theme:
    """Return the theme in `file`, named by its stem. Raises ThemeError."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ThemeError(f"theme {file.name} cannot be read: {error}") from None
    dark = table.pop("dark", True)
    variables = table.pop("variables", {})
    if not isinstance(dark, bool) or not isinstance(variables, dict):
        raise ThemeError(f"theme {file.name}: dark must be true or false, and variables a table")
    if "primary" not in table:
        raise ThemeError(f"theme {file.name}: the key 'primary' is missing")
    for key in table:
        if key not in _COLOURS:
            raise ThemeError(f"theme {file.name}: unknown key {key!r}; known are {', '.join(_COLOURS)}")
    for key, value in (*table.items(), *variables.items()):
        _check_colour(file.name, key, value)
    return Theme(name=file.name.removesuffix(".toml"), dark=dark, variables={**TOKENS, **variables}, **table)


def _check_colour(file: str, key: str, value: object) -> None:
    try:
        Color.parse(str(value))
    except ColorParseError:
        raise ThemeError(f"theme {file}: {key} = {value!r} is no colour; write it as #rrggbb") from None


def _toml_files(folder: Traversable) -> Iterator[Traversable]:
    try:
        names = sorted(folder.iterdir(), key=lambda file: file.name)
    except OSError:  # the person has no themes of their own
        return
    yield from (file for file in names if file.name.endswith(".toml"))
