"""What a person chose and wants to find again: theme, model, context, sampling; kept as one TOML file.

Knows the settings, their kinds, defaults and words, and the file. A faulty file never stops the start: every
key that cannot be used is named in a problem line and its default holds. Knows no widget and no model.
"""

from __future__ import annotations

import os
import tempfile
import threading
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import tomli_w

from app.i18n import LANGUAGES
from app.model_settings import (
    BUDGET,
    CONTEXT,
    DEVICE,
    ENGINE,
    KV_TYPE,
    VRAM,
    ModelSettings,
    ModelTables,
    sound_tables,
)
from app.setting_kinds import SWITCH, Choice, File, Folders, Kind, Named, Number, Text
from engine import Budget, KVType, Overflow, SamplingParams

DEFAULT_THEME: Final = "kestrel"


@dataclass(frozen=True, slots=True)
class _Sampling:
    """The table `[sampling]`."""

    def read(self, value: object) -> SamplingParams:
        """Return the parameters."""
        if not isinstance(value, Mapping):
            raise TypeError("must be a table")
        for key, number in value.items():
            if not isinstance(number, int | float) or isinstance(number, bool):
                raise TypeError(f"{key} must be a number")
        return SamplingParams(**value)

    def write(self, value: SamplingParams) -> dict[str, float]:
        """Return the table; None is left out, for TOML has no word for it."""
        pairs = ((part.name, getattr(value, part.name)) for part in fields(value))
        return {name: number for name, number in pairs if number is not None}


@dataclass(frozen=True, slots=True)
class Entry:
    """What belongs to a field besides its value; words are English, translated where they are shown."""

    kind: Kind
    label: str = ""
    """Empty for what is changed elsewhere: the settings screen does not show it."""
    help: str = ""
    group: str = ""


def _entry(kind: Kind, label: str = "", help: str = "", group: str = "") -> dict[str, Entry]:
    return {"entry": Entry(kind, label, help, group)}


_LOOK, _MODEL, _CHAT, _TERMINAL = "Look", "Models", "Conversations", "Terminal"


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings; a field's name is its key in the file."""

    theme: str = field(
        default=DEFAULT_THEME, metadata=_entry(Named(), "theme", "Colours of the interface", _LOOK)
    )
    language: str = field(
        default="auto",
        metadata=_entry(
            Choice({"auto": "as the system says", **LANGUAGES}),
            "language",
            "Language of the interface; the rest of the screen follows at the next start",
            _LOOK,
        ),
    )
    tiers: str = field(
        default="panel",
        metadata=_entry(
            Choice({"off": "off", "strip": "strip", "panel": "panel"}),
            "tiers",
            "How much of the map of memory is shown beside the conversation",
            _LOOK,
        ),
    )
    reduced_motion: bool = field(
        default=False, metadata=_entry(SWITCH, "reduced motion", "Nothing blinks or slides", _LOOK)
    )
    last_model: Path | None = field(default=None, metadata=_entry(File()))
    """The model file that was loaded last; offered again at the next start."""
    model_folders: tuple[Path, ...] = field(
        default=(),
        metadata=_entry(
            Folders("only the usual places"),
            "model folders",
            "Folders to search for models besides the usual ones, separated as in PATH",
            _MODEL,
        ),
    )
    context: int | None = field(
        default=None,
        metadata=_entry(
            CONTEXT,
            "context",
            "How much of a conversation the model sees; for the next model that is loaded",
            _MODEL,
        ),
    )
    threads: int | None = field(
        default=None,
        metadata=_entry(
            Number(1, 1024, "", ENGINE),
            "threads",
            "Processor threads that compute; for the next model that is loaded",
            _MODEL,
        ),
    )
    ram_budget: Budget | None = field(
        default=None,
        metadata=_entry(
            BUDGET, "memory budget", "Memory that the weights may take, such as 8G or 50%", _MODEL
        ),
    )
    device: str | None = field(
        default=None,
        metadata=_entry(
            DEVICE,
            "device",
            "What computes: cpu, cuda or cuda:1; automatic is the first GPU, if there is one",
            _MODEL,
        ),
    )
    vram_budget: Budget | None = field(
        default=None,
        metadata=_entry(
            VRAM,
            "video memory",
            "Memory of the GPU that a model may take, such as 20G or 80%",
            _MODEL,
        ),
    )
    kv_type: KVType = field(
        default=KVType.F16,
        metadata=_entry(
            KV_TYPE,
            "KV cache",
            "How a GPU keeps the context; 8 bits take about half the room",
            _MODEL,
        ),
    )
    unload_after_min: int = field(
        default=0,
        metadata=_entry(
            Number(0, 10_080, "minutes"),
            "unload after",
            "Unload an idle model after so long and give its memory back; 0 is never",
            _MODEL,
        ),
    )
    greedy: bool = field(
        default=False,
        metadata=_entry(SWITCH, "greedy", "Always take the most probable token", _MODEL),
    )
    system: str = field(
        default="",
        metadata=_entry(
            Text("the model's own"),
            "system prompt",
            "What every new conversation begins with; \\n begins another line",
            _CHAT,
        ),
    )
    persona: str = field(
        default="",
        metadata=_entry(Named("none"), "persona", "Persona of every new conversation", _CHAT),
    )
    overflow: Overflow = field(
        default=Overflow.DROP_OLDEST,
        metadata=_entry(
            Choice({Overflow.DROP_OLDEST: "drop the oldest turns", Overflow.STOP: "stop and say so"}),
            "full context",
            "What happens in a new conversation when the context is full",
            _CHAT,
        ),
    )
    copy: str = field(
        default="auto",
        metadata=_entry(
            Choice({"auto": "automatic", "native": "system tool", "osc52": "terminal (OSC 52)"}),
            "copy through",
            "How copied text reaches the clipboard; over SSH only the terminal can",
            _TERMINAL,
        ),
    )
    welcomed: bool = field(default=False, metadata=_entry(SWITCH))
    """Whether the welcome of the first start was shown."""
    sampling: SamplingParams = field(default=SamplingParams(), metadata=_entry(_Sampling()))
    """How tokens are drawn."""
    models: Mapping[str, ModelSettings] = field(default_factory=dict, metadata=_entry(ModelTables()))
    """What was chosen for single models, by their file."""


ENTRIES: Final[dict[str, Entry]] = {each.name: each.metadata["entry"] for each in fields(Settings)}
"""What belongs to each field, by its name."""


def words() -> list[str]:
    """Return every word of the settings that the interface shows, for the translator."""
    return list(dict.fromkeys(word for entry in ENTRIES.values() if entry.label for word in _words(entry)))


def _words(entry: Entry) -> Iterator[str]:
    yield from (entry.label, entry.help, entry.group)
    if isinstance(entry.kind, Choice):
        yield from entry.kind.options.values()
    yield from (word for name in ("unit", "empty") if (word := getattr(entry.kind, name, "")))


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
                self._changed = False  # before: what is changed meanwhile is saved later
                try:
                    save_settings(self.values, self.path, keep_copy=self._keep_copy)
                except OSError:
                    self._changed = True
                    raise
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
    if isinstance(table.get("models"), dict):
        table["models"], unusable = sound_tables(table["models"])
        problems = [f"settings {path}: models.{line}: the general one is used" for line in unusable]
    for key, value in table.items():
        try:
            settings = replace(settings, **{key: ENTRIES[key].kind.read(value)})
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
    written = {name: entry.kind.write(getattr(settings, name)) for name, entry in ENTRIES.items()}
    table = {name: value for name, value in written.items() if value is not None}
    data = tomli_w.dumps(table).encode("utf-8", "surrogateescape")
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
