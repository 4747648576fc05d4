"""Read colour themes: ours from the package `themes`, and the person's own from their folder, which win.

A theme is one TOML file: `dark`, the colours Textual knows (`primary`, `background`, ...) and a table
`[variables]` with our own tokens. With `ansi = true` colours may be the terminal's own (`ansi_blue`,
`ansi_default`), and reach it as they are. Every colour is parsed before Textual sees it, because Textual
would accept a bad one and fail while painting. Knows colours, not widgets.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

from textual.app import App
from textual.color import Color, ColorParseError
from textual.theme import Theme

from app.i18n import _

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
_ANSI_TOKENS: Final[dict[str, str]] = {
    "muted": "ansi_bright_black",
    "rule": "ansi_bright_black",
    "tier-vram": "ansi_green",
    "tier-ram": "ansi_blue",
    "tier-nvme": "ansi_yellow",
    "tier-active": "ansi_default",
    "tier-skip": "ansi_bright_black",
    "tier-move": "ansi_magenta",
    # Textual's stylesheets name these, and it does not define them for such a theme.
    "ansi-background": "ansi_default",
    "ansi-foreground": "ansi_default",
    "foreground-disabled": "ansi_bright_black",
    "surface-active": "ansi_default",
}
"""The same for a theme of the terminal's own colours."""


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
        raise ThemeError(_("theme {0} cannot be read: {1}").format(file.name, error)) from None
    dark, ansi = table.pop("dark", True), table.pop("ansi", False)
    variables = table.pop("variables", {})
    if not isinstance(dark, bool) or not isinstance(ansi, bool) or not isinstance(variables, dict):
        raise ThemeError(
            _("theme {0}: dark and ansi must be true or false, and variables a table").format(file.name)
        )
    if "primary" not in table:
        raise ThemeError(_("theme {0}: the key 'primary' is missing").format(file.name))
    for key in table:
        if key not in _COLOURS:
            known = ", ".join(_COLOURS)
            raise ThemeError(_("theme {0}: unknown key {1!r}; known are {2}").format(file.name, key, known))
    for key, value in (*table.items(), *variables.items()):
        _check_colour(file.name, key, value, ansi)
    return Theme(
        name=file.name.removesuffix(".toml"),
        dark=dark,
        ansi=ansi,
        variables={**(_ANSI_TOKENS if ansi else TOKENS), **variables},
        **table,
    )


class ThemeWatch:
    """Notices when a person edits a theme of their own."""

    def __init__(self, folder: Path) -> None:
        """Watch the theme files of `folder` from now on."""
        self._folder = folder
        self._stamps = self._look()

    def changed(self) -> tuple[list[Theme], list[str]]:
        """Return the themes that are new or edited since the last call, and one line for each faulty one.

        A theme whose file is gone stays as it was until the next start.
        """
        before, self._stamps = self._stamps, self._look()
        themes: list[Theme] = []
        problems: list[str] = []
        for path, stamp in self._stamps.items():
            if before.get(path) != stamp:
                try:
                    themes.append(read_theme(path))
                except ThemeError as error:
                    problems.append(str(error))
        return themes, problems

    def _look(self) -> dict[Path, tuple[int, int]]:
        """Return what tells two versions of a file apart."""
        stamps = {}
        for file in _toml_files(self._folder):
            path = self._folder / file.name
            with suppress(OSError):  # it was removed just now
                facts = path.stat()
                stamps[path] = (facts.st_mtime_ns, facts.st_size)
        return stamps


def apply_theme(app: App[Any], theme: Theme) -> None:
    """Let `app` know an edited theme, and show it at once where it is the one in use."""
    app.register_theme(theme)
    if app.theme == theme.name:
        app.mutate_reactive(App.theme)


def _check_colour(file: str, key: str, value: object, ansi: bool) -> None:
    try:
        colour = Color.parse(str(value))
    except ColorParseError:
        raise ThemeError(
            _("theme {0}: {1} = {2!r} is no colour; write it as #rrggbb").format(file, key, value)
        ) from None
    if colour.ansi is not None and not ansi:
        raise ThemeError(_("theme {0}: {1} = {2!r} needs the line ansi = true").format(file, key, value))


def _toml_files(folder: Traversable) -> Iterator[Traversable]:
    try:
        names = sorted(folder.iterdir(), key=lambda file: file.name)
    except OSError:  # the person has no themes of their own
        return
    yield from (file for file in names if file.name.endswith(".toml"))
