"""The kinds of settings: how each is read from the file, written to it, and typed or chosen by a person.

Knows one value at a time and its limits: no file, no widget and no particular setting.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from app.devices import parse_device
from app.i18n import _
from app.locations import expanded
from engine import Budget, SkipChoice, parse_budget, parse_skip


class Kind(Protocol):
    """Between a value and the TOML file."""

    def read(self, value: object) -> Any:
        """Return the value for what the file says. Raises TypeError or ValueError."""

    def write(self, value: Any) -> Any:
        """Return what to write into the file; None leaves the key out."""


class TypedKind(Kind, Protocol):
    """A kind whose values a person types."""

    @property
    def empty(self) -> str:
        """What an empty text means, in English; '' where it has no meaning of its own."""

    def parse(self, text: str) -> Any:
        """Return the value for what was typed. Raises TypeError or ValueError saying what is accepted."""

    def shown(self, value: Any) -> str:
        """Return what to type for `value`."""


@dataclass(frozen=True, slots=True)
class Text:
    """Any text; several lines are typed with \\n between them."""

    empty: str = ""

    def read(self, value: object) -> str:
        """Return the text."""
        return _text(value)

    def write(self, value: str) -> str:
        """Return it as it is."""
        return value

    def parse(self, text: str) -> str:
        """Return the text with its lines."""
        return "\\".join(part.replace("\\n", "\n") for part in text.split("\\\\"))

    def shown(self, value: str) -> str:
        """Return it on one line."""
        return value.replace("\\", "\\\\").replace("\n", "\\n")


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number within limits."""

    low: int
    high: int
    unit: str = ""
    empty: str = ""
    """What None means; '' where there is no None."""

    def read(self, value: object) -> int:
        """Return the number."""
        if not isinstance(value, int) or isinstance(value, bool) or not self.low <= value <= self.high:
            raise TypeError(_("must be a whole number from {0:,} to {1:,}").format(self.low, self.high))
        return value

    def write(self, value: int | None) -> int | None:
        """Return it as it is."""
        return value

    def parse(self, text: str) -> int | None:
        """Return the number, or None for an empty text where that means something."""
        digits = text.strip().replace(",", "").replace("_", "")
        if not digits and self.empty:
            return None
        return self.read(int(digits) if digits.isdecimal() and len(digits) < 12 else None)

    def shown(self, value: int | None) -> str:
        """Return its digits."""
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Memory:
    """An amount of memory such as "8G" or "50%", or None."""

    empty: str = ""
    of: str = "the available memory"
    """Of which a share is meant."""

    def read(self, value: object) -> Budget:
        """Return the amount."""
        return parse_budget(_text(value), of=self.of)

    def write(self, value: Budget | None) -> str | None:
        """Return it as text."""
        return None if value is None else str(value)

    def parse(self, text: str) -> Budget | None:
        """Return the amount, or None for an empty text."""
        return parse_budget(text, of=self.of) if text.strip() else None

    def shown(self, value: Budget | None) -> str:
        """Return it as text."""
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Device:
    """What computes, such as "cpu" or "cuda:1", or None."""

    empty: str = ""

    def read(self, value: object) -> str:
        """Return its name."""
        return parse_device(_text(value))

    def write(self, value: str | None) -> str | None:
        """Return it as it is."""
        return value

    def parse(self, text: str) -> str | None:
        """Return the name, or None for an empty text."""
        return parse_device(text) if text.strip() else None

    def shown(self, value: str | None) -> str:
        """Return its name."""
        return value or ""


@dataclass(frozen=True, slots=True)
class Skip:
    """Which blocks are left out, such as "cos=0.98" or "blk.10-12", or None."""

    def read(self, value: object) -> SkipChoice | None:
        """Return the choice."""
        return parse_skip(_text(value))

    def write(self, value: SkipChoice | None) -> str | None:
        """Return it as text."""
        return None if value is None else str(value)


@dataclass(frozen=True, slots=True)
class File:
    """A path, or None."""

    def read(self, value: object) -> Path:
        """Return the path."""
        return expanded(_text(value))

    def write(self, value: Path | None) -> str | None:
        """Return it as text."""
        return None if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Folders:
    """Any number of folders, typed as in PATH."""

    empty: str = ""

    def read(self, value: object) -> tuple[Path, ...]:
        """Return the folders."""
        if not isinstance(value, list):
            raise TypeError(_("must be a list of folders"))
        return tuple(expanded(_text(part)) for part in value)

    def write(self, value: tuple[Path, ...]) -> list[str]:
        """Return them as a list of texts."""
        return [str(path) for path in value]

    def parse(self, text: str) -> tuple[Path, ...]:
        """Return the folders, which must be there."""
        folders = tuple(expanded(part.strip()) for part in text.split(os.pathsep) if part.strip())
        for folder in folders:
            if not folder.is_dir():
                raise ValueError(_("there is no folder {0}").format(folder))
        return folders

    def shown(self, value: tuple[Path, ...]) -> str:
        """Return them in one line."""
        return os.pathsep.join(str(path) for path in value)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few; `options` holds the word for each value."""

    options: Mapping[Any, str] = field(default_factory=dict)

    def read(self, value: object) -> Any:
        """Return the option that the file names."""
        for option in self.options:
            if option == value and type(value) in (bool, str):
                return option
        raise TypeError(_("must be one of: {0}").format(", ".join(map(str, self.options))))

    def write(self, value: Any) -> bool | str:
        """Return it as TOML knows it."""
        return value if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Named:
    """One of names that are known only while the program runs, such as those of themes."""

    empty: str = ""
    """What '' means; '' where a name must be given."""

    def read(self, value: object) -> str:
        """Return the name, known or not."""
        return _text(value)

    def write(self, value: str) -> str:
        """Return it as it is."""
        return value


SWITCH: Final = Choice({False: "off", True: "on"})


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(_("must be text in quotes"))
    return value
