"""How the products are launched: how many warps, rows and steps, by device, quant type and shape.

Reads measured choices, those of a search on this very device before those that are shipped for its
architecture, and has a rule for everything else. Knows the macros of gemv.cu and gemv_columns.cu and their
bounds; compiles and launches nothing. Called by products.py and search.py.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from kernels.cuda.sketch import DeviceKind
from kernels.quant_types import QuantType

_CHUNK = 128
_ROWS_OF_TILE = 16
_NEAR = 4.0
"""A choice for one number of rows serves for others up to so many times larger or smaller."""
_MOST_WARPS = 16
"""That the rules give a processor: more leave a thread too few registers."""
_MOST_NUMBER = 32
"""Warps of a block at most; everything else is less."""
_MOST_TOKENS = 8
MOST_SIDE_BY_SIDE = 4
"""Up to so many tokens gemv_columns computes half as much, by an instance of its own."""
_WIDE = (QuantType.Q8_0, QuantType.F16, QuantType.BF16, QuantType.F32)
"""Types of 8 bits and more, of which a warp holds fewer weights."""
_WARPS_OF_PROCESSOR = 12
_VOCABULARY = 512
"""Rows for each processor."""
_WARPS = 8
"""That gemv_columns has in a block: what is on its way for them fits into any GPU's shared memory."""
_MOST_TURN = 8
"""Chunks of x that the warps of a block take at a time."""
_IN_BLOCKS = (QuantType.Q2_K, QuantType.Q3_K, QuantType.Q4_K, QuantType.Q5_K, QuantType.Q6_K)
"""Types whose rows gemv_columns takes by blocks of 256, the others by chunks of 128."""


class GemvSettings(NamedTuple):
    """The macros of gemv.cu."""

    warps_per_row: int
    """Warps that share the same rows."""
    rows_per_warp: int
    """Rows side by side; of a gated product they are gate and up rows together."""
    warps: int
    """Of a block: a multiple of warps_per_row."""
    unroll: int
    """Steps of 1,024 weights that are loaded together."""


class ColumnsSettings(NamedTuple):
    """The macros of gemv_columns.cu."""

    tiles: int
    """Of 16 rows, of a warp: 1 or 2. In a gated product two tiles are of gate and up rows; with one tile the
    up rows take as many warps again."""
    split: int
    """Warps that share the same rows."""
    warps: int
    """Of a block: a multiple of split."""
    stages: int
    """Units of weights in shared memory: one that is computed with, the others on their way; 2 or more."""
    blocks: int
    """That a processor shall hold at a time: it bounds the registers of a thread."""


class Choice(NamedTuple):
    """What was measured to be best for one shape: a line of a table."""

    kernel: str
    """"gemv" or "columns"."""
    quant_type: QuantType
    n_columns: int
    """Weights of a row."""
    n_rows: int
    n_tokens: int
    """1 for gemv."""
    settings: GemvSettings | ColumnsSettings


