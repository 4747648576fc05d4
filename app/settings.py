"""What a person chose and wants to find again: theme, model, context, sampling; kept as one TOML file.

Knows the file's keys, their types and defaults. A faulty file never stops the start: every key that cannot
be used is named in a problem line and its default holds. Knows no widget and no model.
"""

from __future__ import annotations

import os
import tempfile
import threading
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import tomli_w

from app.locations import expanded
from engine import Budget, SamplingParams, parse_budget

DEFAULT_THEME: Final = "kestrel"


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings; a field's name is its key in the file."""

    theme: str = DEFAULT_THEME
    """Name of the colour theme."""
    last_model: Path | None = None
    """The model file that was loaded last; offered again at the next start."""
    model_folders: tuple[Path, ...] = ()
    """Folders to search for models besides the usual ones."""
    context: int | None = None
    """KV cache length in tokens; None leaves it to the engine."""
    threads: int | None = None
    """CPU threads; None leaves it to the engine."""
    ram_budget: Budget | None = None
    """Memory for a model, such as "8G" or "50%"; None leaves it to the engine."""
    system: str = ""
    """System prompt of new conversations; empty leaves it to the model's template."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """How tokens are drawn."""


class SettingsFile:
    """The settings and the file they live in. `save` may run in any thread."""

    def __init__(self, path: Path) -> None:
        """Read `path`; `problems` then has one line for each thing that could not be used."""
        self.path = path
        self.values, self.problems = load_settings(path)
        self._keep_copy = bool(self.problems)
        self._changed = False
        self._lock = threading.Lock()

    def change(self, **changes: Any) -> bool:
        """Set fields of `values`; True when that changed something and a `save` must follow."""
        values = replace(self.values, **changes)
        changed = values != self.values
        self._changed = self._changed or changed
        self.values = values
        return changed

    def save(self) -> None:
        """Write the file if something has changed. Raises OSError."""
        with self._lock:
            if self._changed:
                self._changed = False
                save_settings(self.values, self.path, keep_copy=self._keep_copy)
                self._keep_copy = False


def load_settings(path: Path) -> tuple[Settings, list[str]]:
    """Read `path`; return the settings and one line for each thing that could not be used."""
    try:
        # surrogateescape: a file name that is not UTF-8 must survive the round trip.
        table = tomllib.loads(path.read_bytes().decode("utf-8", "surrogateescape"))
    except FileNotFoundError:
        return Settings(), []
    except (OSError, tomllib.TOMLDecodeError) as error:
        return Settings(), [f"settings {path} cannot be read ({error}): defaults are used"]
    settings, problems = Settings(), []
    for key, value in table.items():
        try:
            settings = replace(settings, **{key: _PARSERS[key](value)})
        except KeyError:
            problems.append(f"settings {path}: unknown key {key!r} is ignored")
        except (TypeError, ValueError) as error:
            problems.append(
                f"settings {path}: {key} = {value!r} cannot be used ({error}): the default is used"
            )
    return settings, problems


def save_settings(settings: Settings, path: Path, *, keep_copy: bool = False) -> None:
    """Write `path` in one step, so that a crash leaves the old file or the new one. Raises OSError.

    `keep_copy` first puts the present file aside as `.bak`: for a file that we could not fully read.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = tomli_w.dumps(_as_table(settings)).encode("utf-8", "surrogateescape")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if keep_copy and path.exists():
            os.replace(path, path.with_name(path.name + ".bak"))
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise


def _as_table(settings: Settings) -> dict[str, Any]:
    """Return the TOML table; None is left out, for TOML has no word for it."""
    table: dict[str, Any] = {}
    for entry in fields(settings):
        value = getattr(settings, entry.name)
        if isinstance(value, SamplingParams):
            pairs = ((part.name, getattr(value, part.name)) for part in fields(value))
            table[entry.name] = {name: number for name, number in pairs if number is not None}
        elif isinstance(value, tuple):
            table[entry.name] = [str(part) for part in value]
        elif value is not None:
            table[entry.name] = str(value) if isinstance(value, Path | Budget) else value
    return table


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("must be text in quotes")
    return value


def _path(value: object) -> Path:
    return expanded(_text(value))


def _paths(value: object) -> tuple[Path, ...]:
    if not isinstance(value, list):
        raise TypeError("must be a list of folders")
    return tuple(_path(part) for part in value)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TypeError("must be a whole number above 0")
    return value


def _sampling(value: object) -> SamplingParams:
    if not isinstance(value, Mapping):
        raise TypeError("must be a table")
    for key, number in value.items():
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise TypeError(f"{key} must be a number")
    return SamplingParams(**value)


_PARSERS: Final[dict[str, Callable[[object], Any]]] = {
    "theme": _text,
    "last_model": _path,
    "model_folders": _paths,
    "context": _count,
    "threads": _count,
    "ram_budget": lambda value: parse_budget(_text(value)),
    "system": _text,
    "sampling": _sampling,
}
