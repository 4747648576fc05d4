"""Personas: a system prompt, a way to draw tokens and a model under one name; each is one TOML file.

A person's own files lie in a folder of the settings; a few examples come with the program, and an own persona
of the same name stands in for one. A faulty file is named in a problem line and left alone. Knows files and
names; does not know conversations, and whether a model exists only by the names it is given.
"""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import tomli_w

from app.i18n import _
from app.locations import config_dir, expanded
from app.sampling_fields import Number, checked_overrides, with_values
from app.sanitize import sanitize_line
from engine import SamplingParams

_MOST_BYTES: Final = 1 << 20
_UNSAFE: Final = re.compile(r"[^\w]+")
_LINE_END: Final = re.compile(r"\r\n?")
_STEM_BYTES: Final = 80
_RESERVED: Final = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)
"""Names that Windows keeps for itself; the folder may be shared with one."""


@dataclass(frozen=True, slots=True)
class Persona:
    """One persona. All text is the person's, or whoever's they had it from: cleaned only when shown."""

    name: str
    system: str = ""
    """The system prompt; empty leaves it to the settings."""
    sampling: Mapping[str, Number] = field(default_factory=dict)
    """Only what differs from the settings, by name of `SamplingParams`."""
    model: str = ""
    """Name or path; empty for whichever is loaded."""
    note: str = ""
    """What it is for, in a line."""
    path: Path | None = None
    """Its file; None for an example and for one that is not saved yet."""

    def drawn(self, base: SamplingParams) -> SamplingParams:
        """Return `base` with what this persona says instead."""
        return with_values(base, self.sampling)


def personas_dir() -> Path:
    """Folder of the person's own personas."""
    return config_dir() / "personas"


def load_personas(folder: Path) -> tuple[list[Persona], list[str]]:
    """Return all personas by name, and one line for each file that cannot be used."""
    found = {persona.name: persona for persona in _examples()}
    problems: list[str] = []
    own: dict[str, Persona] = {}
    for path in _toml_files(folder):
        try:
            persona = read_persona(path)
            if persona.name in own:
                raise ValueError(f"name = {persona.name!r} is that of another file as well")
        except (OSError, ValueError, TypeError) as error:
            problems.append(_("persona {0}: {1}; the file is left alone").format(path.name, error))
        else:
            own[persona.name] = persona
    found.update(own)
    return sorted(found.values(), key=lambda persona: persona.name.casefold()), problems


def read_persona(path: Path) -> Persona:
    """Return the persona in a file. Raises OSError, or ValueError or TypeError naming the key."""
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError("it is longer than 1 MB")
    return _persona(data, path.stem, path)


def save_persona(folder: Path, persona: Persona) -> Persona:
    """Write a persona's file in one step and return it with its path; a renamed one gets a file to match.

    Raises ValueError for a name that is empty or taken, OSError where the folder cannot be written.
    """
    name = sanitize_line(persona.name)
    if not name:
        raise ValueError(_("it needs a name"))
    others = (other for other in load_personas(folder)[0] if other.path not in (None, persona.path))
    if any(other.name.casefold() == name.casefold() for other in others):
        raise ValueError(_("there is another one called {name}").format(name=name))
    folder.mkdir(parents=True, exist_ok=True)
    path = _path_for(folder, name, persona.path)
    # The file's own line ends are \n; a carriage return within a text would not come back from it.
    system, model, note = (
        _LINE_END.sub("\n", text) for text in (persona.system, persona.model, persona.note)
    )
    written = path if persona.path is None else persona.path
    persona = Persona(name, system, persona.sampling, model, note, path)
    _write(written, _as_table(persona, written.stem))
    if written != path:
        # The contents are in place under the old file name: from here a crash leaves one whole persona.
        os.rename(written, path)
    return persona


def delete_persona(persona: Persona) -> None:
    """Take away a persona's file; one that is gone already is no error. Raises OSError."""
    if persona.path is not None:
        persona.path.unlink(missing_ok=True)


def find_persona(personas: Collection[Persona], name: str) -> Persona | None:
    """Return the persona that a person means: its whole name or the start of just one, in any case."""
    wanted = sanitize_line(name).casefold()
    whole = [persona for persona in personas if persona.name.casefold() == wanted]
    begun = whole or [
        persona for persona in personas if wanted and persona.name.casefold().startswith(wanted)
    ]
    return begun[0] if len(begun) == 1 else None


def model_problem(persona: Persona, found_names: Collection[str]) -> str:
    """Return why the persona's model cannot be loaded, in a line, or ''; names as `discover` gives them."""
    wanted = persona.model.strip().casefold()
    if not wanted or os.path.isfile(expanded(persona.model.strip())):
        return ""
    for name in found_names:
        whole = name.casefold()
        if whole.startswith(wanted) or whole.rpartition("/")[2].startswith(wanted):
            return ""
    words = _("persona {name}: there is no model {model}; the one that is loaded answers")
    return words.format(name=sanitize_line(persona.name), model=sanitize_line(persona.model))


def _persona(data: bytes, stem: str, path: Path | None) -> Persona:
    # surrogateescape: a file name that is not UTF-8 must survive the round trip.
    table = tomllib.loads(data.decode("utf-8", "surrogateescape"))
    known = ("name", "system", "model", "note")
    for key, value in table.items():
        if key not in (*known, "sampling"):
            raise ValueError(f"unknown key {key!r}; known are {', '.join(known)}, sampling")
        if key != "sampling" and not isinstance(value, str):
            raise TypeError(f"{key} must be text in quotes")
    sampling = table.pop("sampling", {})
    if not isinstance(sampling, Mapping):
        raise TypeError("sampling must be a table")
    try:
        overrides = checked_overrides(sampling)
    except (ValueError, TypeError) as error:
        raise ValueError(f"sampling: {error}") from None
    name = sanitize_line(table.pop("name", "")) or sanitize_line(stem)
    return Persona(name, sampling=overrides, path=path, **table)


def _as_table(persona: Persona, stem: str) -> dict[str, Any]:
    table: dict[str, Any] = {"name": persona.name} if persona.name != stem else {}
    table |= {key: text for key in ("note", "model", "system") if (text := getattr(persona, key))}
    if persona.sampling:
        table["sampling"] = dict(persona.sampling)
    return table


def _write(path: Path, table: Mapping[str, Any]) -> None:
    data = tomli_w.dumps(table, multiline_strings=True).encode("utf-8", "surrogateescape")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".persona.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def _path_for(folder: Path, name: str, own: Path | None) -> Path:
    """Return a file for `name` that no other persona has; `own` counts as free."""
    stem = _stem(name)
    for number in range(1, 1000):
        path = folder / f"{stem if number == 1 else f'{stem}-{number}'}.toml"
        if path == own or not os.path.lexists(path):
            return path
    raise ValueError(_("there are too many personas called {name}").format(name=name))


def _stem(name: str) -> str:
    """Return `name` as a file name that every system takes: letters of any script, digits, hyphens."""
    stem = _UNSAFE.sub("-", unicodedata.normalize("NFC", name)).strip("-_").casefold()
    stem = stem.encode()[:_STEM_BYTES].decode("utf-8", "ignore").strip("-")
    return f"persona-{stem}".rstrip("-") if not stem or _RESERVED.fullmatch(stem) else stem


def _examples() -> Iterator[Persona]:
    for file in files("app").joinpath("persona_examples").iterdir():
        if file.name.endswith(".toml"):
            yield _persona(file.read_bytes(), file.name.removesuffix(".toml"), None)


def _toml_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".toml" and path.name[0] != ".")
    except OSError:  # the person has none of their own
        return []