class LaunchSettings:
    """The choices for one device."""

    def __init__(self, n_processors: int, tables: Iterable[Sequence[Choice]]) -> None:
        """`tables` are asked in their order."""
        self._n_processors = n_processors
        self._tables = tuple(tables)

    def gemv(self, quant_type: QuantType, n_columns: int, n_rows: int) -> GemvSettings:
        """For one token; `n_rows` are the rows of the matrix, of a gated product gate and up rows."""
        found: GemvSettings | None = self._look_up("gemv", quant_type, n_columns, n_rows, 1)
        return found or self._gemv_rule(quant_type, n_columns, n_rows)

    def columns(
        self, quant_type: QuantType, n_columns: int, n_rows: int, n_tokens: int, *, gated: bool = False
    ) -> ColumnsSettings:
        """For 2 to 8 tokens."""
        found: ColumnsSettings | None = self._look_up("columns", quant_type, n_columns, n_rows, n_tokens)
        settings = found or self._columns_rule(quant_type, n_columns, n_rows, gated)
        if gated:
            fits = settings.tiles == 2 or settings.warps % (2 * settings.split) == 0
            return settings if fits else settings._replace(tiles=2)
        # A small matrix has room for one tile only.
        return settings if n_rows >= _ROWS_OF_TILE * settings.tiles else settings._replace(tiles=1)

    def _look_up(self, kernel: str, quant_type: QuantType, n_columns: int, n_rows: int, n_tokens: int) -> Any:
        """The settings of the nearest number of rows in the first table that has one, or None."""
        for table in self._tables:
            near = [
                (abs(math.log(n_rows / choice.n_rows)), choice.settings)
                for choice in table
                if choice[:3] == (kernel, quant_type, n_columns)
                and (choice.n_tokens <= MOST_SIDE_BY_SIDE) == (n_tokens <= MOST_SIDE_BY_SIDE)
            ]
            if near and min(near)[0] <= math.log(_NEAR):
                return min(near)[1]
        return None

    def _gemv_rule(self, quant_type: QuantType, n_columns: int, n_rows: int) -> GemvSettings:
        """Two warps for each row and rows side by side, fewer of them where processors would have few warps; of
        a vocabulary's rows there are enough for one warp each."""
        steps = -(-n_columns // 1024)
        is_wide = quant_type in _WIDE
        if n_rows >= _VOCABULARY * self._n_processors:
            share = min(4, steps)
            return GemvSettings(share, 1, 2 * share, 1) if is_wide else GemvSettings(1, 2, 4, share)
        warps_per_row = min(2, steps)
        rows = 2 if is_wide or steps > 8 else 4
        enough = _WARPS_OF_PROCESSOR * self._n_processors
        while rows > 1 and n_rows // rows * warps_per_row < enough:
            rows //= 2
        while 2 * warps_per_row <= min(8, steps) and n_rows // rows * warps_per_row < enough:
            warps_per_row *= 2
        warps = max(warps_per_row, 8 if is_wide else 4)
        return GemvSettings(
            warps_per_row, rows, warps, 2 if steps == 2 * warps_per_row and not is_wide else 1
        )

    def _columns_rule(
        self, quant_type: QuantType, n_columns: int, n_rows: int, gated: bool
    ) -> ColumnsSettings:
        """Eight warps for each processor, which share rows where there are few of them."""
        n_units = units(quant_type, n_columns)
        tiles = 2 if gated or self._evenly(n_rows, 2) > 0.95 * self._evenly(n_rows, 1) else 1
        rows_of_group = _ROWS_OF_TILE * (tiles // 2 if gated else tiles)
        groups = -(-(n_rows // 2 if gated else n_rows) // rows_of_group)
        groups_of_block = min(_WARPS, -(-groups // self._n_processors))
        # Slices of x stay small enough for any GPU's shared memory.
        most = min(_WARPS // groups_of_block, _MOST_TURN // unit_chunks(quant_type), n_units)
        # The fewest turns; then the fewest warps that need no more.
        split = min(range(1, most + 1), key=lambda warps: (-(-n_units // warps), warps))
        return ColumnsSettings(tiles, split, groups_of_block * split, 2, 1)

    def _evenly(self, n_rows: int, tiles: int) -> float:
        """What share of the processors' time is used when each takes whole groups of so many tiles."""
        each = n_rows / (_ROWS_OF_TILE * tiles * self._n_processors)
        return each / math.ceil(each)


def load(device: DeviceKind, measured: Path | None = None) -> LaunchSettings:
    """The choices for `device`: what a search wrote to the file `measured`, what is shipped, a rule.

    A file that is missing or damaged counts for nothing: it can be made again.
    """
    own = _read(measured).get(device.name, ()) if measured else ()
    return LaunchSettings(device.n_processors, (own, _shipped_table(device.compute_capability)))


@functools.cache
def shipped(compute_capability: int, n_processors: int) -> LaunchSettings:
    """The choices for a device on which nothing was measured."""
    return LaunchSettings(n_processors, (_shipped_table(compute_capability),))


def save(measured: Path, device_name: str, choices: Iterable[Choice]) -> None:
    """Write what was measured on a device, beside what the file has of other shapes. Raises OSError."""
    tables = _read(measured)
    kept = {choice[:5]: choice for choice in (*tables.get(device_name, ()), *choices)}
    tables[device_name] = tuple(kept.values())
    measured.parent.mkdir(parents=True, exist_ok=True)
    draft = measured.with_suffix(".new")
    draft.write_text(tomli_w.dumps({name: _content(table) for name, table in tables.items()}), "utf-8")
    draft.replace(measured)


@functools.cache
def _shipped_table(compute_capability: int) -> tuple[Choice, ...]:
    text = files("kernels.cuda").joinpath("launch_settings.toml").read_text("utf-8")
    return _table(tomllib.loads(text).get(f"sm_{compute_capability}", {}))


def _read(path: Path) -> dict[str, tuple[Choice, ...]]:
    """The tables of a file, by device."""
    try:
        return {name: _table(content) for name, content in tomllib.loads(path.read_text("utf-8")).items()}
    except (OSError, ValueError):
        return {}


def _table(content: Any) -> tuple[Choice, ...]:
    """The lines of one device or architecture. Raises ValueError for what is not a table of them."""
    try:
        return tuple(
            _gemv_line(QuantType[name], line) if kernel == "gemv" else _columns_line(QuantType[name], line)
            for kernel, types in content.items()
            for name, lines in types.items()
            for line in lines
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a table of launch settings: {error}") from None


def _content(table: Iterable[Choice]) -> dict[str, dict[str, list[list[int]]]]:
    """What `_table` reads."""
    kernels: dict[str, dict[str, list[list[int]]]] = {}
    for kernel, quant_type, n_columns, n_rows, n_tokens, settings in table:
        tokens = () if kernel == "gemv" else (n_tokens,)
        lines = kernels.setdefault(kernel, {}).setdefault(quant_type.name, [])
        lines.append([n_columns, n_rows, *tokens, *settings])
    return kernels


def _gemv_line(quant_type: QuantType, line: list[int]) -> Choice:
    n_columns, n_rows, *rest = line
    chosen = GemvSettings(*rest)
    _check(chosen, chosen.warps_per_row, n_columns, n_rows)
    return Choice("gemv", quant_type, n_columns, n_rows, 1, chosen)


def _columns_line(quant_type: QuantType, line: list[int]) -> Choice:
    n_columns, n_rows, n_tokens, *rest = line
    chosen = ColumnsSettings(*rest)
    _check(chosen, chosen.split, n_columns, n_rows)
    if type(n_tokens) is not int or not 1 <= n_tokens <= _MOST_TOKENS or chosen.tiles > 2:
        raise ValueError(f"launch settings out of bounds: {line}")
    return Choice("columns", quant_type, n_columns, n_rows, n_tokens, chosen)


def _check(chosen: GemvSettings | ColumnsSettings, sharing: int, n_columns: int, n_rows: int) -> None:
    numbers = (n_columns, n_rows, *chosen)
    if any(type(number) is not int or number < 1 for number in numbers):
        raise ValueError(f"launch settings are not positive numbers: {numbers}")
    if max(chosen) > _MOST_NUMBER or chosen.warps % sharing:
        raise ValueError(f"launch settings out of bounds: {numbers}")


def units(quant_type: QuantType, n_columns: int) -> int:
    """The pieces into which gemv_columns cuts a row."""
    return -(-n_columns // _CHUNK) // unit_chunks(quant_type)


def unit_chunks(quant_type: QuantType) -> int:
    """Chunks of 128 weights in such a piece: a block of 256 for the K types."""
    return 2 if quant_type in _IN_BLOCKS else 1
