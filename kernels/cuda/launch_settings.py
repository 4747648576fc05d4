"""How the products are launched: how many warps, rows and steps, by device, quant type and shape.

Reads measured choices, those of a search on this very device before those that are shipped for its
architecture, and has a rule for everything else. Knows the macros of gemv.cu and gemv_columns.cu and their
bounds; compiles and launches nothing. Called by products.py and search.py.
"""

from __future__ import annotations

import contextlib
import functools
import math
import tomllib
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from kernels.cuda.matrices import CHUNK, CHUNK_BYTES
from kernels.cuda.sketch import DeviceKind
from kernels.quant_types import QuantType

_ROWS_OF_TILE = 16
_NEAR = 4.0
"""A choice for one number of rows serves for others up to so many times larger or smaller."""
_MOST_NUMBER = 32
"""Warps of a block at most; everything else is less."""
_MOST_SIZE = 1 << 31
"""Of a matrix."""
MOST_TOKENS = 8
"""Of a product at most."""
MOST_SIDE_BY_SIDE = 4
"""Up to so many tokens gemv_columns computes half as much, by an instance of its own."""
_WIDE = (QuantType.Q8_0, QuantType.F16, QuantType.BF16, QuantType.F32)
"""Types of 8 bits and more, of which a warp holds fewer weights."""
_WARPS_OF_PROCESSOR = 12
_VOCABULARY = 512
"""Rows for each processor."""
_WARPS_OF_COLUMNS = 16
"""Of a processor, for gemv_columns."""
_IN_BLOCKS = (QuantType.Q2_K, QuantType.Q3_K, QuantType.Q4_K, QuantType.Q5_K, QuantType.Q6_K)
"""Types whose rows gemv_columns takes by blocks of 256, the others by chunks of 128."""
_SHARED_KIB = {80: 163, 87: 163, 90: 227, 100: 227, 103: 227}
"""Shared memory of a processor, less what a block takes for itself, where it is more than 99 KiB."""
_LEAST_SHARED_KIB = 99
_COUNT_BYTES = 16
"""Room for a count of what has come from the other blocks of a cluster."""
_FEW_SLICES = 4
"""So often may all warps wait for x."""
_CLUSTERS = (1, 2, 4, 8)
"""Blocks that may share rows."""


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
    """Of 16 rows, of a warp: 1 or 2. A gated product has two, of gate and of up rows."""
    split: int
    """Warps that share the same rows."""
    warps: int
    """Of a block: a multiple of split."""
    stages: int
    """Units of weights of a warp that are on their way to shared memory."""
    cluster: int
    """Blocks that share the same rows, each with a part of their length; more than 1 from 9.0 on."""
    blocks: int
    """That a processor shall hold at a time: it bounds the registers of a thread."""
    passes: int
    """Groups of rows that a warp takes one after the other: 1 where warps share rows."""


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

    def __init__(
        self, compute_capability: int, n_processors: int, tables: Iterable[Sequence[Choice]] = ()
    ) -> None:
        """`tables` are asked in their order."""
        self._compute_capability = compute_capability
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
        if found and gated:
            found = found._replace(tiles=2)
        elif found and not gated and n_rows < _ROWS_OF_TILE * found.tiles:
            found = found._replace(tiles=1)
        if found and fits(self._compute_capability, quant_type, n_columns, n_tokens, found):
            return found
        return self._columns_rule(quant_type, n_columns, n_rows, gated)

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
        """Two warps for each row and rows side by side, fewer of them where processors would have few warps;
        of a vocabulary's rows there are enough for one warp each."""
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
        """Two blocks of eight warps for each processor, or fewer warps where there is no shared memory for so
        many. Where there are few rows, blocks of a cluster share them, or else warps."""
        tiles = 2 if gated or n_rows >= 2 * _ROWS_OF_TILE else 1
        teams = -(-n_rows // (_ROWS_OF_TILE * tiles))
        n_units = units(quant_type, n_columns)
        share = min(8, -(-_WARPS_OF_COLUMNS * self._n_processors // teams), n_units)
        split = max(n for n in (1, 2, 4, 8) if n <= share)
        narrow = [
            cluster
            for cluster in clusters(self._compute_capability)[1:]
            if cluster <= n_units and -(-teams // 4) * cluster <= 2 * self._n_processors
        ]
        choices = [ColumnsSettings(tiles, 1, 4, 2, cluster, 2, 1) for cluster in reversed(narrow)]
        choices += [
            ColumnsSettings(tiles, min(split, warps), warps, 1, 1, blocks, 1)
            for warps, blocks in ((8, 2), (8, 1), (4, 2), (4, 1), (2, 1))
        ]
        shape = self._compute_capability, quant_type, n_columns, MOST_TOKENS
        fitting = [chosen for chosen in choices if fits(*shape, chosen)]
        return min(fitting, key=lambda chosen: max(_FEW_SLICES, shared_memory(*shape, chosen)[0]))


def load(device: DeviceKind, measured: Path | None = None) -> LaunchSettings:
    """The choices for `device`: what a search wrote to the file `measured`, what is shipped, a rule.

    A file that is missing or damaged counts for nothing: it can be made again.
    """
    own = _read(measured).get(device.name, ()) if measured else ()
    shipped_table = _shipped_table(device.compute_capability)
    return LaunchSettings(device.compute_capability, device.n_processors, (own, shipped_table))


@functools.cache
def shipped(compute_capability: int, n_processors: int) -> LaunchSettings:
    """The choices for a device on which nothing was measured."""
    return LaunchSettings(compute_capability, n_processors, (_shipped_table(compute_capability),))


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
    """The tables of a file, by device; those that are none are left out."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    # tomllib runs out of the stack in what is nested deeply.
    except (OSError, ValueError, RecursionError):
        return {}
    tables = {}
    for name, kernels in content.items():
        with contextlib.suppress(ValueError):
            tables[name] = _table(kernels)
    return tables


def _table(content: Any) -> tuple[Choice, ...]:
    """The lines of one device or architecture. Raises ValueError for what is not a table of them."""
    try:
        return tuple(
            _LINES[kernel](QuantType[name], line)
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
    numbers_fit = type(n_tokens) is int and 1 <= n_tokens <= MOST_TOKENS
    if (
        not numbers_fit
        or chosen.tiles > 2
        or chosen.cluster not in _CLUSTERS
        or chosen.warps * chosen.blocks > _MOST_NUMBER
    ):
        raise ValueError(f"launch settings out of bounds: {line}")
    return Choice("columns", quant_type, n_columns, n_rows, n_tokens, chosen)


_LINES: dict[str, Callable[[QuantType, list[int]], Choice]] = {"gemv": _gemv_line, "columns": _columns_line}
"""How a line of each kernel is read."""


def _check(chosen: GemvSettings | ColumnsSettings, sharing: int, n_columns: int, n_rows: int) -> None:
    numbers = (n_columns, n_rows, *chosen)
    if any(type(number) is not int or number < 1 for number in numbers):
        raise ValueError(f"launch settings are not positive numbers: {numbers}")
    if max(chosen) > _MOST_NUMBER or max(numbers) > _MOST_SIZE or chosen.warps % sharing:
        raise ValueError(f"launch settings out of bounds: {numbers}")


def clusters(compute_capability: int) -> tuple[int, ...]:
    """How many blocks may share rows; more than one where a processor has much shared memory, and is new."""
    return _CLUSTERS if 90 <= compute_capability < 120 else _CLUSTERS[:1]


def units(quant_type: QuantType, n_columns: int) -> int:
    """The pieces into which gemv_columns cuts a row."""
    return -(-n_columns // CHUNK) // unit_chunks(quant_type)


def unit_chunks(quant_type: QuantType) -> int:
    """Chunks of 128 weights in such a piece: a block of 256 for the K types."""
    return 2 if quant_type in _IN_BLOCKS else 1


def shared_memory(
    compute_capability: int, quant_type: QuantType, n_columns: int, n_tokens: int, chosen: ColumnsSettings
) -> tuple[int, int]:
    """Slices in which x comes to shared memory, and bytes of all of it.

    Raises ValueError where there is not enough.
    """
    few = n_tokens <= MOST_SIDE_BY_SIDE
    unit = unit_chunks(quant_type)
    if chosen.cluster not in clusters(compute_capability):
        raise ValueError(f"{chosen}: compute capability {compute_capability} has no such clusters")
    # With up to four tokens high and low bytes of x share a fragment; sums; steps.
    of_token = 4 + (0 if quant_type is QuantType.Q8_0 else 32)
    of_chunk = 1024 + MOST_SIDE_BY_SIDE * of_token if few else 2048 + MOST_TOKENS * of_token
    turns = -(-units(quant_type, n_columns) // (chosen.cluster * chosen.split))
    shares = chosen.split * chosen.cluster > 1
    if shares and chosen.passes > 1:
        raise ValueError(f"{chosen}: warps that share rows take one group of them")
    weights = chosen.warps * chosen.stages * _unit_bytes(quant_type, unit, _ROWS_OF_TILE * chosen.tiles)
    of_tile = _ROWS_OF_TILE * (MOST_SIDE_BY_SIDE if few else MOST_TOKENS) * 4
    sums = chosen.warps * chosen.tiles * of_tile if shares else 0
    # From the other blocks of a cluster they may come at any time, and are counted.
    behind = sums + _COUNT_BYTES if chosen.cluster > 1 else 0
    available = _SHARED_KIB.get(compute_capability, _LEAST_SHARED_KIB) * 1024 // chosen.blocks - 1024
    for slices in range(1, turns + 1):
        n_bytes = max(-(-turns // slices) * chosen.split * unit * of_chunk + weights + behind, sums)
        if n_bytes > available:
            continue
        if slices > 1 and chosen.passes > 1:
            break
        return slices, n_bytes
    raise ValueError(f"{chosen} needs more than {available} bytes of shared memory for {quant_type.name}")


def fits(
    compute_capability: int, quant_type: QuantType, n_columns: int, n_tokens: int, chosen: ColumnsSettings
) -> bool:
    """Whether `shared_memory` finds enough."""
    try:
        shared_memory(compute_capability, quant_type, n_columns, n_tokens, chosen)
    except ValueError:
        return False
    return True


def _unit_bytes(quant_type: QuantType, n_chunks: int, n_rows: int) -> int:
    """What so many rows of so many chunks take in shared memory: their planes, four bytes for a block's
    scale, and what is left free behind codes."""
    codes, high, scales, blocks = CHUNK_BYTES[quant_type]
    of_row = n_chunks * (codes + high + scales) + (4 if blocks else 0)
    return n_rows * of_row + n_chunks * codes
