"""What was chosen for single models: the tables `[models."..."]` of the settings file.

Knows the keys of such a table and their kinds; a key that cannot be used costs no other. Reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.setting_kinds import SWITCH, Choice, Device, File, Kind, Memory, Number, Skip
from engine import MOST_DRAFTS, Budget, DraftKind, KVType, SkipChoice

ENGINE: Final = "automatic"
CONTEXT: Final = Number(1, 1 << 24, "tokens", ENGINE)
BUDGET: Final = Memory("70 % of what is free")
DEVICE: Final = Device(ENGINE)
VRAM: Final = Memory("90 % of what is free there", of="the free video memory")
KV_TYPE: Final = Choice({KVType.F16: "16 bits", KVType.Q8_0: "8 bits"})


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What was chosen for one model; None leaves it to the general settings."""

    context: int | None = None
    ram_budget: Budget | None = None
    greedy: bool | None = None
    device: str | None = None
    vram_budget: Budget | None = None
    kv_type: KVType | None = None
    skip: SkipChoice | None = None
    """What is left out of a model fits no other, so there is no general setting of it, nor of the rest."""
    draft: DraftKind | None = None
    draft_k: int | None = None
    exit_layer: int | None = None
    draft_model: Path | None = None


_KINDS: Final[dict[str, Kind]] = {
    "context": CONTEXT,
    "ram_budget": BUDGET,
    "greedy": SWITCH,
    "device": DEVICE,
    "vram_budget": VRAM,
    "kv_type": KV_TYPE,
    "skip": Skip(),
    "draft": Choice({kind: str(kind) for kind in DraftKind}),
    "draft_k": Number(1, MOST_DRAFTS),
    "exit_layer": Number(1, 1 << 16),
    "draft_model": File(),
}


@dataclass(frozen=True, slots=True)
class ModelTables:
    """All such tables, as a kind of setting."""

    def read(self, value: object) -> dict[str, ModelSettings]:
        """Return the settings of every model; see `sound_tables`, which leaves only what can be read."""
        if not isinstance(value, Mapping):
            raise TypeError("must be a table for each model")
        return {
            name: ModelSettings(**{key: _KINDS[key].read(part) for key, part in table.items()})
            for name, table in value.items()
        }

    def write(self, value: Mapping[str, ModelSettings]) -> dict[str, dict[str, Any]] | None:
        """Return the tables of the models for which something was chosen."""
        tables = {
            name: {
                key: kind.write(chosen)
                for key, kind in _KINDS.items()
                if (chosen := getattr(settings, key)) is not None
            }
            for name, settings in value.items()
        }
        return {name: table for name, table in tables.items() if table} or None


def sound_tables(models: Mapping[str, object]) -> tuple[dict[str, dict[str, object]], list[str]]:
    """Return what can be used of the tables of models, and what cannot, a line for each."""
    sound: dict[str, dict[str, object]] = {}
    problems = []
    for name, table in models.items():
        sound[name] = {}
        for key, value in table.items() if isinstance(table, dict) else [("", table)]:
            try:
                _KINDS[key].read(value)
            except KeyError:
                problems.append(f"{name!r}: {f'unknown key {key!r}' if key else 'it must be a table'}")
            except (TypeError, ValueError) as error:
                problems.append(f"{name!r}: {key} = {value!r} cannot be used ({error})")
            else:
                sound[name][key] = value
    return sound, problems
