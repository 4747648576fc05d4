"""The best launch settings of this very GPU, by measuring: for `tiercel probe`.

Begins with what would be used otherwise and changes one setting after the other, keeping what is fastest;
every candidate is compared with its oracle before it is timed. Knows shapes and settings, not models.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

from kernels.cuda import launch_settings
from kernels.cuda.bench import Rotation, launch_seconds
from kernels.cuda.device import Device, Kernel
from kernels.cuda.launch_settings import (
    MOST_SIDE_BY_SIDE,
    Choice,
    ColumnsSettings,
    GemvSettings,
    LaunchSettings,
    clusters,
    fits,
    units,
)
from kernels.cuda.sketch import DeviceKind, Sketch
from kernels.quant_types import QuantType, block_size

_ROUNDS = 5
_LEAST_WARPS, _MOST_WARPS = 4, 16
_TOKENS = (1, MOST_SIDE_BY_SIDE, 8)
"""One kernel each."""
_WORTH_A_CHANGE = 0.99
"""A candidate must take at most so much of the time of what would be used otherwise."""

Settings = TypeVar("Settings", bound=GemvSettings | ColumnsSettings)


class Shape(NamedTuple):
    """A product of a model."""

    quant_type: QuantType
    n_rows: int
    n_columns: int
    """Weights of a row."""
    gated: bool = False
    """Gate rows, then up rows, joined."""


class Found(NamedTuple):
    """What was measured for one shape and number of tokens."""

    shape: Shape
    n_tokens: int
    settings: GemvSettings | ColumnsSettings
    seconds: float
    """Of one product with these settings."""
    seconds_before: float
    """With what would be used otherwise."""


def search(
    device: Device,
    shapes: Sequence[Shape],
    measured: Path,
    *,
    prepare: Callable[[Iterable[Kernel]], None] = lambda kernels: None,
    before_each: Callable[[], None] = lambda: None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Found]:
    """Measure every shape and write the choices to the file `measured`, which `launch_settings.load` reads.

    `prepare` compiles kernels ahead, in several threads where it can. What `before_each` raises ends the
    search; the shapes that were done stay in the file. `on_progress` gets shapes done and in all. Raises
    ArithmeticError for a product that differs from its oracle, OSError, DeviceError.
    """
    wanted = list(dict.fromkeys(shapes))
    found: list[Found] = []
    for done, shape in enumerate(wanted):
        on_progress(done, len(wanted))
        of_shape = list(_search_shape(device, shape, prepare, before_each))
        found += of_shape
        launch_settings.save(measured, device.name, (_choice(each) for each in of_shape))
    on_progress(len(wanted), len(wanted))
    return found


def _search_shape(
    device: Device,
    shape: Shape,
    prepare: Callable[[Iterable[Kernel]], None],
    before_each: Callable[[], None],
) -> Iterator[Found]:
    quant_type, n_rows, n_columns, gated = shape
    rotation = Rotation(device, quant_type, n_rows, n_columns, gated=gated)
    usual = launch_settings.load(device)
    for n_tokens in _TOKENS if block_size(quant_type) > 1 else _TOKENS[:1]:
        measuring = _Measuring(device, rotation, n_tokens, prepare, before_each)
        if n_tokens == 1:
            start = usual.gemv(quant_type, n_columns, n_rows)
            yield _descend(shape, n_tokens, start, gemv_steps(shape), measuring)
        else:
            first = usual.columns(quant_type, n_columns, n_rows, n_tokens, gated=gated)
            yield _descend(shape, n_tokens, first, columns_steps(shape, n_tokens, device), measuring)


def gemv_steps(shape: Shape) -> list[Callable[[GemvSettings], list[GemvSettings]]]:
    """What may be put in the place of some settings, one kind of change after the other."""
    steps = -(-shape.n_columns // 1024)

    def warps_per_row(now: GemvSettings) -> list[GemvSettings]:
        # No more than one step in eight finds nothing left.
        fitting = [warps for warps in range(1, 9) if -(-steps // warps) * warps <= max(1.125 * steps, warps)]
        return [
            GemvSettings(
                warps, now.rows_per_warp, max(1, 8 // warps) * warps, min(now.unroll, -(-steps // warps))
            )
            for warps in fitting
            if warps <= steps
        ]

    def rows_per_warp(now: GemvSettings) -> list[GemvSettings]:
        return [now._replace(rows_per_warp=rows) for rows in ((2, 4, 8) if shape.gated else (1, 2, 4))]

    def unroll(now: GemvSettings) -> list[GemvSettings]:
        return [now._replace(unroll=n) for n in (1, 2, 4) if n <= -(-steps // now.warps_per_row)]

    def warps(now: GemvSettings) -> list[GemvSettings]:
        return [now._replace(warps=n) for n in _warps(now.warps_per_row)]

    return [warps_per_row, rows_per_warp, unroll, warps]


def columns_steps(
    shape: Shape, n_tokens: int, device: DeviceKind
) -> list[Callable[[ColumnsSettings], list[ColumnsSettings]]]:
    """The same for gemv_columns, as far as there is shared memory for it."""
    quant_type, n_rows, n_columns, gated = shape

    def fitting(candidates: Iterable[ColumnsSettings]) -> list[ColumnsSettings]:
        capability = device.compute_capability
        return [each for each in candidates if fits(capability, quant_type, n_columns, n_tokens, each)]

    n_outputs, of_tile = (n_rows // 2, 16) if gated else (n_rows, 0)

    def geometry(now: ColumnsSettings) -> list[ColumnsSettings]:
        return fitting(
            ColumnsSettings(tiles, split, teams * split, 1, cluster, 1, 1)
            for tiles in ((2,) if gated else (1, 2) if n_rows >= 32 else (1,))
            for cluster in clusters(device.compute_capability)
            for teams in _teams(n_outputs * cluster, of_tile or 16 * tiles, device)
            for split in _splits(-(-units(quant_type, n_columns) // cluster))
            if _LEAST_WARPS <= teams * split <= _MOST_WARPS
        )

    def passes(now: ColumnsSettings) -> list[ColumnsSettings]:
        return fitting(now._replace(passes=n) for n in (1, 2, 4))

    def stages(now: ColumnsSettings) -> list[ColumnsSettings]:
        return fitting(now._replace(stages=n) for n in (1, 2, 3))

    def blocks(now: ColumnsSettings) -> list[ColumnsSettings]:
        return fitting(now._replace(blocks=n) for n in (1, 2) if n * now.warps <= _MOST_WARPS)

    return [geometry, passes, stages, blocks]


def _teams(n_outputs: int, of_team: int, device: DeviceKind) -> list[int]:
    """Teams of a block: all that a processor has to do, or less; every processor should get some."""
    teams = -(-n_outputs // of_team)
    share = -(-teams // device.n_processors)
    return [n for n in sorted({1, 4, 8, share}) if n <= share]


def _splits(n_units: int) -> list[int]:
    """Among how many warps a row may be split, so that no more than one turn in six finds nothing left."""
    return [
        n for n in (1, 2, 3, 4, 5, 7, 8, 14, 16) if n <= n_units and -(-n_units // n) * n <= 1.2 * n_units
    ]


def _warps(multiple_of: int) -> list[int]:
    return [n * multiple_of for n in (1, 2, 4, 8, 16) if n * multiple_of <= _MOST_WARPS]


class _Measuring:
    """Times settings for one product."""

    def __init__(
        self,
        device: Device,
        rotation: Rotation,
        n_tokens: int,
        prepare: Callable[[Iterable[Kernel]], None],
        before_each: Callable[[], None],
    ) -> None:
        self._device = device
        self._rotation = rotation
        self._n_tokens = n_tokens
        self._prepare = prepare
        self._before_each = before_each

    def seconds(self, candidates: Sequence[GemvSettings | ColumnsSettings]) -> list[float]:
        """The median of some rounds for each, all of them in random order within a round."""
        self._prepare(self._kernels(candidates))
        graphs = []
        for candidate in candidates:
            self._before_each()
            graphs.append(self._rotation.product(self._n_tokens, _Only(candidate)))
        order = random.Random(0)
        readings: list[list[float]] = [[] for _ in graphs]
        for _ in range(_ROUNDS):
            for i in order.sample(range(len(graphs)), len(graphs)):
                self._before_each()
                n_launches = len(self._rotation.matrices)
                readings[i].append(launch_seconds(self._device, graphs[i], n_launches))
        return [median(each) for each in readings]

    def _kernels(self, candidates: Iterable[GemvSettings | ColumnsSettings]) -> tuple[Kernel, ...]:
        sketch = Sketch(self._device)
        for candidate in candidates:
            self._rotation.launch_once(sketch, self._n_tokens, _Only(candidate))
        return sketch.kernels


class _Only(LaunchSettings):
    """One choice, whatever is asked."""

    def __init__(self, chosen: Any) -> None:
        super().__init__(90, 1)
        self._chosen = chosen

    def gemv(self, quant_type: QuantType, n_columns: int, n_rows: int) -> GemvSettings:
        """The choice."""
        chosen: GemvSettings = self._chosen
        return chosen

    def columns(
        self, quant_type: QuantType, n_columns: int, n_rows: int, n_tokens: int, *, gated: bool = False
    ) -> ColumnsSettings:
        """The choice."""
        chosen: ColumnsSettings = self._chosen
        return chosen


def _descend(
    shape: Shape,
    n_tokens: int,
    start: Settings,
    steps: Iterable[Callable[[Settings], list[Settings]]],
    measuring: _Measuring,
) -> Found:
    """The best that is found by changing one thing after the other; `start` unless it is clearly better."""
    best, seconds = start, 0.0
    for change in steps:
        # The best so far once more, so that all are measured under the same conditions.
        candidates = list(dict.fromkeys([best, *change(best)]))
        times = dict(zip(candidates, measuring.seconds(candidates), strict=True))
        best = min(candidates, key=times.__getitem__)
        seconds = times[best]
    before, after = measuring.seconds([start, best]) if best != start else (seconds, seconds)
    if after > _WORTH_A_CHANGE * before:
        best, after = start, before
    return Found(shape, n_tokens, best, after, before)


def _choice(found: Found) -> Choice:
    shape, kernel = found.shape, "gemv" if found.n_tokens == 1 else "columns"
    return Choice(kernel, shape.quant_type, shape.n_columns, shape.n_rows, found.n_tokens, found.settings)
