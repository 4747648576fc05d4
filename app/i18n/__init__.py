"""The interface's words in the person's language. English is the key, so code reads as what it shows.

A catalogue is one TOML file, English = translation, beside this one; what it leaves out is shown in English.
Knows no widget. Texts of the engine and of the command line stay English: they are what people search for.
"""

from __future__ import annotations

import os
import tomllib
from importlib.resources import files
from typing import Final

LANGUAGES: Final = {"en": "English", "zh": "简体中文"}

_catalogue: dict[str, str] = {}


def _(text: str) -> str:
    """Return `text` in the chosen language. Placeholders are those of `str.format`, filled by the caller."""
    return _catalogue.get(text, text)


def use_language(name: str) -> None:
    """Speak `name` from now on; one that we do not know is English."""
    _catalogue.clear()
    if name in LANGUAGES and name != "en":
        _catalogue.update(read_catalogue(name))


def read_catalogue(name: str) -> dict[str, str]:
    """Return the translations of one language."""
    text = files("app.i18n").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return {english: str(translation) for english, translation in tomllib.loads(text).items()}


def language_of_locale() -> str:
    """Return which of our languages the environment asks for, by POSIX's order of variables."""
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if value := os.environ.get(variable):
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"
