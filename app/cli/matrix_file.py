"""A file that describes a matrix of settings: TOML to cases, with one clear line for whatever is wrong.

Knows the keys and what values they take; does not measure. Called by `bench_matrix`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any, Final

from app import locations
from app.cli.inputs import read_text
from app.devices import for_engine, parse_device
from app.models import resolve_model
from engine import (
    Case,
    DecodingOptions,
    DraftKind,
    ExecutorChoice,
    InputFileError,
    KVType,
    LoadOptions,
    MatrixTask,
    PlaceRule,
    Precision,
    parse_budget,
    parse_place,
    parse_skip,
)

Reader = Callable[[Any], Any]
"""Makes what the engine takes of a value in the file; ValueError says what is accepted."""


@dataclass(frozen=True, slots=True)
class NamedCase:
    """A case and how it was asked for."""

    case: Case
    settings: Mapping[str, str]
    """What the file says, by key; what has no effect is left out."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """What a file asks for."""

    cases: tuple[NamedCase, ...]
    task: MatrixTask


def read_matrix(path: Path) -> Matrix:
    """Read and check all of it. Raises InputFileError naming key and value, ModelNotFoundError."""
    try:
        content = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputFileError(f"{path}: it is no TOML: {' '.join(str(error).split())}") from None
    settings = content.pop("matrix", None)
    if not isinstance(settings, dict) or "model" not in settings:
        raise InputFileError(f'{path}: it has no [matrix] with a model: name at least one, model = "smollm2"')
    return Matrix(_cases(path, settings), _task(path, content))


def _cases(path: Path, settings: dict[str, Any]) -> tuple[NamedCase, ...]:
    """Every combination; those that differ only in what has no effect are one."""
    readers = _READERS | {"model": _model_beside(path), "draft_model": _model_beside(path)}
    axes = []
    for key, values in settings.items():
        if key not in readers:
            raise InputFileError(
                f"{path}: matrix.{key} is no setting: there are {', '.join(sorted(readers))}"
            )
        several = values if isinstance(values, list) else [values]
        if not several:
            raise InputFileError(f"{path}: matrix.{key} is empty: give at least one value, or leave it out")
        axes.append(
            [(key, _shown(value), _read(path, f"matrix.{key}", readers[key], value)) for value in several]
        )
    cases: dict[Case, NamedCase] = {}
    for combination in product(*axes):
        named = _case(path, {key: (shown, value) for key, shown, value in combination})
        cases.setdefault(named.case, named)
    return tuple(cases.values())


def _case(path: Path, chosen: dict[str, tuple[str, Any]]) -> NamedCase:
    draft = chosen.get("draft", ("", DraftKind.OFF))[1]
    without_effect = set()
    if draft is DraftKind.OFF:
        without_effect.add("draft_k")
    if draft is not DraftKind.MODEL:
        without_effect.add("draft_model")
    elif "draft_model" not in chosen:
        raise InputFileError(
            f'{path}: matrix.draft has "model", but there is no matrix.draft_model: name one'
        )
    if draft is not DraftKind.EXIT:
        without_effect.add("exit_layer")
    chosen = {key: pair for key, pair in chosen.items() if key not in without_effect}
    values = {key: value for key, (_, value) in chosen.items()}
    decoding = {key: values.pop(key) for key in _OF_DECODING if key in values}
    options = LoadOptions(
        path=values.pop("model"),
        rates_file=locations.rates_file(),
        cache_dir=locations.cache_dir(),
        **values,
    )
    try:
        case = Case(options, DecodingOptions(**decoding))
    except ValueError as error:
        raise InputFileError(f"{path}: matrix.{error}") from None
    return NamedCase(case, {key: shown for key, (shown, _) in chosen.items()})


def _task(path: Path, content: dict[str, Any]) -> MatrixTask:
    """What stands before [matrix]."""
    readers: dict[str, Reader] = {
        "text": _file_beside(path),
        "prompt": _string,
        "prompt_file": _file_beside(path),
        "decode_tokens": _at_least(2),
        "repetitions": _at_least(1),
        "temperature": _temperature,
        "seed": _at_least(0),
        "window": _at_least(2),
        "scored_tokens": _at_least(1),
        "reference": _model_beside(path),
    }
    if unknown := content.keys() - readers.keys():
        raise InputFileError(
            f"{path}: {min(unknown)} is unknown: there are {', '.join(sorted(readers))}, and [matrix]"
        )
    values = {key: _read(path, key, readers[key], value) for key, value in content.items()}
    if "text" not in values:
        raise InputFileError(f'{path}: there is no text to score: give text = "FILE"')
    if {"prompt", "prompt_file"} <= values.keys():
        raise InputFileError(f"{path}: prompt and prompt_file are two prompts: leave one out")
    prompt = (
        values.pop("prompt_file", None) or values.pop("prompt", None) or values["text"][:_PROMPT_CHARACTERS]
    )
    return MatrixTask(**values, prompt=prompt, text_name=str(content["text"]))


_PROMPT_CHARACTERS: Final = 1500
"""Of the text, where no prompt is given."""
_OF_DECODING: Final = ("skip", "draft", "draft_k", "exit_layer")


def _read(path: Path, key: str, reader: Reader, value: object) -> Any:
    try:
        return reader(value)
    except ValueError as error:
        raise InputFileError(f"{path}: {key}: {error}") from None


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _string(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no text: put it in quotes")
    return value


def _parsed(parse: Callable[[str], Any]) -> Reader:
    return lambda value: parse(_string(value))


def _named(kind: type[StrEnum]) -> Reader:
    def read(value: object) -> StrEnum:
        if not isinstance(value, str) or value not in list(kind):
            raise ValueError(f"{value!r} must be {' or '.join(kind)}")
        return kind(value)

    return read


def _at_least(low: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise ValueError(f"{value!r} is not a whole number of at least {low}")
        return value

    return read


def _or_auto(reader: Reader) -> Reader:
    """None stands for what is chosen by itself."""
    return lambda value: None if value == "auto" else reader(value)


def _temperature(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 100:
        raise ValueError(f"{value!r} is no temperature: give a number from 0 to 100")
    return float(value)


def _place(text: str) -> tuple[PlaceRule, ...]:
    """No rules where the plan is to choose."""
    return () if text == "auto" else parse_place(text)


def _file_beside(path: Path) -> Reader:
    """A text file, named from where the matrix lies; InputFileError when it cannot be read."""
    return lambda value: read_text(path.parent / _string(value))


def _model_beside(path: Path) -> Reader:
    """A model file, named from where the matrix lies, or a name of a model."""

    def read(value: object) -> Path:
        name = _string(value)
        beside = path.parent / name
        return beside if beside.is_file() else resolve_model(name)

    return read


_READERS: Final[dict[str, Reader]] = {
    "device": lambda value: for_engine(parse_device(_string(value))),
    "threads": _or_auto(_at_least(1)),
    "precision": _named(Precision),
    "ram_budget": _or_auto(_parsed(parse_budget)),
    "vram_budget": _or_auto(_parsed(parse_budget)),
    "kv_type": _named(KVType),
    "gpu_layers": _or_auto(_at_least(0)),
    "place": _parsed(_place),
    "executor": _named(ExecutorChoice),
    "prefetch": _or_auto(_at_least(2)),
    "skip": _parsed(parse_skip),
    "draft": _named(DraftKind),
    "draft_k": _or_auto(_at_least(1)),
    "exit_layer": _or_auto(_at_least(1)),
}
