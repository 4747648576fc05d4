"""Keeps what calibration has found between loads: one JSON file for each model file.

Knows JSON and when a kept calibration belongs to the model no more; does not measure. Nothing is lost with a
file: what is damaged, or was measured on a file that has changed since, is thrown away and measured again.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine.gguf import GGUFFile
from engine.skipping.calibrated import Calibration, SkipEffect
from engine.skipping.skip_choice import SkipSet

_FOLDER = "calibrations"
_FORMAT = 1
_NUMBERS = ("kl", "perplexity_change", "perplexity_low", "perplexity_high", "top1")
"""Fields of an effect beside its set."""


class CalibrationFile:
    """Of one model, as it is when this is made: right after it was opened."""

    def __init__(self, gguf: GGUFFile, n_blocks: int, cache_dir: Path | None) -> None:
        """Look at the model's files; without a folder, nothing is kept and nothing known."""
        self._model, self._n_blocks = gguf.path, n_blocks
        self._path: Path | None = None
        if cache_dir is not None:
            # By the model's place, so that one that is replaced finds what was kept of the one before.
            place = sha256(os.fsencode(gguf.path.resolve())).hexdigest()[:16]
            with suppress(OSError):  # it was taken away since it was opened
                self._fingerprint = fingerprint(gguf)
                self._path = cache_dir / _FOLDER / f"{place}.json"

    def load(self) -> tuple[Calibration | None, tuple[str, ...]]:
        """What is kept, and what a person should know: that something was thrown away."""
        try:
            content = b"" if self._path is None else self._path.read_bytes()
        except OSError:
            content = b""
        if not content:
            return None, ()
        try:
            document = json.loads(content)
            if document["format"] != _FORMAT:
                raise ValueError("another format")
            if document["model"] != self._fingerprint:
                return None, self._throw_away(f"{self._model.name} has changed since it was calibrated")
            return _calibration(document["calibration"], self._n_blocks), ()
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
            return None, self._throw_away(f"the calibration kept for {self._model.name} is damaged")

    def keep(self, calibration: Calibration) -> tuple[str, ...]:
        """Put it in place of what is kept, whole or not at all; a notice where that fails."""
        if self._path is None:
            return ()
        document = {
            "format": _FORMAT,
            "model": self._fingerprint,
            "calibration": _as_plain(calibration),
        }
        try:
            _replace(self._path, json.dumps(document))
        except OSError as error:
            return (
                f"the calibration cannot be kept in {self._path.parent} ({error.strerror}): it is measured "
                "again after the next load",
            )
        return ()

    def _throw_away(self, reason: str) -> tuple[str, ...]:
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
        return (f"{reason}: what leaving blocks out does is measured again when it is needed",)


def fingerprint(gguf: GGUFFile) -> list[list[Any]]:
    """For each part of a model: its size, its time in nanoseconds, and a hash of all before its weights.

    Raises OSError.
    """
    parts: list[list[Any]] = []
    for number, path in enumerate(gguf.part_paths):
        offsets = [tensor.offset for tensor in gguf.tensors.values() if tensor.part == number]
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            header = file.read(min(offsets, default=status.st_size))
        parts.append([status.st_size, status.st_mtime_ns, sha256(header).hexdigest()])
    return parts


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, because only there a rename replaces at once.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _as_plain(calibration: Calibration) -> dict[str, Any]:
    return {
        "tokens": calibration.tokens,
        "text": calibration.text,
        "perplexity": calibration.perplexity,
        "cosines": calibration.cosines,
        "effects": [
            {name: getattr(effect, name) for name in _NUMBERS} | {"skipped": sorted(effect.skipped)}
            for effect in calibration.effects
        ],
        "grown": [sorted(skipped) for skipped in calibration.grown],
        "n_blocks": calibration.n_blocks,
    }


def _calibration(plain: Mapping[str, Any], n_blocks: int) -> Calibration:
    """Read it back; raises what `load` catches where something is not as it was written."""
    cosines = tuple(_number(value, -1.001, 1.001) for value in plain["cosines"])
    grown = tuple(_skip_set(numbers, n_blocks) for numbers in plain["grown"])
    if plain["n_blocks"] != n_blocks or len(cosines) not in (0, n_blocks // 2):
        raise ValueError("of another model")
    if any(not smaller < larger for smaller, larger in pairwise(grown)):
        raise ValueError("not grown")
    effects = tuple(_effect(effect, n_blocks) for effect in plain["effects"])
    if not set(grown) <= {effect.skipped for effect in effects}:
        raise ValueError("not measured")
    tokens, text = plain["tokens"], plain["text"]
    if type(tokens) is not int or tokens < 1 or not isinstance(text, str):
        raise ValueError("no text")
    return Calibration(
        n_blocks=n_blocks,
        tokens=tokens,
        text=text,
        perplexity=_number(plain["perplexity"], 1.0),
        cosines=cosines,
        effects=effects,
        grown=grown,
    )


def _effect(plain: Mapping[str, Any], n_blocks: int) -> SkipEffect:
    return SkipEffect(
        skipped=_skip_set(plain["skipped"], n_blocks),
        kl=_number(plain["kl"], 0.0),
        perplexity_change=_number(plain["perplexity_change"], -1.0),
        perplexity_low=_number(plain["perplexity_low"], -1.0),
        perplexity_high=_number(plain["perplexity_high"], -1.0),
        top1=_number(plain["top1"], 0.0, 1.0),
    )


def _skip_set(numbers: Sequence[Any], n_blocks: int) -> SkipSet:
    if not all(type(number) is int and 0 <= number < n_blocks for number in numbers):
        raise ValueError(f"{numbers!r} are no blocks")
    return frozenset(numbers)


def _number(value: Any, low: float, high: float = math.inf) -> float:
    number = float(value)
    if not (math.isfinite(number) and low <= number <= high):
        raise ValueError(f"{value!r} lies out of range")
    return number
